// What the forward kernels share: their arguments, the tiles of a chunk, and how it is fetched.
#pragma once
#include "decay.cuh"

constexpr bool LANE_MIX = QUERY_GATE || STATS || BY_COLUMN;  // the query mix is made by the lanes that own the columns

// Priors are made by token, log-priors are read by column.
constexpr int LK_TOKEN = KEY_GATE || !NORMALIZE ? BY_TOKEN : J * B_ROW;
constexpr int STAGE_K = 0, STAGE_Q = STAGE_K + C * X_ROW, STAGE_V = STAGE_Q + C * X_ROW, STAGE_BETA = STAGE_V + C * V_ROW;
constexpr int STAGE_LK = STAGE_BETA + C * J * B_ROW, STAGE_LQ = STAGE_LK + C * LK_TOKEN;
constexpr int STAGE_GK = STAGE_LQ + C * BY_TOKEN, STAGE_GQ = STAGE_GK + KEY_GATE * C * B_ROW;
constexpr int STAGE_D = STAGE_GQ + QUERY_GATE * C * B_ROW;
constexpr int STAGE_BYTES = STAGE_D + DECAY_TILE;

struct Arguments {
  const TX *q, *k, *v;
  const TB *beta, *key_logits, *query_logits, *key_gate, *query_gate;
  const TD* decay;
  const float *W, *r, *rho;  // initial state, or null
  const INDEX* bounds;       // of packed sequences, or null
  TX* out;
  float *W_out, *r_out, *rho_out;           // final state, or null
  float* stats;                             // [4][N, H, J, V]: sums of r, -r log r, rho, -rho log rho
  float4_* kept_W;                          // states at the ends of segments, in the order of registers, or null
  uint4_* kept_c;                           // c of every chunk, as operands [32 columns, 16 tokens]
  float* kept_mix;                          // r and rho at the start of every chunk
  i64 N, T, H;
};

// The inputs of 16 tokens from t0 on into a stage; zeros after the end of the sequence.
DEVICE void fetch_chunk(const Arguments& a, char* s, i64 t0, i64 stop, i64 head, int vt) {
  const i64 H = a.H;
  int valid = t0 >= stop ? 0 : stop - t0 < C ? (int)(stop - t0) : C;
  i64 row = t0 * H + head, wide = row * J * V + vt * VB;
  fetch<1, K * (int)sizeof(TX), X_ROW>(s + STAGE_K, (const char*)(a.k + row * K), H * K * sizeof(TX), 0, valid);
  fetch<1, VB * (int)sizeof(TX), V_ROW>(s + STAGE_V, (const char*)(a.v + row * V + vt * VB), H * V * sizeof(TX), 0, valid);
  fetch<J, VB * (int)sizeof(TB), B_ROW>(s + STAGE_BETA, (const char*)(a.beta + wide), H * J * V * sizeof(TB), V * sizeof(TB), valid);
  fetch<J, VB * (int)sizeof(TB), B_ROW, LK_TOKEN>(s + STAGE_LK, (const char*)(a.key_logits + wide), H * J * V * sizeof(TB), V * sizeof(TB), valid);
  fetch<1, K * (int)sizeof(TX), X_ROW>(s + STAGE_Q, (const char*)(a.q + row * K), H * K * sizeof(TX), 0, valid);
  fetch<J, VB * (int)sizeof(TB), B_ROW, BY_TOKEN>(s + STAGE_LQ, (const char*)(a.query_logits + wide), H * J * V * sizeof(TB), V * sizeof(TB), valid);
  i64 gate = row * V + vt * VB;
  if (KEY_GATE) fetch<1, VB * (int)sizeof(TB), B_ROW>(s + STAGE_GK, (const char*)(a.key_gate + gate), H * V * sizeof(TB), 0, valid);
  if (QUERY_GATE) fetch<1, VB * (int)sizeof(TB), B_ROW>(s + STAGE_GQ, (const char*)(a.query_gate + gate), H * V * sizeof(TB), 0, valid);
  fetch_decay(s + STAGE_D, a.decay, row, H, vt, valid);
  copy_commit();
}
