// The backward of a decay by output dim or by head: each lane decays its own column, token by token.
#pragma once
#include "backward_errors.cuh"

// A lane's column over the tokens of a chunk.
struct DecayedColumn {
  float ku[C], qs[C], alpha[C], written[C];  // k · W and q · W with the state at the chunk's start, decays, and c
  float X[C], Y[C], du[C];                   // dS and du of the later tokens, decayed back to the token at hand; and du itself
  float flow[C], to_end;                     // what passes each token's decay, as differences; the decay to the chunk's end
  float gk[C];                               // key gates

  DEVICE void load(const Arguments& a, const float (&U)[4][4], const float (&S)[4][4], float* tile, const char* decays, i64 kept,
                   i64 row, int valid, const Place& p) {
    to_lanes(tile, U, 0, 0, p), to_lanes(tile, U, 1, 8, p);
    sync_warp();
    load_decay(alpha, decays, a.decay, row, a.H, valid, p);
    load_kept_column(written, a.kept_c + kept * NS * 64, p);
#pragma unroll
    for (int t = 0; t < C; t++) ku[t] = tile[t * U_ROW + p.column];
    sync_warp();
    to_lanes(tile, S, 0, 0, p), to_lanes(tile, S, 1, 8, p);
    sync_warp();
#pragma unroll
    for (int t = 0; t < C; t++) qs[t] = tile[t * U_ROW + p.column];
    sync_warp();
  }
  // Predictions, and what each token reads, from these and the Gram matrices A and P [reader, writer].
  template <class Column> DEVICE void predict(float (&u)[C], Column& read, const float* A, const float* P) const {
    float w[C], gamma = 1.f;
#pragma unroll
    for (int t = 0; t < C; t++) {
      float x = 0.f;
#pragma unroll
      for (int i = 0; i < t; i++) x += A[t * C + i] * w[i];
      u[t] = (POST ? gamma : gamma * alpha[t]) * ku[t] + (POST ? x : alpha[t] * x);
      gamma *= alpha[t];
#pragma unroll
      for (int i = 0; i < t; i++) w[i] *= alpha[t];
      w[t] = written[t];
      read[t] = gamma * qs[t];
#pragma unroll
      for (int i = 0; i <= t; i++) read[t] += P[t * C + i] * w[i];
    }
  }
  // Errors δ = v - u, priors and responsibilities, as the forward had them, and what each token reads.
  DEVICE void errors(const Tiles& tiles, Column& read, Column& delta, Column& r, Column& pi, float r_before, const Place& p) {
    float u[C], v[C], prior[C], last = r_before;
    predict(u, read, tiles.a, tiles.a + C * C);
    load_column<TX, 1>(v, tiles.stage + STAGE_V, p);
#pragma unroll
    for (int t = 0; t < C; t++) delta[t] = (DEAD && !p.alive ? 0.f : v[t]) - u[t];
    if constexpr (KEY_GATE || !NORMALIZE) load_prior(prior, tiles.stage + STAGE_LK, tiles.u, p); else load_column<TB, J>(prior, tiles.stage + STAGE_LK, p);
    if (KEY_GATE) load_column<TB, 1>(gk, tiles.stage + STAGE_GK, p);
#pragma unroll
    for (int t = 0; t < C; t++) pi[t] = prior[t], r[t] = last = share_of(delta[t], prior[t], gk[t], last, p);
  }
  // The substitution in reverse, with e0 = k · dW; `adjoint` makes du of a token's adjoint e of what it wrote.
  template <class Adjoint>
  DEVICE void substitute(const float (&e0)[C], const float (&dS)[C], const float* A, const float* P, Adjoint adjoint) {
    to_end = 1.f;
#pragma unroll
    for (int t = 0; t < C; t++) flow[t] = 0.f;
#pragma unroll
    for (int t = C - 1; t >= 0; t--) {
      const float c = written[t];
      float end = to_end * e0[t], e = end + P[t * C + t] * dS[t], out = 0.f;
      if (t < C - 1) flow[C - 1] += end * c, out += end;
#pragma unroll
      for (int i = t + 1; i < C; i++) {
        float x = P[i * C + t] * X[i], y = A[i * C + t] * Y[i];
        e += x + y;
        flow[i] += x * c, out += x;
        if (!POST) flow[i] += y * c, out += y;
        if (POST && i > t + 1) flow[i - 1] += y * c, out += y;
      }
      flow[t] -= out * c;
      du[t] = adjoint(t, e);
      X[t] = dS[t], Y[t] = du[t];
#pragma unroll
      for (int i = t; i < C; i++) {
        X[i] *= alpha[t];
        if (!POST || i > t) Y[i] *= alpha[t];
      }
      to_end *= alpha[t];
    }
  }
  // The gradient of the decays' logarithms, into `flow`: the part of the state itself is Σ W dW of the column.
  DEVICE void finish_flow(const Arguments& a, const float (&dW)[2][KT][4], i64 chunk_unit, float* tile, const Place& p) {
    sync_warp();
#pragma unroll
    for (int nt = 0; nt < 4; nt++) {
      float x = 0.f;
#pragma unroll
      for (int kk = 0; kk < KS / 2; kk++)
#pragma unroll
        for (int i = 0; i < NS; i++) {
          uint4_ w = a.chunk_W[(chunk_unit * STATE_PIECES + (i * 4 + nt) * (KS / 2) + kk) * 32 + p.lane];
#pragma unroll
          for (int y = 0; y < 4; y++) {
            const float* d = &dW[nt / 2][4 * kk + y][nt % 2 * 2];
            x += as_float(w.x[y] << 16) * d[0] + as_float(w.x[y] & 0xffff0000u) * d[1];
          }
        }
      x += shfl_xor(x, 1), x += shfl_xor(x, 2);
      if (p.quad == 0) tile[nt * 8 + p.row] = x;
    }
    sync_warp();
    flow[C - 1] += to_end * tile[p.column];
    sync_warp();
#pragma unroll
    for (int t = 0; t < C; t++) {
      flow[t] += X[t] * qs[t];
      if (!POST) flow[t] += Y[t] * ku[t];
      if (POST && t > 0) flow[t > 0 ? t - 1 : 0] += Y[t] * ku[t];
    }
#pragma unroll
    for (int t = C - 2; t >= 0; t--) flow[t] += flow[t + 1];
  }
  // Store the gradient of the decay: by output dim in a tile, by head in memory.
  DEVICE void put_flow(const Arguments& a, char* tile, const Work& w, i64 t0, int valid, const Place& p) const {
#pragma unroll
    for (int t = 0; t < C; t++) {
      if constexpr (DECAY == 2) put_gradient<TD>(tile, p, t, flow[t]);
      if (DECAY == 3 && p.alive && t < valid)
        ((float*)a.ddecay)[(((t0 + t) * w.H + w.head) * J + p.j) * V + w.first + p.d] = flow[t];
    }
  }
  // dA and dP, level by level: tiles of readers and writers, decayed to where their block is split.
  DEVICE void grams(float (&da)[2][4], float (&dp)[2][4], const float (&dS)[C], char* one_tile, char* two_tile, const Place& p) const {
    Channel channel;
    channel.load(alpha);
#pragma unroll
    for (int level = -1; level < 4; level++) {
      float one[C], two[C];
#pragma unroll
      for (int t = 0; t < C; t++) {
        bool late = level >= 0 && is_late(t, level);
        one[t] = late ? du[t] * channel.read(t, level) : written[t] * (level < 0 ? 1.f : channel.suf[t]);
        two[t] = level < 0 ? dS[t] : late ? dS[t] * channel.pre[t] : 0.f;
      }
      put_columns(one_tile, p, one), put_columns(two_tile, p, two);
      if (level >= 0) channel.widen(level);
      sync_warp();
      float x[2][4] = {}, y[2][4] = {};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        A16 one_tokens = load_tokens_operand(one_tile, i * 16, p.lane), two_tokens = load_tokens_operand(two_tile, i * 16, p.lane);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          product(x[h], one_tokens, half_of(one_tokens, h));
          product(y[h], two_tokens, half_of(one_tokens, h));
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int t = p.row + (i >> 1) * 8, w = h * 8 + p.quad * 2 + (i & 1);
          if (level < 0) {
            da[h][i] = 0.f, dp[h][i] = t == w ? y[h][i] : 0.f;
          } else if (is_split(t, w, level)) {
            da[h][i] = x[h][i], dp[h][i] = y[h][i];
          }
        }
      sync_warp();
    }
  }
  // Operands of the products with the state: du and dS decayed to the chunk's start, c to its end.
  DEVICE void leave(char* du_tile, char* ds_tile, char* c_tile, const Place& p) {
    put_columns(du_tile, p, Y), put_columns(ds_tile, p, X);
    float after = 1.f;
#pragma unroll
    for (int t = C - 1; t >= 0; t--) written[t] *= after, after *= alpha[t];
    put_columns(c_tile, p, written);
    sync_warp();
  }
};
