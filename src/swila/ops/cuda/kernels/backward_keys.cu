// Gradients of queries, keys and decays where the decay is by key dim: all chunks at once, from what backward.cu leaves of
// them. A warp has 32 key dims of one mixture: first the products over the state's columns, then each lane one key dim.
#include "decay.cuh"

constexpr int TASKS = KS / 2;                   // warps per mixture
constexpr int X_STRIDE = 33, X_FLOATS = C * X_STRIDE;
constexpr int WARP_FLOATS = 3 * X_FLOATS + 2 * C * C + 32;
constexpr int SUMS = J * 2 * C * KP;            // dq and dk of every mixture, later in the same place
NEEDS((J * TASKS * WARP_FLOATS > SUMS ? J * TASKS * WARP_FLOATS : SUMS) * 4, NT)
static_assert(NW == J * TASKS, "one warp per 32 key dims of a mixture");
constexpr int UNITS = V / DPW < 1 ? 1 : V / DPW;  // of 32 columns in a head

struct Arguments {
  const TX *q, *k;
  const TD* decay;
  const INDEX* bounds;
  const uint4_ *kept_c, *chunk_du, *chunk_ds, *chunk_W, *chunk_dW;
  TX *dq, *dk;
  TD* ddecay;
  i64 N, T, H;
};

