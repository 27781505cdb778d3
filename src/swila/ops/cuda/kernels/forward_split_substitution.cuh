#pragma once
#include "forward_split_tiles.cuh"

// Shares are computed relative to the likelihood of the first mixture: the largest need not be found in the chain from token to token. Where
// a sum of them is out of bounds, the first one is far from likely, or the likeliest has a tiny prior, and the chunk is done again with the
// largest. Not where shares have taken the place of the priors, so that it cannot be done again. Plain shares beside eight multiplying warps
// were slower in this way, although the chain is shorter: there the issue of instructions is the limit.
constexpr bool BY_FIRST_MIXTURE = NORMALIZE && !SHARES_GIVEN && (KEY_GATE || NW < 8);
// What a token writes is multiplied by its share before the inverse sum: errors up to 1e8 stay finite. So far from likely is a mixture with
// an error of 11 beside one without.
constexpr float MOST = KEY_GATE ? 1e36f : 1e30f, FEWEST = 1.f;
constexpr float FIRST = 30.f, LIKELIHOOD_OF_FIRST = 1 << 30;  // temporal likelihoods are then carried times 2 to this
template <bool B> struct Flag { static constexpr bool value = B; };

// Shares r_j ∝ 2^(prior_j - x_j²), still to be multiplied by what is returned, and their entropy.
DEVICE float unscaled_shares(float (&r)[J], const Vector& prior, const float (&x)[J], float& entropy) {
#pragma unroll
  for (int j = 0; j < J; j++) r[j] = prior.x[j] - x[j] * x[j];
  return unscaled_softmax(r, entropy);
}
// The same relative to the first mixture, with the largest sum so far; none is below one.
DEVICE float shares_by_first(float (&r)[J], const Vector& prior, const float (&x)[J], float& entropy, float& most) {
  float sum = 1.f, product = 0.f;
  r[0] = 1.f;
#pragma unroll
  for (int j = 1; j < J; j++) {
    const float z = (prior.x[j] - prior.x[0]) + x[0] * x[0] - x[j] * x[j];
    r[j] = ex2(z), sum += r[j];
    if (STATS) product += r[j] * z;
  }
  most = max_nan(sum, most);
  const float inverse = rcp(sum);
  if (STATS) entropy = softmax_entropy(sum, product, inverse);
  return inverse;
}
// Likelihoods over that of the first mixture.
DEVICE void likelihoods_by_first(float (&y)[J], const float (&x)[J]) {
  y[0] = LIKELIHOOD_OF_FIRST;
#pragma unroll
  for (int j = 1; j < J; j++) y[j] = ex2(x[0] * x[0] + FIRST - x[j] * x[j]);
}
// The same over the largest of likelihood times g π.
DEVICE void likelihoods_by_largest(float (&y)[J], const float (&x)[J], const Vector& prior) {
#pragma unroll
  for (int j = 0; j < J; j++) y[j] = log_bound(prior.x[j]) - x[j] * x[j];
  const float most = largest(y) + HEADROOM;
#pragma unroll
  for (int j = 0; j < J; j++) y[j] = ex2(-x[j] * x[j] - most);
}

// What several tokens write, pairs of them.
constexpr int TOGETHER = PART < 8 ? PART : 8;
DEVICE void store_written(char* to, const u32 (&pairs)[TOGETHER / 2]) {
  if constexpr (TOGETHER == 8) *(uint4_*)to = {pairs[0], pairs[1], pairs[2], pairs[3]};
  if constexpr (TOGETHER == 4) *(u64*)to = (u64)pairs[1] << 32 | pairs[0];
}

// One output dim per lane: the substitution.
DEVICE void substitute(const Arguments& a, char* shared, const Work& w, int solver, int lane) {
  const OutputDim o(w, solver * 32 + lane);
  const bool alive = o.alive;
  const int dim = o.dim, warp = o.warp, column = o.column;
  const i64 at = o.at;
  float r[J], used[J] = {}, spread = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) r[j] = KEY_GATE && a.r && alive ? a.r[at + j * V] : 1.f / J;
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    char* c_tile = shared + AT_C + warp * PAIR_PLANE;
    char* given = shared + AT_GIVEN + (chunk & 1) * GIVEN;
    const i64 t0 = w.span.begin + (i64)chunk * C;
    const int valid = w.span.end - t0 < C ? (int)(w.span.end - t0) : C;
    float* kept = nullptr;
    if (KEY_GATE && a.kept_c && alive)
      kept = a.kept_mix + (chunk_row(a.bounds, w.span, chunk, a.T) * w.warp_units + w.first_unit + warp) * KEPT_MIX;
    auto keep = [&](int at) {
#pragma unroll
      for (int j = 0; j < JP; j++) kept[at + kept_lane(j, o.column)] = j < J ? r[j < J ? j : 0] : 0.f;
    };
    if (kept) keep(0);
    await(PREDICTED, WITH_SOLVERS);
    float r_before[J], used_before[J], most = 0.f, fewest = FEWEST;
    const float spread_before = spread;
