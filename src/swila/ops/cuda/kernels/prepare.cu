// Decays by key dim: what the products of every chunk need, for all chunks at once.
#include "decay.cuh"

constexpr int RAW_K = 0, RAW_Q = C * X_ROW, RAW_D = RAW_Q + C * X_ROW, LEVELS = RAW_D + DECAY_TILE;
constexpr int READY = LEVELS + 2 * LEVEL_BYTES;
NEEDS(READY + KEY_DECAY_BYTES, NT)

struct Arguments {
  const TX *q, *k;
  const TD* decay;
  const INDEX* bounds;
  uint4_* prepared;
  i64 N, T, H;
};

KERNEL void __launch_bounds__(NT, 1) swila_prepare(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  const i64 H = a.H, head = blockIdx.x % H, item = blockIdx.x / H;
  Span span;
  const i64 chunk = chunk_of(a.bounds, item, a.N, a.T, span);
  if (chunk < 0) return;
  const i64 t0 = span.begin + chunk * C, row = t0 * H + head;
  const int valid = span.end - t0 < C ? (int)(span.end - t0) : C;
  const KeyDecay d = key_decay_at(shared + READY);
  if constexpr (K_PADDED) {
    for (int i = (int)threadIdx.x; i < LEVELS / 4; i += NT) ((u32*)shared)[i] = 0;
    sync_block();
  }
  const Pieces<1, K * (int)sizeof(TX), X_ROW> keys(H * K * sizeof(TX), 0);
  keys.copy(shared + RAW_K, a.k + row * K, valid);
  keys.copy(shared + RAW_Q, a.q + row * K, valid);
  fetch_decay(decay_pieces(H), shared + RAW_D, a.decay, row, 0, valid);
  copy_commit();
  clear(d);
  copy_wait<0>();
  sync_block();
  prepare(d, shared + LEVELS, shared + RAW_K, shared + RAW_Q, shared + RAW_D, p);
  uint4_* to = a.prepared + (item * H + head) * (KEY_DECAY_BYTES / 16);
  for (int i = (int)threadIdx.x; i < KEY_DECAY_BYTES / 16; i += NT) to[i] = ((const uint4_*)(shared + READY))[i];
}
