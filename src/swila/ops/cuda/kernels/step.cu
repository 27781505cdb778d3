// One token of the recurrence. Every row of the state is read once and written once, possibly in place. A group of lanes works on
// all mixtures of one output dim, with four key dims per lane.
#include "layout.cuh"

constexpr int LANES = K / 4, GROUPS = NT / LANES;  // output dims per block
static_assert(V % GROUPS == 0, "whole blocks");
NEEDS(0, NT)

struct Arguments {
  const TX *q, *k, *v;
  const TB *beta, *key_logits, *query_logits, *key_gate, *query_gate;
  const TD* decay;
  const float *W, *r, *rho;  // or null
  TX* out;
  float *W_out, *r_out, *rho_out;  // or null
  i64 alive, H;                    // address of a byte per sequence, 0 where its state must not change; or 0: all change
};

DEVICE float over_group(float x) {
#pragma unroll
  for (int m = 1; m < LANES; m *= 2) x += shfl_xor(x, m);
  return x;
}
DEVICE void softmax(float (&x)[J]) {
  float most = LEAST, sum = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) x[j] = max_nan(x[j] * LOG2E, LEAST), most = max_nan(most, x[j]);
#pragma unroll
  for (int j = 0; j < J; j++) x[j] = ex2(x[j] - most), sum += x[j];
  sum = rcp(sum);
#pragma unroll
  for (int j = 0; j < J; j++) x[j] *= sum;
}

KERNEL void __launch_bounds__(NT) swila_step(const Arguments a) {
  const int tid = (int)threadIdx.x, lane = tid % LANES;
  const i64 unit = (i64)blockIdx.x / (V / GROUPS);  // (sequence, head)
  const int d = (int)((i64)blockIdx.x % (V / GROUPS)) * GROUPS + tid / LANES, dim = lane * 4;
  const i64 column = unit * J * V + d;  // of the first mixture, the next V further
  if (a.alive && !((const unsigned char*)a.alive)[unit / a.H]) {
    if (lane == 0) store(a.out + unit * V + d, 0.f);
    return;
  }
  float w[J][4], k[4], q[4];
#pragma unroll
  for (int j = 0; j < J; j++) {
    float4_ x = {};
    if (a.W) x = *(const float4_*)(a.W + (column + j * V) * K + dim);
#pragma unroll
    for (int i = 0; i < 4; i++) w[j][i] = x.x[i];
  }
  load2(a.k + unit * K + dim, k[0], k[1]), load2(a.k + unit * K + dim + 2, k[2], k[3]);
  load2(a.q + unit * K + dim, q[0], q[1]), load2(a.q + unit * K + dim + 2, q[2], q[3]);
  const float v = to_float(a.v[unit * V + d]);
  float prior[J], mix[J], beta[J], delta[J];
#pragma unroll
  for (int j = 0; j < J; j++) {
    prior[j] = to_float(a.key_logits[column + j * V]), mix[j] = to_float(a.query_logits[column + j * V]);
    beta[j] = to_float(a.beta[column + j * V]);
  }
#pragma unroll
  for (int j = 0; j < J; j++) {
    float alpha[4] = {1.f, 1.f, 1.f, 1.f}, before = 0.f, u = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (DECAY == 1) alpha[i] = to_float(a.decay[(unit * J + j) * K + dim + i]);
      if (DECAY == 2) alpha[i] = to_float(a.decay[column + j * V]);
      if (DECAY == 3) alpha[i] = to_float(a.decay[unit * J + j]);
      if (DECAY) alpha[i] = ex2(LOG2E * alpha[i]);
      before += k[i] * w[j][i];
      w[j][i] *= alpha[i];
      u += k[i] * w[j][i];
    }
    delta[j] = v - over_group(POST ? before : u);
  }
  softmax(mix);
  if constexpr (QUERY_GATE) {
    const float g = to_float(a.query_gate[unit * V + d]);
#pragma unroll
    for (int j = 0; j < J; j++) mix[j] = (1.f - g) * (a.rho ? a.rho[column + j * V] : 1.f / J) + g * mix[j];
  }
  if constexpr (KEY_GATE || !NORMALIZE) {
    softmax(prior);
    const float g = KEY_GATE ? to_float(a.key_gate[unit * V + d]) : 1.f;
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (KEY_GATE) prior[j] = max_nan((1.f - g) * (a.r ? a.r[column + j * V] : 1.f / J) + g * prior[j], TINY);
      prior[j] = NORMALIZE ? lg2(prior[j]) * LN2 : prior[j];  // softmax() takes natural logarithms
    }
  }
  float r[J];
#pragma unroll
  for (int j = 0; j < J; j++) {
    float y = -0.5f * delta[j] * delta[j];
    r[j] = NORMALIZE ? prior[j] + y : prior[j] * ex2(LOG2E * y);
  }
  if constexpr (NORMALIZE) {
    float most = LEAST, sum = 0.f;
#pragma unroll
    for (int j = 0; j < J; j++) r[j] = max_nan(r[j], LEAST), most = max_nan(most, r[j]);
#pragma unroll
    for (int j = 0; j < J; j++) r[j] = ex2(LOG2E * (r[j] - most)), sum += r[j];
    sum = rcp(sum);
#pragma unroll
    for (int j = 0; j < J; j++) r[j] *= sum;
  }
  float o = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) {
    const float c = beta[j] * r[j] * delta[j];
    float read = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) w[j][i] += c * k[i], read += w[j][i] * q[i];
    o += mix[j] * read;
    if (a.W_out) *(float4_*)(a.W_out + (column + j * V) * K + dim) = {w[j][0], w[j][1], w[j][2], w[j][3]};
  }
  o = over_group(o);
  if (lane == 0) {
    store(a.out + unit * V + d, o);
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (a.r_out) a.r_out[column + j * V] = r[j];
      if (a.rho_out) a.rho_out[column + j * V] = mix[j];
    }
  }
}
