#pragma once
#include "forward_split_tiles.cuh"

constexpr int GROUP = SHORT_MIX ? 2 : 4;  // tokens at a time: with more, a lane waits less

// One output dim per lane: the query mix, and statistics of what is given.
DEVICE void mix(const Arguments& a, char* shared, const Work& w, int mixer, int lane) {
  const OutputDim o(w, mixer * 32 + lane);
  const auto [alive, dim, warp, column, at] = o;
  float rho[J], used[J] = {}, spread = 0.f, keys_used[J] = {}, keys_spread = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) rho[j] = QUERY_GATE && a.rho && alive ? a.rho[at + j * V] : 1.f / J;
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const char* s = shared + chunk % STAGES * STAGE_EARLY;
    const i64 t0 = w.span.begin + (i64)chunk * C;
    const int valid = w.span.end - t0 < C ? (int)(w.span.end - t0) : C;
    if (QUERY_GATE && a.kept_c && alive) {
      const i64 unit = chunk_row(a.bounds, w.span, chunk, a.T) * w.warp_units + w.first_unit + warp;
#pragma unroll
      for (int j = 0; j < JP; j++) a.kept_mix[unit * KEPT_MIX + KEPT_RHO + kept_lane(j, column)] = j < J ? rho[j < J ? j : 0] : 0.f;
    }
    await(MIX_USED, WITH_MIXERS);
#pragma unroll 1
    for (int from = 0; from < C; from += GROUP) {
      float z[GROUP][J], g[GROUP], entropy[GROUP];  // all loads before any store: a load does not overtake a store that may alias it
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        load_logits(z[i], s + STAGE_LQ, BY_TOKEN, from + i, dim);
        g[i] = QUERY_GATE ? to_float(*((const TB*)(s + STAGE_GQ + (from + i) * B_ROW) + dim)) : 1.f;
      }
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        const float inverse = unscaled_softmax(z[i], entropy[i]);
#pragma unroll
        for (int j = 0; j < J; j++) z[i][j] *= inverse;
      }
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        Vector m = {};
#pragma unroll
        for (int j = 0; j < J; j++) {
          rho[j] = QUERY_GATE ? (1.f - g[i]) * rho[j] + g[i] * z[i][j] : z[i][j];
          m.x[j] = rho[j];
          if (STATS && from + i < valid) used[j] += rho[j];
        }
        if (STATS && from + i < valid) spread += QUERY_GATE ? entropy_of(rho) : entropy[i];
        if (alive) *(Vector*)(shared + AT_MIX + vector_at(from + i, dim)) = m;
      }
    }
    announce(MIXED, WITH_MIXERS);
    if constexpr (SHARES_GIVEN) {
      const char* shares = shared + AT_GIVEN + (chunk & 1) * GIVEN + PRIOR;
      await(SHARES + (chunk & 1), 32 * (SOLVERS + MIXERS));
#pragma unroll 1
      for (int from = 0; from < C; from += GROUP) {
        float share[GROUP][J];
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
          const Vector given = *(const Vector*)(shares + vector_at(from + i, dim));
#pragma unroll
          for (int j = 0; j < J; j++) share[i][j] = given.x[j];
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
          if (from + i >= valid) continue;
#pragma unroll
          for (int j = 0; j < J; j++) keys_used[j] += share[i][j];
          keys_spread += entropy_of(share[i]);
        }
      }
      if (chunk + 1 < w.chunks) announce(SHARES_USED + (chunk & 1), SHARE_USERS);
    }
  }
  if (alive) {
    const i64 all = a.N * a.H * J * V;
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (a.rho_out) a.rho_out[at + j * V] = rho[j];
      if (SHARES_GIVEN) a.stats[at + j * V] = keys_used[j], a.stats[all + at + j * V] = j ? 0.f : keys_spread;
      if (STATS) a.stats[2 * all + at + j * V] = used[j], a.stats[3 * all + at + j * V] = j ? 0.f : spread;
    }
  }
}
