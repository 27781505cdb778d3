// The query side where the mix is blended over time, ρ_t = (1 - g) ρ_{t-1} + g π: dS = ρ do, dρ = S do, and with the adjoint
//   a_t = dρ_t + (1 - g_{t+1}) a_{t+1}
// the gradients dg = Σ_j a (π - ρ_{t-1}) and of the logits g π (a - Σ_j π a). What goes from token to token is computed by the lanes
// that own the columns, the rest by token, where a lane has all mixtures of its output dims.
#pragma once
#include "backward_queries.cuh"

struct MixOverTime {
  const Tiles& tiles;
  float *mix, *prior, *reads;  // tiles of ρ, with a row more for the token before the chunk, of π, and of S, later a
  const Place& p;

  // S and the mix before the chunk into their tiles.
  DEVICE void put_reads(const float (&S)[4][4], float before) const {
    to_lanes(reads, S, 0, 0, p), to_lanes(reads, S, 1, 8, p);
    mix[p.column] = before;
  }
  // π into its tile, by token.
  struct Prior {
    const MixOverTime& of;
    float x[DB][JT], y[DB][JT];
    DEVICE Prior(const MixOverTime& of) : of(of) {}
    DEVICE void load(int h) {
#pragma unroll
      for (int b = 0; b < DB; b++) logits_of(x[b], y[b], of.tiles.stage + STAGE_LQ, of.p.row + h * 8, b, of.p);
    }
    DEVICE void put(int h) {
#pragma unroll
      for (int b = 0; b < DB; b++) {
        softmax_tile(x[b], y[b]);
#pragma unroll
        for (int i = 0; i < JT; i++)
          *(float2_*)&of.prior[(of.p.row + h * 8) * U_ROW + (i * DB + b) * 8 + of.p.quad * 2] = {x[b][i], y[b][i]};
      }
    }
  };
  // do of the lane's output dim, and the gates.
  DEVICE void load_half(float (&dout)[8], float (&g)[8], int half) const {
    load_half_column<TX, 1>(dout, tiles.stage + STAGE_O, half, p);
    load_half_column<TB, 1>(g, tiles.stage + STAGE_GQ, half, p);
    if (DEAD && !p.alive)
#pragma unroll
      for (int i = 0; i < 8; i++) dout[i] = 0.f;
  }
  // ρ and dS into their tiles.
  DEVICE void put_ds(float rho) const {
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
      float dout[8], g[8], fresh[8];  // all loads before any store: a load does not overtake a store that may alias it
      load_half(dout, g, half);
#pragma unroll
      for (int i = 0; i < 8; i++) fresh[i] = g[i] * prior[(half * 8 + i) * U_ROW + p.column];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        rho = (1.f - g[i]) * rho + fresh[i];
        mix[(half * 8 + i + 1) * U_ROW + p.column] = rho, dout[i] *= rho;
      }
      put_column(tiles.ds, p, half, dout);
    }
    sync_warp();
  }
  // dρ and 1 - g of half a chunk.
  struct Back { float drho[8], stay[8]; };
  DEVICE void load(Back& back, int half, const Spread& spread, int valid) const {
    float dout[8], g[8];
    load_half(dout, g, half);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int t = half * 8 + i;
      back.stay[i] = 1.f - g[i], back.drho[i] = dout[i] * reads[t * U_ROW + p.column];
      if (STATS) back.drho[i] += statistics_of_mix(mix[(t + 1) * U_ROW + p.column], spread, t < valid);
      if (DEAD && !p.alive) back.drho[i] = 0.f;
    }
  }
  // a into its tile; `later` is (1 - g) a of the token after.
  DEVICE void put_back(const Back& back, int half, float& later) const {
#pragma unroll
    for (int i = 7; i >= 0; i--) {
      const float a = back.drho[i] + later;
      reads[(half * 8 + i) * U_ROW + p.column] = a, later = back.stay[i] * a;
    }
  }
  // Gradients of gates and logits, in place of these.
  DEVICE void put_gradients() const {
    sync_warp();
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
      const int t = p.row + h * 8;
      float2_ a[4], pi[4], last[4], gates[4], dpi[4];  // all loads before any store
      float g[DB][2];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int place = t * U_ROW + n * 8 + p.quad * 2;
        a[n] = *(const float2_*)&reads[place], pi[n] = *(const float2_*)&prior[place], last[n] = *(const float2_*)&mix[place];
      }
#pragma unroll
      for (int b = 0; b < DB; b++) load2((const TB*)(tiles.stage + STAGE_GQ + t * B_ROW) + p.warp * DPW + b * 8 + p.quad * 2, g[b][0], g[b][1]);
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          gates[n].x[e] = a[n].x[e] * (pi[n].x[e] - last[n].x[e]), dpi[n].x[e] = g[n % DB][e] * pi[n].x[e] * a[n].x[e];
      put_sums_by_token(tiles.stage + STAGE_GQ, tiles.stage + STAGE_LQ, t, gates, dpi, pi, p);
    }
    sync_warp();
  }
};