#pragma unroll
    for (int j = 0; j < J; j++) r_before[j] = r[j], used_before[j] = used[j];
    auto substitute_chunk = [&](auto by_first) {
      constexpr bool BY_FIRST = decltype(by_first)::value;
      char *at_c = c_tile, *at_given = given;
      const char* stays = given + STAY;
      const float* gram = (const float*)(shared + AT_GRAMS + (chunk & 1) * GRAMS + 2 * 32 * 16);
      float x[C][J], before[J];
#pragma unroll
      for (int t = 0; t < C; t++) {
        const Vector error = *(const Vector*)(shared + AT_U + vector_at(t, dim));
#pragma unroll
        for (int j = 0; j < J; j++) x[t][j] = error.x[j];
      }
#pragma unroll 1
      for (int part = 0; part < PARTS; part++) {
        const int valid_part = valid - part * PART;
        u32 written[J][TOGETHER / 2];
#pragma unroll
        for (int t = 0; t < PART; t++) {
          if (part * PART + t == C / 2 && kept) keep(KEPT_MIDDLE);
          const Vector rate = *(const Vector*)(at_given + RATE + vector_at(t, dim));
          Vector prior = {};
          if (VB >= 32 || !SHARES_GIVEN || alive) prior = *(const Vector*)(at_given + PRIOR + vector_at(t, dim));  // shares may be there by now
          const float stay = KEY_GATE ? *(const float*)(stays + (t * GATE_ROW + dim) * 4) : 0.f;
          float c[J], inverse = 1.f, entropy;  // the inverse is multiplied in last: the next token waits for it
#pragma unroll
          for (int j = 0; j < J; j++) c[j] = rate.x[j] * x[t][j];
          if constexpr (NORMALIZE && KEY_GATE) {  // without a logarithm of the priors, which would be in the chain as well
            float likelihood[J], sum;
            if constexpr (BY_FIRST) likelihoods_by_first(likelihood, x[t]); else likelihoods_by_largest(likelihood, x[t], prior);
#pragma unroll
            for (int j = 0; j < J; j++) {
              r[j] = max_nan(stay * r[j] + prior.x[j], TINY) * likelihood[j];
              sum = j ? sum + r[j] : r[j];
            }
            if (BY_FIRST) most = max_nan(sum, most), fewest = min_nan(sum, fewest);
            inverse = rcp(sum);
          } else if constexpr (NORMALIZE) {
            if constexpr (BY_FIRST) inverse = shares_by_first(r, prior, x[t], entropy, most); else inverse = unscaled_shares(r, prior, x[t], entropy);
          } else {
#pragma unroll
            for (int j = 0; j < J; j++) {
              const float p = KEY_GATE ? max_nan(stay * r[j] + prior.x[j], TINY) : prior.x[j];
              r[j] = p * ex2(-x[t][j] * x[t][j]);
            }
          }
#pragma unroll
          for (int j = 0; j < J; j++) {
            if constexpr (STATS || KEY_GATE) {
              r[j] *= inverse, c[j] *= r[j];
            } else {
              c[j] *= r[j], c[j] *= inverse;
            }
            if (OWN_STATS && t < valid_part) used[j] += r[j];
          }
          if (OWN_STATS && t < valid_part) spread += NORMALIZE ? entropy : entropy_of(r);
          if constexpr (SHARES_GIVEN) {
            Vector share = {};
#pragma unroll
            for (int j = 0; j < J; j++) share.x[j] = r[j];
            if (alive) *(Vector*)(at_given + PRIOR + vector_at(t, dim)) = share;
          }
          // Of the last part, what follows the chunk is computed too and not used: without a branch, in the time of the chain.
#pragma unroll
          for (int i = 0; i < C; i += 4)
            if (i + 3 > t) {
              float4_ row = *(const float4_*)&gram[t * C + i];
#pragma unroll
              for (int e = 0; e < 4; e++)
#pragma unroll
                for (int j = 0; j < J; j++)
                  if (i + e > t) x[i + e][j] -= row.x[e] * c[j];
            }
#pragma unroll
          for (int j = 0; j < J; j++) {
            if (t % 2) written[j][t % TOGETHER / 2] = pack_bf16(before[j], c[j]);
            before[j] = c[j];
            if (t % TOGETHER == TOGETHER - 1 && alive) store_written(at_c + pair_row(j * DPW + column) + t / TOGETHER * (2 * TOGETHER), written[j]);
          }
        }
        at_given += PART * VB * JP * 4, stays += PART * GATE_ROW * 4, gram += PART * C + PART, at_c += PART * 2;
#pragma unroll
        for (int t = 0; t + PART < C; t++)
#pragma unroll
          for (int j = 0; j < J; j++) x[t][j] = x[t + PART][j];
      }
    };
    substitute_chunk(Flag<BY_FIRST_MIXTURE>());
    if (BY_FIRST_MIXTURE && __builtin_expect(!(most <= MOST && fewest >= FEWEST), 0)) {
      spread = spread_before;
#pragma unroll
      for (int j = 0; j < J; j++) r[j] = r_before[j], used[j] = used_before[j];
      substitute_chunk(Flag<false>());
    }
    if (BY_FIRST_MIXTURE) sync_warp();
    announce(WRITTEN_ALL, ALL_BUT_MIXERS);
    if (SHARES_GIVEN) announce(SHARES + (chunk & 1), 32 * (SOLVERS + MIXERS));
  }
  if (alive) {
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (KEY_GATE && a.r_out) a.r_out[at + j * V] = r[j];
      if (OWN_STATS) a.stats[at + j * V] = used[j], a.stats[a.N * a.H * J * V + at + j * V] = j ? 0.f : spread;  // of all mixtures
    }
  }
}
