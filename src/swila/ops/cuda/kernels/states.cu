// The state at the start of every chunk, as operands, from those kept at the ends of segments: all segments at once.
// Only where a decay keeps the backward from walking the state back.
#include "decay.cuh"

constexpr int STAGE_K = 0, STAGE_D = C * X_ROW, STAGE_BYTES = STAGE_D + C * J * D_ROW;
SHARED_BYTES(STAGE_BYTES + KEY_DECAY_BYTES)

struct Arguments {
  const TX* k;
  const TD* decay;
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
  const KeyDecay decay = key_decay_at(shared + STAGE_BYTES);
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
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int kt = 0; kt < KT; kt++)
#pragma unroll
      for (int i = 0; i < 4; i++) W[m][kt][i] = 0.f;
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

  for (i64 t0 = start; t0 < stop; t0 += C) {
    const int valid = stop - t0 < C ? (int)(stop - t0) : C;
    const i64 unit = chunk_row(a.bounds, span, (t0 - span.begin) / C, T) * warp_units + warp_unit;
    sync_block();
    fetch<1, K * (int)sizeof(TX), X_ROW>(shared + STAGE_K, (const char*)(a.k + (t0 * H + head) * K), H * K * sizeof(TX), 0, valid);
    fetch_decay(shared + STAGE_D, a.decay, t0 * H + head, H, valid);
    copy_commit();
    emit_state(a.chunk_W + unit * STATE_PIECES * 32, W, p.lane);
    A16 c[2];
#pragma unroll
    for (int m = 0; m < 2; m++) c[m] = load_kept((const u32*)(a.kept_c + unit * NS * 64), m * 16, p);
    copy_wait<0>();
    sync_block();
    prepare_end(decay, shared + STAGE_K, shared + STAGE_D);
    decay_state(W, decay, p);
    add_outer(W, c, decay.keys_end, p.lane);
  }
}
