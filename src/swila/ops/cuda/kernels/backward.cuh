// The backward's arguments, the tiles of a chunk, and how it is fetched and its gradients are taken away.
#pragma once
#include "decay.cuh"

constexpr bool LANE_MIX = QUERY_GATE || STATS || BY_COLUMN;  // the query side is done by the lanes that own the columns

// Responsibilities follow from errors by token, all mixtures of an output dim in one lane, unless each needs the one before.
constexpr bool SHARES_BY_TOKEN = NORMALIZE && !KEY_GATE && !BY_COLUMN && J > 1;
// Priors and such responsibilities are made by token, log-priors otherwise read by column.
constexpr int LK_TOKEN = KEY_GATE || !NORMALIZE || SHARES_BY_TOKEN ? BY_TOKEN : J * B_ROW;
constexpr int STAGE_READY = 0, STAGE_K = KEY_DECAY_BYTES, STAGE_Q = STAGE_K + !BY_KEY * C * X_ROW;
constexpr int STAGE_O = STAGE_Q + !BY_KEY * C * X_ROW, STAGE_BETA = STAGE_O + C * V_ROW;
constexpr int STAGE_LK = STAGE_BETA + C * J * B_ROW, STAGE_LQ = STAGE_LK + C * LK_TOKEN;
constexpr int STAGE_GK = STAGE_LQ + C * BY_TOKEN, STAGE_GQ = STAGE_GK + KEY_GATE * C * B_ROW;
constexpr int STAGE_V = STAGE_GQ + QUERY_GATE * C * B_ROW, STAGE_C = STAGE_V + C * V_ROW, STAGE_D = STAGE_C;
constexpr int STAGE_BYTES = DECAY ? STAGE_D + !BY_KEY * DECAY_TILE : STAGE_C + NW * NS * PAIR_PLANE;
// Of a warp: exchange between layouts and operands; in their place, later, its part of dq and dk.
constexpr int SUM_ROW = KP + 8;
constexpr int WARP_U = 0, WARP_DU = WARP_U + C * U_ROW * 4, WARP_DS = WARP_DU + NS * PAIR_PLANE;
constexpr int WARP_ERROR = WARP_DS + NS * PAIR_PLANE, WARP_R = WARP_ERROR + !BY_COLUMN * C * U_ROW * 4;
constexpr int WARP_PRIOR = WARP_R + !BY_COLUMN * C * U_ROW * 4;
constexpr int EXCHANGE_BYTES = WARP_PRIOR + (!BY_COLUMN && (KEY_GATE || !NORMALIZE)) * C * U_ROW * 4, SUM_BYTES = BY_KEY ? 0 : 2 * C * SUM_ROW * 4;
constexpr int WARP_A = EXCHANGE_BYTES > SUM_BYTES ? EXCHANGE_BYTES : SUM_BYTES;
constexpr bool W_SHARED = KP > 64 && !DECAY;  // two states are too much for the registers
constexpr int WARP_C = WARP_A + (BY_COLUMN ? 2 * C * C : 2 * 64) * 4, WARP_W = WARP_C + BY_COLUMN * NS * PAIR_PLANE;
constexpr int WARP_BYTES = WARP_W + W_SHARED * 2 * KT * 512;
constexpr int OPERANDS = RAW || BY_KEY ? 0 : 2 * NS * OPERAND_TILE;
constexpr int FIXED_BYTES = NW * WARP_BYTES + OPERANDS;
constexpr int STAGES = FIXED_BYTES + 2 * STAGE_BYTES <= SHARED_LIMIT ? 2 : 1;
NEEDS(STAGES * STAGE_BYTES + FIXED_BYTES, NT)

struct Arguments {
  const TX *q, *k, *v;
  const TB *beta, *key_logits, *query_logits, *key_gate, *query_gate;
  const INDEX* bounds;
  const TX* dout;
  const float *dW_out, *dr_out, *drho_out;  // adjoint of the final state, or null
  const float* dstats;                      // of usage and entropy, keys then queries, per token: [4][H, J, V]
  const float4_* kept_W;
  const uint4_* kept_c;
  const float* kept_mix;
  const TD* decay;
  const uint4_* prepared;                  // by key dim: what prepare.cu made of decays, keys and queries
  const uint4_* chunk_W;                   // with a decay: states at the start of chunks
  uint4_ *chunk_du, *chunk_ds, *chunk_dW;  // by key dim: to be written, du and dS like c, and dW at the end of chunks
  TX *dq, *dk;
  float* partial;  // with several blocks per head: their parts of dq and dk, [2][VT][tokens, H, K]
  TX* dv;
  TB *dbeta, *dkey_logits, *dquery_logits, *dkey_gate, *dquery_gate;
  void* ddecay;  // by output dim: like the decay; by head: its parts [tokens, H, J, V], float
  float *dW_in, *dr_in, *drho_in;  // adjoint of the initial state, or null
  i64 N, T, H;
};

