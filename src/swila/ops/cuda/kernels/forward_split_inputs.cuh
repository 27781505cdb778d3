// What the products need of a chunk besides the state: inputs, Gram matrices, rates and priors, provided during the substitution of the
// chunk before.
#pragma once
#include "forward_split_tiles.cuh"

DEVICE char* stage_of(char* shared, int chunk) { return shared + chunk % STAGES * STAGE_EARLY; }
DEVICE char* early_of(char* shared, int chunk) { return shared + AT_EARLY + (chunk & 1) * EARLY_BYTES - STAGE_EARLY; }
DEVICE char* grams_of(char* shared, int chunk) { return shared + AT_GRAMS + (chunk & 1) * GRAMS; }

// Gram matrices of a chunk, as the registers that all will use them in: A, keys of this chunk; P, queries and keys of this chunk; X, keys of
// this chunk and of the one before.
enum Gram { GRAM_A, GRAM_P, GRAM_X };
DEVICE void add_gram(float (&m)[2][4], const A16& rows, const A16& columns) {
  product(m[0], rows, half_of(columns, 0)), product(m[1], rows, half_of(columns, 1));
}
DEVICE void store_gram(Gram which, float (&m)[2][4], char* to, const Place& p) {
  if (which == GRAM_A) {  // readers of this chunk, writers of this chunk; symmetric
    float* gram = (float*)(to + 2 * 32 * 16) + p.row * C + p.quad * 2;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 2; i++) *(float2_*)&gram[i * 8 * C + h * 8] = {SCALE * m[h][2 * i], SCALE * m[h][2 * i + 1]};
    return;
  }
  if (which == GRAM_P) mask(m, 0, p);
  const A16 x = as_rows(m[0], m[1]);
  ((uint4_*)(to + (which == GRAM_X ? 32 * 16 : 0)))[p.lane] = {x.x[0][0], x.x[0][1], x.x[0][2], x.x[0][3]};
}
// All by one warp: their products do not wait for each other.
DEVICE void make_grams(char* shared, int chunk, const Place& p) {
  const char *now = stage_of(shared, chunk), *last = stage_of(shared, chunk + STAGES - 1);
  float A[2][4] = {}, P[2][4] = {}, X[2][4] = {};
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    const A16 k = load_rows(now + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    const A16 q = load_rows(now + STAGE_Q, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    const A16 before = load_rows(last + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    add_gram(A, k, k), add_gram(P, q, k), add_gram(X, k, before);
  }
  char* to = grams_of(shared, chunk);
  store_gram(GRAM_A, A, to, p), store_gram(GRAM_P, P, to, p), store_gram(GRAM_X, X, to, p);
}
// One by each of three warps that multiply. These share their schedulers with the mixing warps, which have less to do than those that
// substitute.
template <Gram WHICH> DEVICE void make_gram(char* shared, int chunk, const Place& p) {
  const char *now = stage_of(shared, chunk), *last = stage_of(shared, chunk + STAGES - 1);
  float m[2][4] = {};
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    const A16 rows = load_rows(now + (WHICH == GRAM_P ? STAGE_Q : STAGE_K), OPERAND_TILE, X_ROW, ks * 16, p.lane);
    const A16 columns = WHICH == GRAM_A ? rows : load_rows((WHICH == GRAM_X ? last : now) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    add_gram(m, rows, columns);
  }
  store_gram(WHICH, m, grams_of(shared, chunk), p);
}
DEVICE void make_grams_together(char* shared, int chunk, const Place& p) {
  static_assert(PROVIDERS || NW == 8, "warps 2, 3 and 6 multiply");
  if (p.warp == 2) make_gram<GRAM_A>(shared, chunk, p);
  if (p.warp == 3) make_gram<GRAM_P>(shared, chunk, p);
  if (p.warp == 6) make_gram<GRAM_X>(shared, chunk, p);
}
// Rates, for scaled errors, and priors, of some rows of a warp's tokens and output dims; with a gate its share of both.
template <int ROWS> DEVICE void give_rates(const char* s, char* given, int first, const Place& p) {
  Vector rate[ROWS][DB][2] = {}, prior[ROWS][DB][2] = {};
  float g[ROWS][DB][2];
#pragma unroll
  for (int h = 0; h < ROWS; h++)  // all loads before any store: a load does not overtake a store that may alias it
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = (first + h) * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
      float x[JT], y[JT];
      if constexpr (KEY_GATE || !NORMALIZE) prior_of(x, y, s + STAGE_LK, t, b, p); else logits_of(x, y, s + STAGE_LK, t, b, p);
      g[h][b][0] = g[h][b][1] = 1.f;
      if (KEY_GATE) load2((const TB*)(s + STAGE_GK + t * B_ROW) + d, g[h][b][0], g[h][b][1]);
#pragma unroll
      for (int j = 0; j < J; j++) {
        float left, right;
        load2((const TB*)(s + STAGE_BETA + t * BETA_TOKEN + j * B_ROW) + d, left, right);
        rate[h][b][0].x[j] = UNSCALE * left, rate[h][b][1].x[j] = UNSCALE * right;
        prior[h][b][0].x[j] = KEY_GATE ? g[h][b][0] * x[j] : x[j], prior[h][b][1].x[j] = KEY_GATE ? g[h][b][1] * y[j] : y[j];
      }
    }
#pragma unroll
  for (int h = 0; h < ROWS; h++)
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = (first + h) * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        *(Vector*)(given + RATE + vector_at(t, d + e)) = rate[h][b][e];
        *(Vector*)(given + PRIOR + vector_at(t, d + e)) = prior[h][b][e];
      }
      if (KEY_GATE) *(float2_*)(given + STAY + (t * GATE_ROW + d) * 4) = {1.f - g[h][b][0], 1.f - g[h][b][1]};
    }
}
DEVICE void give_rates(char* shared, int chunk, const Place& p) {
  if (SHARES_GIVEN && chunk > 1) await(SHARES_USED + (chunk & 1), SHARE_USERS);  // their place had shares of two chunks ago
  const char* s = early_of(shared, chunk);
  char* given = shared + AT_GIVEN + (chunk & 1) * GIVEN;
  constexpr int ROWS = KEY_GATE ? 1 : 2;  // with a gate half the code, for the instruction cache
#pragma unroll 1
  for (int first = 0; first < 2; first += ROWS) give_rates<ROWS>(s, given, first, p);
}