KERNEL void __launch_bounds__(NT, 1) swila_backward_keys(const Arguments a) {
  SHARED(shared);
  const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
  const int j = warp / TASKS, kk = warp % TASKS;
  const i64 H = a.H, T = a.T, head = blockIdx.x % H, item = blockIdx.x / H;
  Span span;
  const i64 chunk = chunk_of(a.bounds, item, a.N, T, span);
  if (chunk < 0) return;
  const i64 t0 = span.begin + chunk * C, unit = chunk_row(a.bounds, span, chunk, T) * H * UNITS + head * UNITS;
  const int valid = span.end - t0 < C ? (int)(span.end - t0) : C;

  // X_q = dS W, X_k = du W, X_e = c dW over the mixture's columns; dA = du c^T, dP = dS c^T; and Σ W dW.
  float xq[4][4] = {}, xk[4][4] = {}, xe[4][4] = {}, da[2][4] = {}, dp[2][4] = {}, across[4][2] = {};
  for (int w = 0; w < UNITS; w++)
#pragma unroll
    for (int b = 0; b < DPW / 8; b++) {
      const int nt = j * (DPW / 8) + b;
      Pair c[2], du[2], ds[2], wt[4], dwt[4];
#pragma unroll
      for (int s = 0; s < NS; s++) {
        const i64 tile = ((unit + w) * NS + s) * 256 + (nt * 8 + row) * 8 + quad;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          c[h].x[s] = transposed(((const u32*)a.kept_c)[tile + 4 * h]);
          du[h].x[s] = transposed(((const u32*)a.chunk_du)[tile + 4 * h]);
          ds[h].x[s] = transposed(((const u32*)a.chunk_ds)[tile + 4 * h]);
        }
      }
      float w0[4][2] = {}, dw0[4][2] = {};
#pragma unroll
      for (int s = 0; s < NS; s++) {
        const i64 piece = ((((unit + w) * NS + s) * 4 + nt) * (KS / 2) + kk) * 32 + lane;
        uint4_ x = a.chunk_W[piece], y = a.chunk_dW[piece];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          w0[i][0] += as_float(x.x[i] << 16), w0[i][1] += as_float(x.x[i] & 0xffff0000u);
          dw0[i][0] += as_float(y.x[i] << 16), dw0[i][1] += as_float(y.x[i] & 0xffff0000u);
          wt[i].x[s] = transposed(x.x[i]), dwt[i].x[s] = transposed(y.x[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        across[i][0] += w0[i][0] * dw0[i][0], across[i][1] += w0[i][1] * dw0[i][1];
        product_k8(xq[i], ds[0], ds[1], wt[i]);
        product_k8(xk[i], du[0], du[1], wt[i]);
        product_k8(xe[i], c[0], c[1], dwt[i]);
      }
#pragma unroll
      for (int h = 0; h < 2; h++) product_k8(da[h], du[0], du[1], c[h]), product_k8(dp[h], ds[0], ds[1], c[h]);
    }
  float* mine = (float*)shared + warp * WARP_FLOATS;
  float *a_tile = mine + 3 * X_FLOATS, *p_tile = a_tile + C * C, *across_tile = p_tile + C * C;
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int t = row + (e >> 1) * 8, dim = i * 8 + quad * 2 + (e & 1);
      mine[t * X_STRIDE + dim] = xq[i][e];
      mine[X_FLOATS + t * X_STRIDE + dim] = xk[i][e];
      mine[2 * X_FLOATS + t * X_STRIDE + dim] = xe[i][e];
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float x = across[i][e];
#pragma unroll
      for (int m = 4; m < 32; m *= 2) x += shfl_xor(x, m);
      if (row == 0) across_tile[i * 8 + quad * 2 + e] = x;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int t = row + (e >> 1) * 8, s = h * 8 + quad * 2 + (e & 1);
      a_tile[t * C + s] = da[h][e], p_tile[t * C + s] = dp[h][e];
    }
  sync_warp();

  // One key dim per lane.
  const int dim = kk * 32 + lane;
  const bool there = dim < K;
  float alpha[C], k[C], q[C], dq[C], dk[C], flow[C] = {};  // flow: what passes each token's decay, as differences
#pragma unroll
  for (int t = 0; t < C; t++) {
    const i64 token = (t0 + t) * H + head;
    bool here = there && t < valid;
    alpha[t] = here ? ex2(LOG2E * to_float(a.decay[(token * J + j) * K + dim])) : 1.f;
    k[t] = here ? to_float(a.k[token * K + dim]) : 0.f, q[t] = here ? to_float(a.q[token * K + dim]) : 0.f;
  }
  float pre = 1.f;
#pragma unroll
  for (int t = 0; t < C; t++) {
    float before = pre;
    pre *= alpha[t];
    float x = pre * mine[t * X_STRIDE + lane], y = (POST ? before : pre) * mine[X_FLOATS + t * X_STRIDE + lane];
    dq[t] = x, dk[t] = y;
    flow[t] += q[t] * x;
    if (!POST) flow[t] += k[t] * y;
    if (POST && t > 0) flow[t > 0 ? t - 1 : 0] += k[t] * y;
  }
  flow[C - 1] += pre * across_tile[lane];
  float after = 1.f;
#pragma unroll
  for (int t = C - 1; t >= 0; t--) {
    float x = after * mine[2 * X_FLOATS + t * X_STRIDE + lane];
    dk[t] += x;
    if (t < C - 1) flow[C - 1] += k[t] * x, flow[t] -= k[t] * x;
    after *= alpha[t];
  }
#pragma unroll
  for (int s = 0; s < C; s++) {
    float diagonal = p_tile[s * C + s], between = 1.f, to_s = diagonal * q[s], out = 0.f;
    dq[s] += diagonal * k[s];
#pragma unroll
    for (int t = s + 1; t < C; t++) {
      float before = between;
      between *= alpha[t];
      float seen = POST ? before : between, x = a_tile[t * C + s] * seen, y = p_tile[t * C + s] * between;
      dk[t] += x * k[s], dq[t] += y * k[s];
      x *= k[t], y *= q[t];
      to_s += x + y;
      if (POST) {
        flow[t] += y * k[s], out += y;
        if (t > s + 1) flow[t - 1] += x * k[s], out += x;
      } else {
        flow[t] += (x + y) * k[s], out += x + y;
      }
    }
    dk[s] += to_s;
    flow[s] -= out * k[s];
  }
  sync_block();
  float* sums = (float*)shared;
#pragma unroll
  for (int t = C - 1; t >= 0; t--) {
    if (t < C - 1) flow[t] += flow[t < C - 1 ? t + 1 : t];
    sums[((j * 2) * C + t) * KP + dim] = dq[t], sums[((j * 2 + 1) * C + t) * KP + dim] = dk[t];
    if (there && t < valid) store(a.ddecay + (((t0 + t) * H + head) * J + j) * K + dim, flow[t]);
  }
  sync_block();
  for (int i = (int)threadIdx.x; i < 2 * C * K; i += NT) {
    int which = i / (C * K), t = i / K % C, d = i % K;
    float x = 0.f;
#pragma unroll
    for (int m = 0; m < J; m++) x += sums[((m * 2 + which) * C + t) * KP + d];
    if (t < valid) store((which ? a.dk : a.dq) + ((t0 + t) * H + head) * K + d, x);
  }
}
