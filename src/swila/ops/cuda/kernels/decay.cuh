// Decays by key dim inside a chunk, without overflow: every pair of tokens is split at a token between them, so that
// both factors of its decay are at most one. Level L has blocks of 2^L tokens, and splits those pairs whose reader is in
// an odd block and whose writer is in the even one before it: four levels split all pairs of 16 tokens.
#pragma once
#include "layout.cuh"

// One channel, of key dims or of columns, over the 16 tokens of a chunk.
struct Channel {
  float pre[C];  // product of the decays from the start of the block up to and with this token's
  float suf[C];  // product of those of the tokens after this one to the end of the block

  DEVICE void load(const char* tile, int j, int dim) {
#pragma unroll
    for (int t = 0; t < C; t++) {
      pre[t] = ex2(LOG2E * to_float(*(const TD*)(tile + (t * J + j) * D_ROW + dim * sizeof(TD))));
      suf[t] = 1.f;
    }
  }
  DEVICE void load(const float (&alpha)[C]) {
#pragma unroll
    for (int t = 0; t < C; t++) pre[t] = alpha[t], suf[t] = 1.f;
  }
  // What a reader of errors at token t sees of the blocks before its own, inside its own block.
  DEVICE float read(int t, int level) const {
    if (!POST) return pre[t];
    return t % (1 << level) == 0 ? 1.f : pre[t - 1];
  }
  // Blocks twice as long.
  DEVICE void widen(int level) {
    int size = 1 << level;
#pragma unroll
    for (int b = 0; b < C; b += 2 * size) {
      float early = pre[b + size - 1], late = pre[b + 2 * size - 1];
#pragma unroll
      for (int i = 0; i < size; i++) pre[b + size + i] *= early, suf[b + i] *= late;
    }
  }
};
DEVICE bool is_late(int t, int level) { return (t >> level) & 1; }
DEVICE bool is_split(int t, int s, int level) { return is_late(t, level) && (s >> level) == (t >> level) - 1; }

constexpr int GROUP_TILE = NS * OPERAND_TILE;
constexpr int LEVEL_BYTES = J * 2 * GROUP_TILE;  // keys and queries of one level
constexpr int GRAM_ROW = PAIR_ROW, GRAM_PLANE = C * GRAM_ROW, GRAM_TILE = NS * GRAM_PLANE;

// What the products of a chunk need, ready for use. Made by all threads of a block, for all chunks at once, in prepare.cu.
struct KeyDecay {
  char *keys_u, *queries, *keys_end, *A, *P;  // operands [J][plane][16, ..]
  float *total, *blocks;  // [J, K]; diagonal blocks of A, [J][half][writer][reader], then the same by reader
};
constexpr int KEY_DECAY_BYTES = BY_KEY ? 3 * J * GROUP_TILE + 2 * J * GRAM_TILE + J * KP * 4 + J * 4 * 64 * 4 : 0;
DEVICE KeyDecay key_decay_at(char* p) {
  KeyDecay d;
  d.keys_u = p, p += J * GROUP_TILE;
  d.queries = p, p += J * GROUP_TILE;
  d.keys_end = p, p += J * GROUP_TILE;
  d.A = p, p += J * GRAM_TILE;
  d.P = p, p += J * GRAM_TILE;
  d.total = (float*)p, p += J * KP * 4;
  d.blocks = (float*)p;
  return d;
}
// Fetch it for one chunk, from where it lies as it will be used; zeros for a chunk that is not there.
DEVICE void fetch_prepared(char* to, const uint4_* prepared, i64 unit, bool there) {
#pragma unroll
  for (int from = 0; from < KEY_DECAY_BYTES / 16; from += NT) {
    int i = from + (int)threadIdx.x;
    if (i < KEY_DECAY_BYTES / 16) copy_async(to + i * 16, prepared + (there ? unit * (KEY_DECAY_BYTES / 16) + i : 0), there);
  }
}
constexpr int CHANNELS = (J * KP + NT - 1) / NT;  // per thread

DEVICE void put_gram(char* tile, int t, int s, float x) {
  Pair y = pack(x, 0.f);
#pragma unroll
  for (int i = 0; i < NS; i++) *(u16*)(tile + i * GRAM_PLANE + t * GRAM_ROW + s * 2) = (u16)y.x[i];
}