// Where a thread's pieces of a chunk are; found anew for each chunk, for registers are short.
struct ChunkPieces {
  Pieces<1, K * (int)sizeof(TX), X_ROW> keys;
  Pieces<1, VB * (int)sizeof(TX), V_ROW> values;
  Pieces<J, VB * (int)sizeof(TB), B_ROW> rates;
  Pieces<J, VB * (int)sizeof(TB), B_ROW, LK_TOKEN> key_logits;
  Pieces<J, VB * (int)sizeof(TB), B_ROW, BY_TOKEN> query_logits;
  Pieces<1, VB * (int)sizeof(TB), B_ROW> gates;
  DecayPieces decays;
  DEVICE ChunkPieces(i64 H, u32 thread)
      : keys(H * K * sizeof(TX), 0, thread), values(H * V * sizeof(TX), 0, thread),
        rates(H * J * V * sizeof(TB), V * sizeof(TB), thread), key_logits(H * J * V * sizeof(TB), V * sizeof(TB), thread),
        query_logits(H * J * V * sizeof(TB), V * sizeof(TB), thread), gates(H * V * sizeof(TB), 0, thread),
        decays(decay_pieces(H, thread)) {}
  // The gradients that have taken the place of inputs; `row` is the number of the chunk's first token and head.
  DEVICE void flush(const Arguments& a, const char* s, i64 row, int vt, int valid) const {
    const i64 wide = row * J * V + vt * VB, narrow = row * V + vt * VB;
    rates.flush(a.dbeta + wide, s + STAGE_BETA, valid);
    key_logits.flush(a.dkey_logits + wide, s + STAGE_LK, valid);
    query_logits.flush(a.dquery_logits + wide, s + STAGE_LQ, valid);
    values.flush(a.dv + narrow, s + STAGE_O, valid);
    if constexpr (DECAY == 2) decays.flush((TD*)a.ddecay + wide, s + STAGE_D, valid);
    if (KEY_GATE) gates.flush(a.dkey_gate + narrow, s + STAGE_GK, valid);
    if (QUERY_GATE) gates.flush(a.dquery_gate + narrow, s + STAGE_GQ, valid);
  }
};

// Sums of the warps' parts of dq and dk, to memory.
DEVICE void store_sums(const Arguments& a, const char* parts, i64 t0, i64 head, int vt, int valid) {
  constexpr int PAIRS = 2 * C * K / 2;
  const u32 thread = thread_again();
#pragma unroll
  for (int from = 0; from < PAIRS; from += NT) {
    const u32 i = from + thread, which = i / (C * K / 2), t = i / (K / 2) % C, dim = i % (K / 2) * 2;
    if (PAIRS % NT != 0 && i >= PAIRS) continue;
    float x = 0.f, y = 0.f;
#pragma unroll
    for (int w = 0; w < NW; w++) {
      float2_ z = *(const float2_*)(parts + w * WARP_BYTES + ((which * C + t) * SUM_ROW + dim) * 4);
      x += z.x[0], y += z.x[1];
    }
    if ((int)t >= valid) continue;
    const i64 place = ((t0 + t) * a.H + head) * K + dim;
    if constexpr (VT == 1) {
      store2((which ? a.dk : a.dq) + place, x, y);
    } else {
      const i64 tokens = a.bounds ? a.T : a.N * a.T;
      store2(a.partial + (which * VT + vt) * tokens * a.H * K + place, x, y);
    }
  }
}

// What a lane has of each token of its column: in registers, or in a tile where these are short.
struct InRegisters {
  float x[C];
  DEVICE InRegisters(float*) {}
  DEVICE float& operator[](int t) { return x[t]; }
};
struct InTile {
  float* x;
  DEVICE InTile(float* column) : x(column) {}
  DEVICE float& operator[](int t) const { return x[t * U_ROW]; }
};
template <bool> struct PerToken { typedef InTile type; };
template <> struct PerToken<true> { typedef InRegisters type; };

// The tiles of a warp's chunk: inputs, with gradients in their place later; the rest for exchange.
struct Tiles {
  char* stage;
  float *u, *a, *error, *r, *prior;
  char *du, *ds;
};
typedef typename PerToken<BY_COLUMN>::type Column;
// What is summed over mixtures, of four tokens from t on; a lane stores one of them.
template <class T> DEVICE void put_sums(char* tile, const Place& p, int t, const float (&x)[4]) {
  if constexpr (JP == 4) {
    const float sum = sum_of_four(x, p);
    if (p.d < V) store((T*)(tile + (t + p.j) * row_bytes<T>(VB)) + p.warp * DPW + p.d, sum);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float sum = sum_mixtures(x[i]);
      if (p.alive && p.j == 0) store((T*)(tile + (t + i) * row_bytes<T>(VB)) + p.warp * DPW + p.d, sum);
    }
  }
}
// Gradients take the place of inputs in their tiles, and go from there to memory.
template <class T, int TOKEN = J * row_bytes<T>(VB)> DEVICE void put_gradient(char* tile, const Place& p, int t, float x) {
  if (p.alive) store((T*)(tile + t * TOKEN + p.j * row_bytes<T>(VB)) + p.warp * DPW + p.d, x);
}
