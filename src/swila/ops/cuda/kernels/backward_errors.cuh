// The backward's errors and responsibilities, as the forward had them, from predictions U.
#pragma once
#include "backward.cuh"

// The responsibility at a token, from its error, prior, gate and the responsibility at the token before.
DEVICE float share_of(float error, float pi, float g, float last, const Place& p) {
  const float y = -0.5f * LOG2E * error * error;
  if constexpr (KEY_GATE) {
    const float prior = max_nan((1.f - g) * last + g * pi, TINY);
    last = NORMALIZE ? share(DEAD && !p.alive ? NEVER : lg2(prior) + y) : prior * ex2(y);
  } else if constexpr (NORMALIZE) {
    last = J == 1 ? 1.f : share(log_prior(pi, p) + y);
  } else {
    last = pi * ex2(y);
  }
  return DEAD && !p.alive ? 0.f : last;
}
// By token, a lane all mixtures of its output dims, a row of the tiles of products at a time; into their tiles. Where each
// responsibility needs the one before, the router's priors, and in the place of responsibilities what is left to multiply: likelihoods
// over the largest of likelihood times g π.
struct ErrorsByToken {
  float x[DB][JT], y[DB][JT], v[DB][2], g[DB][2];
  DEVICE void load(const Tiles& tiles, int h, const Place& p) {
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
      v[b][0] = v[b][1] = g[b][0] = g[b][1] = 0.f;
      if (V >= DPW || d < V) load2((const TX*)(tiles.stage + STAGE_V + t * V_ROW) + p.warp * DPW + d, v[b][0], v[b][1]);
      if (OVER_TIME && (V >= DPW || d < V)) load2((const TB*)(tiles.stage + STAGE_GK + t * B_ROW) + p.warp * DPW + d, g[b][0], g[b][1]);
      logits_of(x[b], y[b], tiles.stage + STAGE_LK, t, b, p);
    }
  }
  DEVICE void put(const Tiles& tiles, const float (&u)[4][4], int h, const Place& p) {
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int place = (p.row + h * 8) * U_ROW + b * 8 + p.quad * 2;
      float most0 = NEVER, most1 = NEVER, left[JT], right[JT];
#pragma unroll
      for (int i = 0; i < JT; i++) {
        left[i] = v[b][0] - u[i * DB + b][0], right[i] = v[b][1] - u[i * DB + b][1];
        const bool there = !DEAD || x[b][i] != NEVER;
        if (!there) left[i] = right[i] = 0.f;
        *(float2_*)&tiles.error[place + i * DB * 8] = {left[i], right[i]};
        left[i] *= -0.5f * LOG2E * left[i], right[i] *= -0.5f * LOG2E * right[i];
        if constexpr (SHARES_BY_TOKEN) {
          if (there) x[b][i] += left[i], y[b][i] += right[i];
        } else {
          if (!there) left[i] = right[i] = NEVER;
        }
      }
      softmax_tile(x[b], y[b]);
      if constexpr (!SHARES_BY_TOKEN) {
#pragma unroll
        for (int i = 0; i < JT; i++)
          most0 = max_nan(most0, left[i] + log_bound(g[b][0] * x[b][i])), most1 = max_nan(most1, right[i] + log_bound(g[b][1] * y[b][i]));
#pragma unroll
        for (int m = DPW / 2; m > 0 && m < 4; m *= 2)
          most0 = max_nan(most0, shfl_xor(most0, m)), most1 = max_nan(most1, shfl_xor(most1, m));
#pragma unroll
        for (int i = 0; i < JT; i++) {
          *(float2_*)&tiles.prior[place + i * DB * 8] = {x[b][i], y[b][i]};
          x[b][i] = ex2(left[i] - most0 - HEADROOM), y[b][i] = ex2(right[i] - most1 - HEADROOM);
        }
      }
#pragma unroll
      for (int i = 0; i < JT; i++) *(float2_*)&tiles.r[place + i * DB * 8] = {x[b][i], y[b][i]};
    }
  }
};
// For both rows. `beside` is work by token that does not depend on these errors, with a `load` and a `put`: all loads come before any
// store, because a load does not overtake a store that may alias it.
template <class Beside> DEVICE void errors_by_token(const Tiles& tiles, const float (&U)[4][4], Beside beside, const Place& p) {
  float u[4][4];
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) u[n][i] = U[n][i];
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    ErrorsByToken errors;
    errors.load(tiles, h, p), beside.load(h);
    errors.put(tiles, u, h, p), beside.put(h);
    swap_halves(u);
  }
  sync_warp();
}
struct NothingBeside {
  DEVICE void load(int) {}
  DEVICE void put(int) {}
};
// The rest of that by the lanes that own the columns, half a chunk at a time: r_t = p_t l_t / Σ_j p_t l_t with
// p_t = (1 - g) r_{t-1} + g π. The sum is never zero: p is at least g π.
// The forward has kept r in the middle of a chunk, so that both halves of the chain run side by side.
struct SharesOverTime {
  float stay[8], fresh[8], likelihood[8];
  DEVICE void load(const Tiles& tiles, int half, const Place& p) {
    InTile r(tiles.r + p.column), pi(tiles.prior + p.column);
    float g[8];
    load_half_column<TB, 1>(g, tiles.stage + STAGE_GK, half, p);
#pragma unroll
    for (int i = 0; i < 8; i++) likelihood[i] = r[half * 8 + i], fresh[i] = g[i] * pi[half * 8 + i], stay[i] = 1.f - g[i];
  }
  DEVICE float next(int i, float last) const {
    const float x = max_nan(stay[i] * last + fresh[i], TINY) * likelihood[i];
    return x * rcp(over_mixtures(x));
  }
};
struct BothSharesOverTime {
  SharesOverTime early, late;
  DEVICE void load(const Tiles& tiles, const Place& p) { early.load(tiles, 0, p), late.load(tiles, 1, p); }
  DEVICE void put(const Tiles& tiles, float before, float middle, const Place& p) const {
    InTile r(tiles.r + p.column);
#pragma unroll
    for (int i = 0; i < 8; i++) r[i] = before = early.next(i, before), r[8 + i] = middle = late.next(i, middle);
  }
};
// By the lanes that own the columns, for one mixture or without normalisation; into their tiles, with the priors.
DEVICE void errors_by_lanes(const Tiles& tiles, const float (&U)[4][4], float r_before, const Place& p) {
  InTile delta(tiles.error + p.column), r(tiles.r + p.column), pi(tiles.prior + p.column);
  to_lanes(tiles.error, U, 0, 0, p), to_lanes(tiles.error, U, 1, 8, p);
  sync_warp();
  if constexpr (J > 1) put_prior(tiles.prior, tiles.stage + STAGE_LK, p);
  float last = r_before;
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    float v[8], g[8], prior[8];  // all loads before any store: a load does not overtake a store that may alias it
    load_half_column<TX, 1>(v, tiles.stage + STAGE_V, half, p);
    if (KEY_GATE) load_half_column<TB, 1>(g, tiles.stage + STAGE_GK, half, p);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i] = (DEAD && !p.alive ? 0.f : v[i]) - delta[half * 8 + i];
      prior[i] = J == 1 || !(KEY_GATE || !NORMALIZE) ? 1.f : pi[half * 8 + i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = half * 8 + i;
      if (J == 1 && (KEY_GATE || !NORMALIZE)) pi[t] = 1.f;
      delta[t] = v[i], r[t] = last = share_of(v[i], prior[i], g[i], last, p);
    }
  }
}
