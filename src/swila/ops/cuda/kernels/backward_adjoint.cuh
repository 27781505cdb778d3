// The substitution in reverse. From the last token of a chunk to its first, with e the adjoint of c, z = log p - δ²/2 and
// m the adjoint of log r from the token after,
//   e_t = (Γ_Ct k_t) · dW' + Σ_{s≥t} P_st dS_s + Σ_{s>t} A_st du_s
//   x = β r δ e + m + (what the statistics add to r dr)
//   dz = x - r Σ_j x    (without normalisation dz = x)
//   du = δ dz - β r e
//   m_{t-1} = (1 - g) r_{t-1} / p ⊙ dz_t
#pragma once
#include "backward_columns.cuh"
#include "backward_errors.cuh"
#include "backward_queries.cuh"
#include "backward_state.cuh"

// A bound that keeps a derivative in a probability, which grows as its inverse, finite.
DEVICE float finite(float x) {
  const float most = 7.9228159e28f;  // FLT_MAX^0.75, as in the other backends
  return x > most ? most : x < -most ? -most : x;
}

// The part of e that is known before the substitution: E = (Γ_C k) · dW' + P^T dS. With a decay by column only its first term
// without the decay, k · dW'. The first term:
DEVICE void adjoint_of_end(float (&E)[4][4], const float (&dW)[2][KT][4], const Operands& x, const Place& p) {
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    A16 kf;
    if constexpr (!BY_KEY) kf = load_rows(x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) {
      if constexpr (BY_KEY) kf = load_rows(x.decay.keys_end + group_of(nt) * GROUP_TILE, OPERAND_TILE, OPERAND_ROW, ks * 16, p.lane);
      B16 d;
      Pair low = pack(dW[nt / 2][2 * ks][nt % 2 * 2], dW[nt / 2][2 * ks][nt % 2 * 2 + 1]);
      Pair high = pack(dW[nt / 2][2 * ks + 1][nt % 2 * 2], dW[nt / 2][2 * ks + 1][nt % 2 * 2 + 1]);
#pragma unroll
      for (int i = 0; i < NS; i++) d.x[i][0] = low.x[i], d.x[i][1] = high.x[i];
      product(E[nt], kf, d);
    }
  }
}
// The second.
DEVICE void adjoint_of_reads(float (&E)[4][4], const Operands& x, const GramOperands& g, const A16 (&ds_columns)[2], const Place& p) {
#pragma unroll
  for (int nt = 0; nt < 4 && !BY_COLUMN; nt++) {
    A16 P_t = g.P_t;
    if constexpr (BY_KEY) P_t = load_rows_transposed(x.decay.P + group_of(nt) * GRAM_TILE, GRAM_PLANE, GRAM_ROW, p.lane);
    product(E[nt], P_t, half_of(ds_columns[nt / 2], nt % 2));
  }
}

// What the statistics add to r dr.
DEVICE float statistics_adjoint(const Spread& spread, int t, float r, int valid) {
  return STATS && t < valid ? r * (spread.usage - (LN2 * lg2(max_nan(r, TINY)) + 1.f) * spread.entropy) : 0.f;
}
// 1 / p for the prior p = (1 - g) r_{t-1} + g π.
DEVICE float inverse_prior(float last, float prior, float g) { return rcp(max_nan((1.f - g) * last + g * prior, TINY)); }

// What turns the gradient of β into the one that is asked for: of β itself, or of its logit if β is a sigmoid.
DEVICE float rate_slope(float beta) { return BETA_LOGITS ? beta * (1.f - beta) : 1.f; }

// Whether gradients of key gates and logits are computed by token, where a lane has all mixtures of its output dims.
constexpr bool GATES_BY_TOKEN = KEY_GATE && !BY_COLUMN && (JP == 2 || JP == 4);

