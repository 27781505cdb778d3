// The state at the start of every chunk, as operands of products, from the states kept at the ends of segments; all segments at
// once. Only with a decay: without one the backward recovers the states itself.
#include "decay.cuh"

constexpr int STAGE_K = 0, STAGE_D = C * X_ROW, STAGE_BYTES = BY_KEY ? READY_STATE_BYTES : STAGE_D + DECAY_TILE;
constexpr int WARP_BYTES = BY_COLUMN ? NS * PAIR_PLANE + 32 * 4 : 0, OPERANDS = BY_COLUMN && !RAW ? NS * OPERAND_TILE : 0;
NEEDS(2 * STAGE_BYTES + OPERANDS + NW * WARP_BYTES, NT)

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

KERNEL void __launch_bounds__(NT, KP <= 64 ? 2 : 1) swila_states(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  char *operands = shared + 2 * STAGE_BYTES, *c_tile = operands + OPERANDS + p.warp * WARP_BYTES;
  float* factors = (float*)(c_tile + NS * PAIR_PLANE);
  // 32 bits suffice for the number of blocks, and 64-bit divisions are slow.
  const u32 block = blockIdx.x / VT, heads = (u32)a.H;
  const i64 H = a.H, T = a.T, head = block % heads, item = block / heads;
  const int vt = (int)(blockIdx.x % VT), first = vt * VB + p.warp * DPW;
  Span span;
  i64 segment = 0;
  if (!a.bounds) {
    const u32 per = (u32)((T + SEGMENT - 1) / SEGMENT);
    span = sequence(nullptr, (u32)item / per, T), segment = (u32)item % per;
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
  if (start >= stop) return;

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
  if constexpr (K_PADDED && !BY_KEY) {  // the key dims that are not there
    for (int i = (int)threadIdx.x; i < 2 * STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;
    sync_block();
  }

  const Pieces<1, K * (int)sizeof(TX), X_ROW> key_pieces(H * K * sizeof(TX), 0);
  const DecayPieces pieces = decay_pieces(H);
  // Chunks of a segment have rows one after the other.
  const i64 row = chunk_row(a.bounds, span, segment * (SEGMENT / C), T), unit = row * warp_units + warp_unit;
  const uint4_* ready = a.prepared + (row * H + head) * (KEY_DECAY_BYTES / 16);
  uint4_* to = a.chunk_W + unit * STATE_PIECES * 32 + p.lane;
  const uint4_* kept = a.kept_c + unit * NS * 64;
  auto fetch = [&](char* stage, i64 t0) {
    const int valid = stop - t0 < C ? (int)(stop - t0) : C;
    if constexpr (BY_KEY) {
      fetch_prepared<READY_STATE, READY_STATE_BYTES>(stage, ready, 0, true);
      ready += H * (KEY_DECAY_BYTES / 16);
    } else {
      key_pieces.copy(stage + STAGE_K, a.k + (t0 * H + head) * K, valid);
      fetch_decay(pieces, stage + STAGE_D, a.decay, t0 * H + head, vt, valid);
    }
  };
  A16 c[2];  // what a chunk wrote
  const u32* next_kept = (const u32*)kept + p.row * 8 + p.quad;
  auto fetch_kept = [&]() {
    Place origin = p;
    origin.row = origin.quad = 0;
#pragma unroll
    for (int m = 0; m < 2; m++) c[m] = load_kept(next_kept, m * 16, origin);
    next_kept += warp_units * NS * 256;
  };
  fetch(shared, start), copy_commit();
  const int chunks = (int)((stop - start + C - 1) / C);
  for (int chunk = 0; chunk < chunks; chunk++) {
    const i64 t0 = start + chunk * C;
    char* stage = shared + (chunk & 1) * STAGE_BYTES;
    if constexpr (BY_KEY) fetch_kept();  // on its way while the state is emitted
    copy_wait<0>();
    sync_block();
    if (chunk + 1 < chunks) fetch(shared + (~chunk & 1) * STAGE_BYTES, t0 + C);
    copy_commit();
    emit_state(to, W, 0);
    to += warp_units * STATE_PIECES * 32;
    sync_warp();  // keeps the compiler from holding two states at once
    if constexpr (BY_KEY) {
      KeyDecay decay;
      decay.keys_end = stage, decay.total = (float*)(stage + J * GROUP_TILE);
      decay_state(W, decay, p);
      add_outer(W, c, decay.keys_end, OPERAND_ROW, p.lane);
    } else {
      const int valid = stop - t0 < C ? (int)(stop - t0) : C;
      float alpha[C], written[C], after = 1.f;
      load_kept_column(written, kept, p);
      kept += warp_units * NS * 64;
      load_decay(alpha, stage + STAGE_D, a.decay, t0 * H + head, H, valid, p);
#pragma unroll
      for (int t = C - 1; t >= 0; t--) written[t] *= after, after *= alpha[t];
      put_columns(c_tile, p, written);
      factors[p.column] = after;
      const char* k_tile = stage + STAGE_K;
      if constexpr (RAW) {
        sync_warp();
      } else {
        as_operands(operands, k_tile);
        k_tile = operands;
        sync_block();
      }
#pragma unroll
      for (int m = 0; m < 2; m++) c[m] = load_columns_operand(c_tile, m * 16, p.lane);
      decay_rows(W, factors, p);
      add_outer(W, c, k_tile, RAW ? X_ROW : OPERAND_ROW, p.lane);
    }
  }
}
