// Shared by the forward kernels: arguments, tiles of a chunk, and loads.
#pragma once
#include "decay.cuh"

constexpr bool LANE_MIX = QUERY_GATE || STATS || BY_COLUMN;  // the query mix is made by the lanes that own the columns

// Priors are made by token, log-priors and rates are read by column; a kernel may read all of them by token.
#ifdef ALL_BY_TOKEN
constexpr int LK_TOKEN = BY_TOKEN, BETA_TOKEN = BY_TOKEN;
#else
constexpr int LK_TOKEN = KEY_GATE || !NORMALIZE ? BY_TOKEN : J * B_ROW, BETA_TOKEN = J * B_ROW;
#endif
constexpr int STAGE_READY = 0, STAGE_K = KEY_DECAY_BYTES, STAGE_Q = STAGE_K + !BY_KEY * C * X_ROW;
constexpr int STAGE_V = STAGE_Q + !BY_KEY * C * X_ROW, STAGE_LQ = STAGE_V + C * V_ROW;
constexpr int STAGE_GQ = STAGE_LQ + C * BY_TOKEN, STAGE_BETA = STAGE_GQ + QUERY_GATE * C * B_ROW;
constexpr int STAGE_LK = STAGE_BETA + C * BETA_TOKEN, STAGE_GK = STAGE_LK + C * LK_TOKEN;
constexpr int STAGE_D = STAGE_GK + KEY_GATE * C * B_ROW;
constexpr int STAGE_BYTES = STAGE_D + !BY_KEY * DECAY_TILE;
constexpr int STAGE_EARLY = STAGE_BETA;  // what follows is the keys' side, which a kernel may be done with sooner

struct Arguments {
  const TX *q, *k, *v;
  const TB *beta, *key_logits, *query_logits, *key_gate, *query_gate;
  const TD* decay;
  const uint4_* prepared;    // by key dim: what prepare.cu made of decays, keys and queries
  const float *W, *r, *rho;  // initial state, or null
  const INDEX* bounds;       // of packed sequences, or null
  TX* out;
  float *W_out, *r_out, *rho_out;           // final state, or null
  float* stats;                             // [4][N, H, J, V]: sums of r, -r log r, rho, -rho log rho; entropies to be summed over J
  float4_* kept_W;                          // states at the ends of segments, in the order of registers, or null
  uint4_* kept_c;                           // c of every chunk, as operands [32 columns, 16 tokens]
  float* kept_mix;                          // r and rho at the start of every chunk, r in its middle
  i64 N, T, H;
};

// The inputs of 16 tokens into a stage, by some threads of a block; zeros after the end of the sequence.
template <int THREADS = NT> struct Fetch {
  Pieces<1, K * (int)sizeof(TX), X_ROW, X_ROW, THREADS> keys;
  Pieces<1, VB * (int)sizeof(TX), V_ROW, V_ROW, THREADS> values;
  Pieces<J, VB * (int)sizeof(TB), B_ROW, BETA_TOKEN, THREADS> rates;
  Pieces<J, VB * (int)sizeof(TB), B_ROW, LK_TOKEN, THREADS> key_logits;
  Pieces<J, VB * (int)sizeof(TB), B_ROW, BY_TOKEN, THREADS> query_logits;
  Pieces<1, VB * (int)sizeof(TB), B_ROW, B_ROW, THREADS> gates;
  DecayPieces decays;
  DEVICE Fetch(i64 H, u32 thread = threadIdx.x)
      : keys(H * K * sizeof(TX), 0, thread), values(H * V * sizeof(TX), 0, thread), rates(H * J * V * sizeof(TB), V * sizeof(TB), thread),
        key_logits(H * J * V * sizeof(TB), V * sizeof(TB), thread), query_logits(H * J * V * sizeof(TB), V * sizeof(TB), thread),
        gates(H * V * sizeof(TB), 0, thread), decays(decay_pieces(H)) {}
  // `unit` is the number of the chunk and head, where decays were prepared.
  DEVICE void operator()(const Arguments& a, char* s, i64 t0, i64 stop, i64 head, int vt, i64 unit = 0) const {
    parted(a, s, s + STAGE_EARLY, t0 * a.H + head, t0 >= stop ? 0 : stop - t0 < C ? (int)(stop - t0) : C, vt, unit);
  }
  // The same with the tiles after STAGE_EARLY at an address of their own; `row` is the number of the first token and head.
  DEVICE void parted(const Arguments& a, char* s, char* early, i64 row, int valid, int vt, i64 unit = 0) const {
    const i64 wide = row * J * V + vt * VB, narrow = row * V + vt * VB;
    if constexpr (BY_KEY) {
      fetch_prepared(s + STAGE_READY, a.prepared, unit, valid > 0);
    } else {
      keys.copy(s + STAGE_K, a.k + row * K, valid);
      keys.copy(s + STAGE_Q, a.q + row * K, valid);
      fetch_decay(decays, early + STAGE_D - STAGE_EARLY, a.decay, row, vt, valid);
    }
    values.copy(s + STAGE_V, a.v + narrow, valid);
    rates.copy(early + STAGE_BETA - STAGE_EARLY, a.beta + wide, valid);
    key_logits.copy(early + STAGE_LK - STAGE_EARLY, a.key_logits + wide, valid);
    query_logits.copy(s + STAGE_LQ, a.query_logits + wide, valid);
    if (KEY_GATE) gates.copy(early + STAGE_GK - STAGE_EARLY, a.key_gate + narrow, valid);
    if (QUERY_GATE) gates.copy(s + STAGE_GQ, a.query_gate + narrow, valid);
    copy_commit();
  }
};

// Store the final state and the sums for the statistics, where the call returns them.
struct Ended {
  float r, rho, used_k, spread_k, used_q, spread_q;
};
DEVICE void finish(const Arguments& a, const float (&W)[2][KT][4], const Ended& e, i64 unit, int first, i64 at, const Place& p) {
  if (a.W_out) {
    store_state(a.W_out, W, unit, first, p);
    if (a.r_out && p.alive) a.r_out[at] = e.r;
    if (a.rho_out && p.alive) a.rho_out[at] = e.rho;
  }
  if (STATS && p.alive) {
    const i64 all = a.N * a.H * J * V;
    a.stats[at] = e.used_k, a.stats[all + at] = e.spread_k, a.stats[2 * all + at] = e.used_q, a.stats[3 * all + at] = e.spread_q;
  }
}
