// The query side: dS = ρ do, dρ = S do, and from dρ the gradients of query logits and gates.
#pragma once
#include "backward.cuh"

struct Spread { float usage, entropy; };  // gradients of a column's usage and entropy
// What the statistics add to the adjoint of the mix.
DEVICE float statistics_of_mix(float rho, const Spread& spread, bool counts) {
  return counts ? spread.usage - (LN2 * lg2(max_nan(rho, TINY)) + 1.f) * spread.entropy : 0.f;
}

// By the lanes that own the columns, where the mix is blended over time, its statistics count or the decay is by column; dS
// goes to its tile. What each token reads is in `read` if the decay is by column, otherwise it follows from S here.
DEVICE void mix_by_lanes(const Tiles& tiles, const float (&S)[4][4], Column& read, float (&dS)[C], float rho_before, float& drho,
                         Spread spread, int valid, const Place& p) {
  Column lq(tiles.r + p.column), mix(tiles.u + p.column);
  if constexpr (BY_COLUMN) {
    float prior[C];
    load_prior(prior, tiles.stage + STAGE_LQ, tiles.u, p);
#pragma unroll
    for (int t = 0; t < C; t++) lq[t] = prior[t];
  } else {
    to_lanes(tiles.error, S, 0, 0, p), to_lanes(tiles.error, S, 1, 8, p);
    if constexpr (J > 1) put_prior(tiles.r, tiles.stage + STAGE_LQ, p); else sync_warp();
  }
  float gq[8], dout[8], dgate[4], rho = rho_before;
  auto load = [&](int half) {
    load_half_column<TX, 1>(dout, tiles.stage + STAGE_O, half, p);
    if (QUERY_GATE) load_half_column<TB, 1>(gq, tiles.stage + STAGE_GQ, half, p);
    if (DEAD && !p.alive)
#pragma unroll
      for (int i = 0; i < 8; i++) dout[i] = 0.f;
  };
  // In each half all loads come before any store: a load does not overtake a store that may alias it.
#pragma unroll BY_COLUMN ? 2 : 1
  for (int half = 0; half < 2; half++) {
    float out[8], prior[8];
    load(half);
#pragma unroll
    for (int i = 0; i < 8; i++) prior[i] = J == 1 ? 1.f : lq[half * 8 + i];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = half * 8 + i;
      rho = QUERY_GATE ? (1.f - gq[i]) * rho + gq[i] * prior[i] : prior[i];
      mix[t] = rho, out[i] = rho * dout[i];
      if (BY_COLUMN) dS[t] = out[i];
    }
    put_column(tiles.ds, p, half, out);
  }
#pragma unroll BY_COLUMN ? 2 : 1
  for (int half = 1; half >= 0; half--) {
    float prior[8], back[8], now[8], before[8];
    load(half);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = half * 8 + i;
      prior[i] = J == 1 ? 1.f : lq[t], back[i] = dout[i] * read[t];
      if (STATS) now[i] = mix[t];
      if (QUERY_GATE) before[i] = t > 0 ? mix[t > 0 ? t - 1 : 0] : rho_before;
    }
    sync_warp();
#pragma unroll
    for (int i = 7; i >= 0; i--) {
      const int t = half * 8 + i;
      if (STATS) back[i] += statistics_of_mix(now[i], spread, t < valid);
      if (DEAD && !p.alive) back[i] = 0.f;
      if constexpr (QUERY_GATE) {
        back[i] += drho;
        dgate[i % 4] = back[i] * (prior[i] - before[i]);
        if (i % 4 == 0) put_sums<TB>(tiles.stage + STAGE_GQ, p, t, dgate);
        drho = (1.f - gq[i]) * back[i];
        back[i] *= gq[i];
      }
      put_gradient<TB, BY_TOKEN>(tiles.stage + STAGE_LQ, p, t, prior[i] * (back[i] - sum_mixtures(prior[i] * back[i])));
    }
  }
  sync_warp();
}
// By token, a lane all mixtures of its output dims: S becomes dS. `spread` are the gradients of the statistics of these columns.
struct TokenSpread {
  Spread of[DB][JT][2];
  DEVICE void load(const float* dstats, i64 head, i64 all, int first, const Place& p) {
#pragma unroll
    for (int b = 0; b < DB; b++)
#pragma unroll
      for (int i = 0; i < JT; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int j = ((i * DB + b) * 8 + p.quad * 2) / DPW, d = (b * 8 + p.quad * 2) % DPW + e;
          of[b][i][e] = {};
          if (j < J && d < V) of[b][i][e] = {dstats[(head * J + j) * V + first + d], dstats[all + (head * J + j) * V + first + d]};
        }
  }
};
DEVICE void mix_by_token(const Tiles& tiles, float (&S)[4][4], const TokenSpread& spread, int valid, const Place& p) {
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    float x[DB][JT], y[DB][JT], out[DB][2];
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
      out[b][0] = out[b][1] = 0.f;
      if (V >= DPW || d < V) load2((const TX*)(tiles.stage + STAGE_O + t * V_ROW) + p.warp * DPW + d, out[b][0], out[b][1]);
      if constexpr (J == 1) x[b][0] = y[b][0] = 1.f; else prior_of(x[b], y[b], tiles.stage + STAGE_LQ, t, b, p);
    }
#pragma unroll
    for (int b = 0; b < DB; b++) {
      const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
      float o0 = 0.f, o1 = 0.f, y0[JT], y1[JT];  // y0, y1: the adjoint of the mix
#pragma unroll
      for (int i = 0; i < JT; i++) {
        y0[i] = out[b][0] * S[i * DB + b][0], y1[i] = out[b][1] * S[i * DB + b][1];
        if (STATS) {
          y0[i] += statistics_of_mix(x[b][i], spread.of[b][i][0], t < valid);
          y1[i] += statistics_of_mix(y[b][i], spread.of[b][i][1], t < valid);
        }
        o0 += x[b][i] * y0[i], o1 += y[b][i] * y1[i];
      }
      o0 = over_tile(o0), o1 = over_tile(o1);
#pragma unroll
      for (int i = 0; i < JT; i++) {
        int j = ((i * DB + b) * 8 + p.quad * 2) / DPW;
        if (j < J && (V >= DPW || d < V))
          store2((TB*)(tiles.stage + STAGE_LQ + t * BY_TOKEN + j * B_ROW) + p.warp * DPW + d, J == 1 ? 0.f : x[b][i] * (y0[i] - o0),
                 J == 1 ? 0.f : y[b][i] * (y1[i] - o1));
        S[i * DB + b][0] = x[b][i] * out[b][0], S[i * DB + b][1] = y[b][i] * out[b][1];  // now dS
      }
    }
    swap_halves(S);
  }
}
// dS as operands [16 columns, 16 tokens], from its tile, or from S, which has become dS, into the tile.
DEVICE void ds_operands(A16 (&ds_columns)[2], const float (&S)[4][4], const Tiles& tiles, const Place& p) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if constexpr (LANE_MIX) {
      ds_columns[i] = load_columns_operand(tiles.ds, i * 16, p.lane);
    } else {
      ds_columns[i] = stacked(as_columns(S[2 * i]), as_columns(S[2 * i + 1]));
      put_columns_operand(tiles.ds, ds_columns[i], i * 16, p);
    }
  }
}