// The inputs of chunk after chunk, fetched by a number of threads.
template <int THREADS> struct Chunks {
  Fetch<THREADS> pieces;
  i64 row;  // of the chunk that is fetched next
  int tail;
  DEVICE Chunks(const Arguments& a, const Work& w, u32 thread)
      : pieces(a.H, thread), row(w.span.begin * a.H + w.head), tail((int)(w.span.end - w.span.begin - (i64)(w.chunks - 1) * C)) {}
  DEVICE void fetch(const Arguments& a, char* shared, const Work& w, int chunk) {
    const int valid = chunk >= w.chunks ? 0 : chunk == w.chunks - 1 ? tail : C;
    pieces.parted(a, stage_of(shared, chunk), early_of(shared, chunk) + STAGE_EARLY, row, valid, w.vt);
    row += C * a.H;
  }
};

// The warp that provides.
DEVICE void provide(const Arguments& a, char* shared, const Work& w, Place p) {
  p.warp = 0;  // of the single one that multiplies, where it makes rates
  Chunks<32> chunks(a, w, (u32)p.lane);
  if (K_PADDED) await(AMONG_PRODUCTS, WITH_PROVIDER);
  chunks.fetch(a, shared, w, 0), chunks.fetch(a, shared, w, 1);
  copy_wait<1>();
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  make_grams(shared, 0, p);  // its X, with a chunk that is not there, is not used
  if (RATES_PROVIDED) give_rates(shared, 0, p);
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    copy_wait<0>();
    await(AMONG_PRODUCTS, WITH_PROVIDER);
    chunks.fetch(a, shared, w, chunk + 2);
    make_grams(shared, chunk + 1, p);
    if (RATES_PROVIDED) give_rates(shared, chunk + 1, p);
    announce(WRITTEN_ALL, ALL_BUT_MIXERS);
  }
  copy_wait<0>();
}