// Gradients of a token's inputs from e, du and dz, into their tiles; tokens come from the last to the first:
//   dβ = e r δ times its slope, dv = -Σ_j du, dg = Σ_j dz (π - r_{t-1}) / p, and with dπ = g π / p ⊙ dz the logits' dπ - π Σ_j dπ.
// By token, dz replaces the error.
DEVICE void put_gradients(char* s, float (&dv)[4], float (&dgate)[4], float& m, Column& delta, const i64& chunk, int half, int i,
                          float r_delta_slope, float last, float prior, float g, float e, float du, float dz, const Place& p) {
  const int t = half * 8 + i;
  put_gradient<TB>(s + STAGE_BETA, p, t, e * r_delta_slope);
  dv[i % 4] = -du;  // summed in float32: its terms cancel
  if (i % 4 == 0) put_sums<TX>(s + STAGE_O, p, t, dv);
  if constexpr (KEY_GATE) {
    const float inverse = inverse_prior(last, prior, g);
    if constexpr (GATES_BY_TOKEN) {
      delta[t] = dz;
    } else {
      dgate[i % 4] = finite(dz * ((prior - last) * inverse));
      if (i % 4 == 0) put_sums<TB>(s + STAGE_GK, p, t, dgate);
      const float dpi = g * prior * inverse * dz;
      put_gradient<TB, LK_TOKEN>(s + STAGE_LK, p, t, dpi - prior * sum_mixtures(dpi));
    }
    if (t == 0 && chunk == 0) m = finite(dz * ((1.f - g) * inverse));  // the adjoint of the initial r itself
  } else {
    put_gradient<TB, LK_TOKEN>(s + STAGE_LK, p, t, NORMALIZE ? dz : dz - prior * sum_mixtures(dz));
  }
}
// By token, from dz in the place of errors; what lies beside them are the responsibilities before the chunk. The quotient of π and p is
// taken before dz is multiplied: p may be as small as a number can be.
DEVICE int beside(int column) { return (column >> 3) * U_ROW + 32 + (column & 7); }
DEVICE void put_gate_gradients(const Tiles& tiles, const Place& p) {
  sync_warp();
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    const int t = p.row + h * 8;
    float2_ dz[4], pi[4], last[4], gates[4], dpi[4];  // all loads before any store
    float g[DB][2];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int column = n * 8 + p.quad * 2, place = t * U_ROW + column;
      dz[n] = *(const float2_*)&tiles.error[place], pi[n] = *(const float2_*)&tiles.prior[place];
      last[n] = *(const float2_*)(t > 0 ? &tiles.r[place - U_ROW] : &tiles.error[beside(column)]);
    }
#pragma unroll
    for (int b = 0; b < DB; b++) load2((const TB*)(tiles.stage + STAGE_GK + t * B_ROW) + p.warp * DPW + b * 8 + p.quad * 2, g[b][0], g[b][1]);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float inverse = inverse_prior(last[n].x[e], pi[n].x[e], g[n % DB][e]);
        gates[n].x[e] = finite(dz[n].x[e] * ((pi[n].x[e] - last[n].x[e]) * inverse));
        dpi[n].x[e] = g[n % DB][e] * pi[n].x[e] * inverse * dz[n].x[e];
      }
    put_sums_by_token(tiles.stage + STAGE_GK, tiles.stage + STAGE_LK, t, gates, dpi, pi, p);
  }
  sync_warp();
}

// With a decay by column: token by token, all of e in the lane.
DEVICE void substitute_by_column(DecayedColumn& column, const Tiles& tiles, const float (&E)[4][4], const float (&dS)[C], Column& delta, Column& r,
                                 Column& pi, float r_before, const Spread& spread, float& m, const i64& chunk, int valid, const Place& p) {
  float beta[C], e0[C], dv[4], dgate[4], *u_tile = tiles.u;
  load_column<TB, J>(beta, tiles.stage + STAGE_BETA, p);
  to_lanes(u_tile, E, 0, 0, p), to_lanes(u_tile, E, 1, 8, p);
  sync_warp();
#pragma unroll
  for (int t = 0; t < C; t++) {
    e0[t] = u_tile[t * U_ROW + p.column];
    if (DEAD && !p.alive) beta[t] = 0.f;
  }
  column.substitute(e0, dS, tiles.a, tiles.a + C * C, [&](int t, float e) {
    const float br = beta[t] * r[t], last = t > 0 ? r[t > 0 ? t - 1 : 0] : r_before;
    float x = br * delta[t] * e + statistics_adjoint(spread, t, r[t], valid) + (KEY_GATE ? m : 0.f);
    float dz = NORMALIZE ? x - r[t] * over_mixtures(x) : x;
    if (DEAD && !p.alive) dz = 0.f;
    const float du = delta[t] * dz - br * e;
    if constexpr (KEY_GATE) m = (1.f - column.gk[t]) * last * inverse_prior(last, pi[t], column.gk[t]) * dz;
    put_gradients(tiles.stage, dv, dgate, m, delta, chunk, t / 8, t % 8, r[t] * delta[t] * rate_slope(beta[t]), last, pi[t], column.gk[t], e, du, dz, p);
    return du;
  });
}

