// Arguments of the backward, tiles of a chunk, and the pieces in which they are copied.
#pragma once
#include "decay.cuh"

// Responsibilities follow from errors by token, all mixtures of an output dim in one lane, unless each needs the one before.
constexpr bool ERRORS_BY_TOKEN = NORMALIZE && !BY_COLUMN && J > 1;
constexpr bool SHARES_BY_TOKEN = ERRORS_BY_TOKEN && !KEY_GATE, OVER_TIME = ERRORS_BY_TOKEN && KEY_GATE;
// Priors and such responsibilities are made by token, log-priors otherwise read by column.
constexpr int LK_TOKEN = KEY_GATE || !NORMALIZE || SHARES_BY_TOKEN ? BY_TOKEN : J * B_ROW;
constexpr int SUM_ROW = KP + 8;
#ifdef SPLIT_ROLES
#include "backward_split_tiles.cuh"
#else
#include "backward_tiles.cuh"
#endif

// Parts are as precise as bf16 results, or else float32.
typedef typename type_if<same<TX, bf16>::value, bf16, float>::type PARTIAL;

struct Arguments {
  const TX *q, *k, *v;
  const TB *beta, *key_logits, *query_logits, *key_gate, *query_gate;
  const INDEX* bounds;
  const TX* dout;
  const float *dW_out, *dr_out, *drho_out;  // adjoint of the final state, or null
  const float* dstats;                      // of usage and entropy, keys then queries, per token: [4][H, J, V]
  const float4_* kept_W;
  const uint4_* kept_c;
  const float* kept_mix;  // r and rho at the start of every chunk, r in its middle
  const TD* decay;
  const uint4_* prepared;                  // by key dim: what prepare.cu made of decays, keys and queries
  const uint4_* chunk_W;                   // with a decay: states at the start of chunks
  uint4_ *chunk_du, *chunk_ds, *chunk_dW;  // by key dim: to be written, du and dS like c, and dW at the end of chunks
  TX *dq, *dk;
  void* partial;  // with several blocks per head: their parts of dq and dk, PARTIAL [2][VT][tokens, H, K]
  TX* dv;
  TB *dbeta, *dkey_logits, *dquery_logits, *dkey_gate, *dquery_gate;
  void* ddecay;  // by output dim: like the decay; by head: its parts [tokens, H, J, V], float
  float *dW_in, *dr_in, *drho_in;  // adjoint of the initial state, or null
  i64 N, T, H;
};

// The pieces of a chunk that a thread copies; computed again for each chunk, because registers are short.
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
};

// A number for each token of a lane's column: in registers, or in a tile where registers are short.
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
  char* const& stage;  // a reference: with a copy the compiler computes the addresses in it anew
  float *u, *a, *error, *r, *prior;
  char *du, *ds;
};
typedef typename PerToken<BY_COLUMN>::type Column;
// Exchange the early and late halves of accumulators [16 tokens, 32 columns], for loops over halves that are not unrolled.
DEVICE void swap_halves(float (&x)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float early = x[n][i];
      x[n][i] = x[n][2 + i], x[n][2 + i] = early;
    }
}
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
// Gradients replace inputs in their tiles, from which they are stored to memory.
template <class T, int TOKEN = J * row_bytes<T>(VB)> DEVICE void put_gradient(char* tile, const Place& p, int t, float x) {
  if (p.alive) store((T*)(tile + t * TOKEN + p.j * row_bytes<T>(VB)) + p.warp * DPW + p.d, x);
}

// By token, where a lane has all mixtures of its output dims: gradients of a token's gates, Σ_j `gates`, and of its logits,
// dπ - π Σ_j dπ, into their tiles. Each is given for the four tiles [16 tokens, 8 columns].
DEVICE void put_sums_by_token(char* gate_tile, char* logit_tile, int t, const float2_ (&gates)[4], const float2_ (&dpi)[4], const float2_ (&pi)[4],
                              const Place& p) {
#pragma unroll
  for (int b = 0; b < DB; b++) {
    const int d = p.warp * DPW + b * 8 + p.quad * 2;
    float gate[2] = {}, sum[2] = {};
#pragma unroll
    for (int n = b; n < 4; n += DB)
#pragma unroll
      for (int e = 0; e < 2; e++) gate[e] += gates[n].x[e], sum[e] += dpi[n].x[e];
    store2((TB*)(gate_tile + t * B_ROW) + d, gate[0], gate[1]);
#pragma unroll
    for (int n = b; n < 4; n += DB)
      if (n / DB < J)
        store2((TB*)(logit_tile + t * BY_TOKEN + n / DB * B_ROW) + d, dpi[n].x[0] - pi[n].x[0] * sum[0], dpi[n].x[1] - pi[n].x[1] * sum[1]);
  }
}

// The head, the tokens and the output dims of a block, and the rows of a warp in what is kept; the same for all chunks.
struct Work {
  i64 block, H, T, head, unit, at;  // unit: sequence and head; at: the lane's column in r and rho
  Span span;
  i64 warp_unit, warp_units, chunks;
  int vt, first;             // block of output dims; first output dim of the warp
  DEVICE Work(const Arguments& a, const Place& p) : block(blockIdx.x), H(a.H), T(a.T) {
    vt = (int)(block % VT), first = vt * VB + p.warp * DPW;
    head = block / VT % H;
    span = sequence(a.bounds, block / VT / H, T);
    unit = span.n * H + head, at = (unit * J + p.j) * V + first + p.d;
    warp_unit = (head * VT + vt) * NW + p.warp, warp_units = H * VT * NW;
    chunks = (span.end - span.begin + C - 1) / C;
  }
  DEVICE int valid(i64 chunk) const {  // number of its tokens; 0 before the first chunk
    i64 left = span.end - span.begin - chunk * C;
    return chunk < 0 ? 0 : left < C ? (int)left : C;
  }
  DEVICE i64 chunk_unit(const Arguments& a, i64 chunk) const { return chunk_row(a.bounds, span, chunk, T) * warp_units + warp_unit; }
};

// Keys and queries of a chunk as operands of products: tiles [16 tokens, K], or with a decay by key dim the prepared ones.
constexpr int KEY_ROW = RAW ? X_ROW : OPERAND_ROW;
struct Operands {
  const char *k, *q;
  KeyDecay decay;
  DEVICE Operands(char* stage, char* converted) : k(stage + STAGE_K), q(stage + STAGE_Q) {
    if constexpr (BY_KEY) {
      decay = key_decay_at(stage);
    } else if constexpr (!RAW) {
      as_operands(converted, k);
      as_operands(converted + NS * OPERAND_TILE, q);
      sync_block();
      k = converted, q = converted + NS * OPERAND_TILE;
    }
  }
};
