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
// By token, a lane all mixtures of its output dims; into their tiles.
DEVICE void errors_by_token(const Tiles& tiles, const float (&U)[4][4], const Place& p) {
  float u[4][4];
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) u[n][i] = U[n][i];
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    float x[DB][JT], y[DB][JT], v[DB][2];  // all loads before any store: a load does not overtake a store that may alias it
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
      v[b][0] = v[b][1] = 0.f;
      if (V >= DPW || d < V) load2((const TX*)(tiles.stage + STAGE_V + t * V_ROW) + p.warp * DPW + d, v[b][0], v[b][1]);
      logits_of(x[b], y[b], tiles.stage + STAGE_LK, t, b, p);
    }
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int place = (p.row + h * 8) * U_ROW + b * 8 + p.quad * 2;
#pragma unroll
      for (int i = 0; i < JT; i++) {
        float left = v[b][0] - u[i * DB + b][0], right = v[b][1] - u[i * DB + b][1];
        if (DEAD && x[b][i] == NEVER) {
          left = right = 0.f;
        } else {
          x[b][i] -= 0.5f * LOG2E * left * left, y[b][i] -= 0.5f * LOG2E * right * right;
        }
        *(float2_*)&tiles.error[place + i * DB * 8] = {left, right};
      }
      softmax_tile(x[b], y[b]);
#pragma unroll
      for (int i = 0; i < JT; i++) *(float2_*)&tiles.r[place + i * DB * 8] = {x[b][i], y[b][i]};
    }
    swap_halves(u);
  }
  sync_warp();
}
// By the lanes that own the columns, where each responsibility needs the one before; into their tiles, with the priors.
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
