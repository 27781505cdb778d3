// The state at the start of every chunk, as operands, from those kept at the ends of segments: all segments at once.
// Only where a decay keeps the backward from walking the state back.
#include "decay.cuh"

constexpr int STAGE_K = 0, STAGE_D = C * X_ROW, STAGE_BYTES = BY_KEY ? KEY_DECAY_BYTES : STAGE_D + DECAY_TILE;
constexpr int WARP_BYTES = BY_COLUMN ? NS * PAIR_PLANE + 32 * 4 : 0, OPERANDS = BY_COLUMN && !RAW ? NS * OPERAND_TILE : 0;
NEEDS(STAGE_BYTES + OPERANDS + NW * WARP_BYTES, NT)

struct Arguments {
  const TX* k;
  const TD* decay;
  const uint4_* prepared;  // by key dim
  const float* W;  // initial, or null
  const INDEX* bounds;
  const float4_* kept_W;
  const uint4_* kept_c;
  uint4_* chunk_W;
  i64 N, T, H;
};

KERNEL void __launch_bounds__(NT, 1) swila_states(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  KeyDecay decay;
  if constexpr (BY_KEY) decay = key_decay_at(shared);
  char *operands = shared + STAGE_BYTES, *c_tile = operands + OPERANDS + p.warp * WARP_BYTES;
  float* factors = (float*)(c_tile + NS * PAIR_PLANE);
  const i64 block = blockIdx.x, H = a.H, T = a.T, head = block / VT % H, item = block / VT / H;
  const int vt = (int)(block % VT), first = vt * VB + p.warp * DPW;
  Span span;
  i64 segment = 0;
  if (!a.bounds) {
    i64 per = (T + SEGMENT - 1) / SEGMENT;
    span = sequence(nullptr, item / per, T), segment = item % per;
  } else if (item < a.N) {
    span = sequence(a.bounds, item, T);
  } else {
    // Segments after a sequence's first start at least SEGMENT tokens apart: at most one in each stretch of so many.
    i64 from = (item - a.N + 1) * SEGMENT, low = 0, high = a.N;
    while (high - low > 1) {
      i64 middle = (low + high) / 2;
      if ((i64)a.bounds[middle] < from) low = middle; else high = middle;
    }
    span = sequence(a.bounds, low, T);
    segment = (from - span.begin + SEGMENT - 1) / SEGMENT;
    if (span.begin + segment * SEGMENT >= span.end) return;
  }
  const i64 warp_unit = (head * VT + vt) * NW + p.warp, warp_units = H * VT * NW;
  const i64 start = span.begin + segment * SEGMENT, stop = start + SEGMENT < span.end ? start + SEGMENT : span.end;

  float W[2][KT][4];
  clear_state(W);
  if (segment > 0) {
    i64 row = segment_row(a.bounds, span, segment - 1, T) * warp_units + warp_unit;
#pragma unroll
    for (int i = 0; i < 2 * KT; i++) {
      float4_ w = a.kept_W[(row * 2 * KT + i) * 32 + p.lane];
#pragma unroll
      for (int e = 0; e < 4; e++) W[i / KT][i % KT][e] = w.x[e];
    }
  } else if (a.W) {
    load_state(W, a.W, span.n * H + head, first, p);
  }
  for (int i = (int)threadIdx.x; i < STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;

  const Pieces<1, K * (int)sizeof(TX), X_ROW> key_pieces(H * K * sizeof(TX), 0);
  const DecayPieces pieces = decay_pieces(H);
  for (i64 t0 = start; t0 < stop; t0 += C) {
    const int valid = stop - t0 < C ? (int)(stop - t0) : C;
    const i64 unit = chunk_row(a.bounds, span, (t0 - span.begin) / C, T) * warp_units + warp_unit;
    sync_block();
    if constexpr (BY_KEY) {
      fetch_prepared(shared, a.prepared, unit / warp_units * H + head, true);
    } else {
      key_pieces.copy(shared + STAGE_K, a.k + (t0 * H + head) * K, valid);
      fetch_decay(pieces, shared + STAGE_D, a.decay, t0 * H + head, vt, valid);
    }
    copy_commit();
    emit_state(a.chunk_W + unit * STATE_PIECES * 32, W, p.lane);
    copy_wait<0>();
    sync_block();
    const uint4_* kept = a.kept_c + unit * NS * 64;
    A16 c[2];
    if constexpr (BY_KEY) {
#pragma unroll
      for (int m = 0; m < 2; m++) c[m] = load_kept((const u32*)kept, m * 16, p);
      decay_state(W, decay, p);
      add_outer(W, c, decay.keys_end, OPERAND_ROW, p.lane);
    } else {
      float alpha[C], written[C], after = 1.f;
      load_decay(alpha, shared + STAGE_D, a.decay, t0 * H + head, H, valid, p);
      load_kept_column(written, kept, p);
#pragma unroll
      for (int t = C - 1; t >= 0; t--) written[t] *= after, after *= alpha[t];
      put_columns(c_tile, p, written);
      factors[p.column] = after;
      const char* k_tile = shared + STAGE_K;
      if constexpr (!RAW) {
        as_operands(operands, k_tile);
        k_tile = operands;
      }
      sync_block();
#pragma unroll
      for (int m = 0; m < 2; m++) c[m] = load_columns_operand(c_tile, m * 16, p.lane);
      decay_rows(W, factors, p);
      add_outer(W, c, k_tile, RAW ? X_ROW : OPERAND_ROW, p.lane);
    }
  }
}
