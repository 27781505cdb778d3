// What the products need of a chunk besides the state: inputs, Gram matrices, rates and priors, provided during the substitution of the
// chunk before.
#pragma once
#include "forward_split_tiles.cuh"

DEVICE char* stage_of(char* shared, int chunk) { return shared + chunk % STAGES * STAGE_EARLY; }
DEVICE char* early_of(char* shared, int chunk) { return shared + AT_EARLY + (chunk & 1) * EARLY_BYTES - STAGE_EARLY; }
DEVICE char* grams_of(char* shared, int chunk) { return shared + AT_GRAMS + (chunk & 1) * GRAMS; }

// Gram matrices of a chunk, as the registers that all will use them in. Their products do not wait for each other.
DEVICE void make_grams(char* shared, int chunk, const Place& p) {
  const char *now = stage_of(shared, chunk), *last = stage_of(shared, chunk + STAGES - 1);
  float A[2][4] = {}, P[2][4] = {}, X[2][4] = {};
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    const A16 k = load_rows(now + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    const A16 q = load_rows(now + STAGE_Q, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    const A16 before = load_rows(last + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
    for (int h = 0; h < 2; h++) product(A[h], k, half_of(k, h)), product(P[h], q, half_of(k, h)), product(X[h], k, half_of(before, h));
  }
  char* to = grams_of(shared, chunk);
  float* gram = (float*)(to + 2 * 32 * 16) + p.row * C + p.quad * 2;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 2; i++)  // A: readers of this chunk, writers of this chunk; symmetric
      *(float2_*)&gram[i * 8 * C + h * 8] = {SCALE * A[h][2 * i], SCALE * A[h][2 * i + 1]};
  mask(P, 0, p);  // P: queries and keys of this chunk, X: keys of this and of the one before
  const A16 p_rows = as_rows(P[0], P[1]), x_rows = as_rows(X[0], X[1]);
  ((uint4_*)to)[p.lane] = {p_rows.x[0][0], p_rows.x[0][1], p_rows.x[0][2], p_rows.x[0][3]};
  ((uint4_*)(to + 32 * 16))[p.lane] = {x_rows.x[0][0], x_rows.x[0][1], x_rows.x[0][2], x_rows.x[0][3]};
}
// Rates, for scaled errors, and priors, of a warp's output dims; with a gate its share of both.
DEVICE void give_rates(char* shared, int chunk, const Place& p) {
  if (SHARES_GIVEN && chunk > 1) await(SHARES_USED + (chunk & 1), SHARE_USERS);  // their place had shares of two chunks ago
  const char* s = early_of(shared, chunk);
  char* given = shared + AT_GIVEN + (chunk & 1) * GIVEN;
  Vector rate[2][DB][2] = {}, prior[2][DB][2] = {};
  float g[2][DB][2];
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = h * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
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
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = h * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        *(Vector*)(given + RATE + vector_at(t, d + e)) = rate[h][b][e];
        *(Vector*)(given + PRIOR + vector_at(t, d + e)) = prior[h][b][e];
      }
      if (KEY_GATE) *(float2_*)(given + STAY + (t * GATE_ROW + d) * 4) = {1.f - g[h][b][0], 1.f - g[h][b][1]};
    }
}

// The warp that provides.
DEVICE void provide(const Arguments& a, char* shared, const Work& w, Place p) {
  p.warp = 0;  // of the single one that multiplies, where it makes rates
  const Fetch<32> pieces(a.H, (u32)p.lane);
  i64 row = w.span.begin * a.H + w.head;  // of the chunk that is fetched next
  const int tail = (int)(w.span.end - w.span.begin - (i64)(w.chunks - 1) * C);
  auto fetch = [&](int chunk) {
    const int valid = chunk >= w.chunks ? 0 : chunk == w.chunks - 1 ? tail : C;
    pieces.parted(a, stage_of(shared, chunk), early_of(shared, chunk) + STAGE_EARLY, row, valid, w.vt);
    row += C * a.H;
  };
  if (K_PADDED) await(AMONG_PRODUCTS, WITH_PROVIDER);
  fetch(0), fetch(1);
  copy_wait<1>();
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  make_grams(shared, 0, p);  // its X, with a chunk that is not there, is not used
  if (RATES_PROVIDED) give_rates(shared, 0, p);
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    copy_wait<0>();
    await(AMONG_PRODUCTS, WITH_PROVIDER);
    fetch(chunk + 2);
    make_grams(shared, chunk + 1, p);
    if (RATES_PROVIDED) give_rates(shared, chunk + 1, p);
    announce(WRITTEN_ALL, ALL_BUT_MIXERS);
  }
  copy_wait<0>();
}
