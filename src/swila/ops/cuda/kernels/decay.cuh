// Decays by key dim inside a chunk, without overflow: every pair of tokens is split at a token between them, so that
// both factors of its decay are at most one. Level L has blocks of 2^L tokens, and splits those pairs whose reader is in
// an odd block and whose writer is in the even one before it: four levels split all pairs of 16 tokens.
#pragma once
#include "state.cuh"

// One channel, of key dims or of columns, over the 16 tokens of a chunk or a half of them.
template <int N> struct ChannelOf {
  float pre[N];  // product of the decays from the start of the block up to and with this token's
  float suf[N];  // product of those of the tokens after this one to the end of the block

  DEVICE void load(const float (&alpha)[N]) {
#pragma unroll
    for (int t = 0; t < N; t++) pre[t] = alpha[t], suf[t] = 1.f;
  }
  // What a reader of errors at token t sees of the blocks before its own, inside its own block.
  DEVICE float read(int t, int level) const {
    if (!POST) return pre[t];
    return t % (1 << level) == 0 ? 1.f : pre[t > 0 ? t - 1 : 0];
  }
  // Blocks twice as long.
  DEVICE void widen(int level) {
    int size = 1 << level;
#pragma unroll
    for (int b = 0; b < N; b += 2 * size) {
      float early = pre[b + size - 1], late = pre[b + 2 * size - 1];
#pragma unroll
      for (int i = 0; i < size; i++) pre[b + size + i] *= early, suf[b + i] *= late;
    }
  }
};
typedef ChannelOf<C> Channel;
DEVICE bool is_late(int t, int level) { return (t >> level) & 1; }
DEVICE bool is_split(int t, int s, int level) { return is_late(t, level) && (s >> level) == (t >> level) - 1; }

constexpr int GROUP_TILE = NS * OPERAND_TILE;
constexpr int GRAM_ROW = PAIR_ROW, GRAM_PLANE = C * GRAM_ROW, GRAM_TILE = NS * GRAM_PLANE;

// Decayed operands of a chunk's products, computed for all chunks at once by prepare.cu.
struct KeyDecay {
  char *keys_u, *queries, *keys_end, *A, *P;  // operands [J][plane][16, ..]
  float *total, *blocks;  // [J, K]; diagonal blocks of A, [J][half][writer][reader], then the same by reader
};
// Between the blocks of mixtures, which lanes read at once: they fall into different banks. Shorter than the blocks, for
// nobody reads the last row by writer or the first by reader.
constexpr int BLOCKS_STRIDE = 2 * 64 - 4;
// The part that takes a state to the chunk's end, and that of the Gram matrices.
constexpr int READY_STATE = 2 * J * GROUP_TILE, READY_STATE_BYTES = J * GROUP_TILE + J * KP * 4;
constexpr int READY_GRAMS = READY_STATE + READY_STATE_BYTES, READY_GRAMS_BYTES = 2 * J * GRAM_TILE + J * 4 * 64 * 4;
constexpr int KEY_DECAY_BYTES = BY_KEY ? READY_GRAMS + READY_GRAMS_BYTES : 0;
DEVICE KeyDecay key_decay_at(char* p) {
  KeyDecay d;
  d.keys_u = p, p += J * GROUP_TILE;
  d.queries = p, p += J * GROUP_TILE;
  d.keys_end = p, p += J * GROUP_TILE;
  d.total = (float*)p, p += J * KP * 4;
  d.A = p, p += J * GRAM_TILE;
  d.P = p, p += J * GRAM_TILE;
  d.blocks = (float*)p;
  return d;
}
// Copy them, or a part of them, for one chunk to shared memory; zeros for a chunk that does not exist.
template <int FROM = 0, int BYTES = KEY_DECAY_BYTES>
DEVICE void fetch_prepared(char* to, const uint4_* prepared, i64 unit, bool there) {
  const uint4_* from = prepared + (there ? unit * (KEY_DECAY_BYTES / 16) : 0) + FROM / 16 + threadIdx.x;
  to += (int)threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < BYTES / 16; i += NT)
    if (i + NT <= BYTES / 16 || i + (int)threadIdx.x < BYTES / 16) copy_async(to + i * 16, from + i, there);
}

// The decays of a chunk into a tile, where they are by key or output dim.
typedef Pieces<J, (DECAY == 1 ? K : VB) * (int)sizeof(TD), D_ROW> DecayPieces;
constexpr int DECAY_WIDTH = DECAY == 1 ? K : V;
DEVICE DecayPieces decay_pieces(i64 H, u32 thread = threadIdx.x) {
  return DecayPieces(H * J * DECAY_WIDTH * sizeof(TD), DECAY_WIDTH * sizeof(TD), thread);
}
DEVICE void fetch_decay(const DecayPieces& pieces, char* tile, const TD* decay, i64 row, int vt, int valid) {
  if constexpr (DECAY == 1 || DECAY == 2) pieces.copy(tile, decay + row * J * DECAY_WIDTH + (DECAY == 2 ? vt * VB : 0), valid);
}
// The decay of a lane's column at the 16 tokens of a chunk.
DEVICE void load_decay(float (&alpha)[C], const char* tile, const TD* decay, i64 row, i64 H, int valid, const Place& p) {
  if constexpr (DECAY == 2) load_column<TD, J>(alpha, tile, p);
#pragma unroll
  for (int t = 0; t < C; t++) {
    if (DECAY == 3) alpha[t] = t < valid && p.j < J ? to_float(decay[(row + t * H) * J + p.j]) : 0.f;
    alpha[t] = ex2(LOG2E * alpha[t]);
  }
}
constexpr int DECAY_TILE = DECAY == 1 || DECAY == 2 ? C * J * D_ROW : 0;
// W = Γ W + Σ x ⊗ y over the tokens of a chunk, for operands x [16 columns, tokens] and y in a tile per group.
DEVICE void decay_rows(float (&W)[2][KT][4], const float* factors, const Place& p) {  // by column
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float g = factors[m * 16 + (i >> 1) * 8 + p.row];
#pragma unroll
      for (int kt = 0; kt < KT; kt++) W[m][kt][i] *= g;
    }
}
DEVICE void decay_state(float (&W)[2][KT][4], const KeyDecay& d, const Place& p) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int kt = 0; kt < KT; kt++) {
        const float2_ total = *(const float2_*)&d.total[group_of(2 * m + h) * KP + kt * 8 + p.quad * 2];
        W[m][kt][2 * h] *= total.x[0], W[m][kt][2 * h + 1] *= total.x[1];
      }
}
DEVICE void add_outer(float (&W)[2][KT][4], const A16 (&x)[2], const char* tiles, int row, int lane) {
#pragma unroll
  for (int g = 0; g < NG; g++)
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      B16 y, z;
      load_transposed(y, z, tiles + g * GROUP_TILE, OPERAND_TILE, row, ks * 16, lane);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        bool low = group_of(2 * m) == g, high = group_of(2 * m + 1) == g;
        if (!low && !high) continue;
        A16 c = low && high ? x[m] : only_half(x[m], low ? 0 : 1);
        product(W[m][2 * ks], c, y), product(W[m][2 * ks + 1], c, z);
      }
    }
}
// The transpose of a [16, 16] tile as an operand.
DEVICE A16 load_rows_transposed(const char* tile, int plane_bytes, int row, int lane) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++)
    ldmatrix_t(a.x[s], tile + s * plane_bytes + ((lane & 7) + (lane >> 4) * 8) * row + ((lane >> 3) & 1) * 16);
  return a;
}