// Otherwise half a chunk at a time. Within a half, the lane adds A_st du_s to e of the tokens before; what the early half
// reads of the late one is a matrix product.
DEVICE void substitute_by_halves(const Tiles& tiles, float (&E)[4][4], const Pair (&cross)[NG], const float* blocks, Column& delta, Column& r,
                                 Column& pi, float r_before, const Spread& spread, float& m, const i64& chunk, int valid, const Place& p) {
  float dv[4], dgate[4], *u_tile = tiles.u;
  if (GATES_BY_TOKEN) tiles.error[beside(p.column)] = r_before;
#pragma unroll 1
  for (int half = 1; half >= 0; half--) {
    if (half == 0) {  // the late half of E is replaced by the early one
      Pair du[4], none = {};
      load_half(du, tiles.du, 1, p.lane);
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        float more[4] = {E[nt][0], E[nt][1], 0.f, 0.f};
        product_k8(more, cross[group_of(nt)], none, du[nt]);
        E[nt][2] = more[0], E[nt][3] = more[1];
      }
    }
    to_lanes(u_tile, E, 1, 0, p);
    sync_warp();
    // Of dz and du only Σ_j x depends on the token after.
    float e[8], du[8], dz[8], rd[8], beta[8], g[8], share[8], prior[8], before = r_before;
    load_half_column<TB, J>(beta, tiles.stage + STAGE_BETA, half, p);
    if (KEY_GATE) load_half_column<TB, 1>(g, tiles.stage + STAGE_GK, half, p);
    if (KEY_GATE && half) before = r[7];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      e[i] = u_tile[i * U_ROW + p.column], share[i] = r[half * 8 + i], rd[i] = delta[half * 8 + i];
      if constexpr (KEY_GATE || !NORMALIZE) prior[i] = pi[half * 8 + i];
      if (DEAD && !p.alive) beta[i] = 0.f;
    }
    auto last = [&](int i) { return i > 0 ? share[i > 0 ? i - 1 : 0] : before; };
#pragma unroll
    for (int i = 7; i >= 0; i--) {
      const float error = rd[i], br = beta[i] * share[i];
      rd[i] *= share[i];
      float x = br * error * e[i];
      if (STATS || KEY_GATE) x += statistics_adjoint(spread, half * 8 + i, share[i], valid) + (KEY_GATE ? m : 0.f);
      float part = error * x - br * e[i];
      if constexpr (NORMALIZE) {
        float sum = over_mixtures(x);
        du[i] = part - rd[i] * sum, dz[i] = x - share[i] * sum;
      } else {
        du[i] = part, dz[i] = x;
      }
      rd[i] *= rate_slope(beta[i]);
      if (DEAD && !p.alive) du[i] = 0.f, dz[i] = 0.f;
      if (KEY_GATE) m = (1.f - g[i]) * last(i) * inverse_prior(last(i), prior[i], g[i]) * dz[i];
#pragma unroll
      for (int i4 = 0; i4 < 2; i4++)
        if (i4 * 4 < i) {
          float4_ row = *(const float4_*)&blocks[half * 64 + i * 8 + i4 * 4];
#pragma unroll
          for (int y = 0; y < 4; y++)
            if (i4 * 4 + y < i) e[i4 * 4 + y] += row.x[y] * du[i];
        }
    }
    put_column(tiles.du, p, half, du);
    sync_warp();
#pragma unroll
    for (int i = 7; i >= 0; i--)
      put_gradients(tiles.stage, dv, dgate, m, delta, chunk, half, i, rd[i], last(i), prior[i], g[i], e[i], du[i], dz[i], p);
  }
  if constexpr (GATES_BY_TOKEN) put_gate_gradients(tiles, p);
}