// The masked product of one level, or with level -1 the diagonal of q k^T, into a Gram matrix of mixture j.
DEVICE void gram_level(const KeyDecay& d, const char* rows, const char* columns, int j, int level, bool of_keys, int lane) {
  float m[2][4] = {};
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    A16 x = load_rows(rows, OPERAND_TILE, OPERAND_ROW, ks * 16, lane);
    A16 y = load_rows(columns, OPERAND_TILE, OPERAND_ROW, ks * 16, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) product(m[h], x, half_of(y, h));
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int t = (lane >> 2) + (i >> 1) * 8, s = h * 8 + (lane & 3) * 2 + (i & 1);
      if (level < 0 ? t == s : is_split(t, s, level)) {
        put_gram((of_keys ? d.A : d.P) + j * GRAM_TILE, t, s, m[h][i]);
        if (of_keys && t / 8 == s / 8) {
          d.blocks[(j * 2 + t / 8) * 64 + (s % 8) * 8 + t % 8] = m[h][i];
          d.blocks[J * 128 + (j * 2 + t / 8) * 64 + (t % 8) * 8 + s % 8] = m[h][i];
        }
      }
    }
}

// Everything of `KeyDecay` from the raw tiles of a chunk; `levels` is for two levels at a time.
DEVICE void prepare(const KeyDecay& d, char* levels, const char* k_raw, const char* q_raw, const char* decay_raw, const Place& p) {
  int tid = (int)threadIdx.x;
  Channel channels[CHANNELS];
#pragma unroll
  for (int i = 0; i < CHANNELS; i++) {
    int c = tid + i * NT;
    if (c < J * KP) channels[i].load(decay_raw, c / KP, c % KP);
  }
#pragma unroll
  for (int level = -1; level < 4; level++) {
    char* buffer = levels + (level & 1) * LEVEL_BYTES;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
      int c = tid + i * NT, j = c / KP, dim = c % KP;
      if (c < J * KP) {
#pragma unroll
        for (int t = 0; t < C; t++) {
          float k = to_float(*(const TX*)(k_raw + t * X_ROW + dim * sizeof(TX)));
          float q = to_float(*(const TX*)(q_raw + t * X_ROW + dim * sizeof(TX)));
          bool late = level < 0 || is_late(t, level);
          float read = level < 0 ? 1.f : channels[i].read(t, level), write = level < 0 ? 1.f : channels[i].suf[t];
          put_operand(buffer + (j * 2) * GROUP_TILE, t, dim, k * (late ? read : write));
          put_operand(buffer + (j * 2 + 1) * GROUP_TILE, t, dim, late ? q * (level < 0 ? 1.f : channels[i].pre[t]) : 0.f);
        }
        if (level >= 0) channels[i].widen(level);
      }
    }
    sync_block();
    for (int task = p.warp; task < 2 * J; task += NW) {
      int j = task >> 1;
      bool of_keys = task & 1;
      const char* keys = buffer + (j * 2) * GROUP_TILE;
      if (level >= 0 || !of_keys) gram_level(d, of_keys ? keys : keys + GROUP_TILE, keys, j, level, of_keys, p.lane);
    }
  }
#pragma unroll
  for (int i = 0; i < CHANNELS; i++) {
    int c = tid + i * NT, j = c / KP, dim = c % KP;
    if (c < J * KP) {
#pragma unroll
      for (int t = 0; t < C; t++) {
        float k = to_float(*(const TX*)(k_raw + t * X_ROW + dim * sizeof(TX)));
        float q = to_float(*(const TX*)(q_raw + t * X_ROW + dim * sizeof(TX)));
        put_operand(d.keys_u + j * GROUP_TILE, t, dim, k * channels[i].read(t, 4));
        put_operand(d.queries + j * GROUP_TILE, t, dim, q * channels[i].pre[t]);
        put_operand(d.keys_end + j * GROUP_TILE, t, dim, k * channels[i].suf[t]);
      }
      d.total[j * KP + dim] = channels[i].pre[C - 1];
    }
  }
  sync_block();
}
// Gram matrices have zeros where nothing is ever written.
DEVICE void clear(const KeyDecay& d) {
  for (int i = (int)threadIdx.x; i < 2 * J * GRAM_TILE / 4; i += NT) ((u32*)d.A)[i] = 0;
  for (int i = (int)threadIdx.x; i < J * 256; i += NT) d.blocks[i] = 0.f;
}

// The decays of a chunk into a tile, where they are by key or output dim.
typedef Pieces<J, (DECAY == 1 ? K : VB) * (int)sizeof(TD), D_ROW> DecayPieces;
constexpr int DECAY_WIDTH = DECAY == 1 ? K : V;
DEVICE DecayPieces decay_pieces(i64 H) { return DecayPieces(H * J * DECAY_WIDTH * sizeof(TD), DECAY_WIDTH * sizeof(TD)); }
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
        const float* total = d.total + group_of(2 * m + h) * KP + kt * 8 + p.quad * 2;
        W[m][kt][2 * h] *= total[0], W[m][kt][2 * h + 1] *= total[1];
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
