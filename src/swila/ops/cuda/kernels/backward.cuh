// Arguments of the backward, tiles of a chunk, and copies of inputs and gradients between memory and tiles.
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
// Tiles of a warp: exchange between layouts, and operands; later, in the same memory, its part of dq and dk.
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
  // Store the gradients, which have replaced inputs in their tiles; `row` is the number of the chunk's first token and head.
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
// Gradients replace inputs in their tiles; ChunkPieces::flush stores them.
template <class T, int TOKEN = J * row_bytes<T>(VB)> DEVICE void put_gradient(char* tile, const Place& p, int t, float x) {
  if (p.alive) store((T*)(tile + t * TOKEN + p.j * row_bytes<T>(VB)) + p.warp * DPW + p.d, x);
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

// Start copying the inputs of a chunk, and c without a decay, into a stage; zeros for a chunk before the first.
DEVICE void fetch_stage(const Arguments& a, const Work& w, char* s, i64 chunk, const Place& p) {
  const int valid = w.valid(chunk);
  const ChunkPieces pieces(w.H, thread_again());
  i64 row = (w.span.begin + chunk * C) * w.H + w.head, wide = row * J * V + w.vt * VB, narrow = row * V + w.vt * VB;
  if constexpr (BY_KEY) {
    fetch_prepared(s + STAGE_READY, a.prepared, chunk < 0 ? 0 : chunk_row(a.bounds, w.span, chunk, w.T) * w.H + w.head, chunk >= 0);
  } else {
    pieces.keys.copy(s + STAGE_K, a.k + row * K, valid);
    pieces.keys.copy(s + STAGE_Q, a.q + row * K, valid);
  }
  pieces.values.copy(s + STAGE_O, a.dout + narrow, valid);
  pieces.values.copy(s + STAGE_V, a.v + narrow, valid);
  pieces.rates.copy(s + STAGE_BETA, a.beta + wide, valid);
  pieces.key_logits.copy(s + STAGE_LK, a.key_logits + wide, valid);
  pieces.query_logits.copy(s + STAGE_LQ, a.query_logits + wide, valid);
  if (KEY_GATE) pieces.gates.copy(s + STAGE_GK, a.key_gate + narrow, valid);
  if (QUERY_GATE) pieces.gates.copy(s + STAGE_GQ, a.query_gate + narrow, valid);
  if constexpr (BY_COLUMN) {
    fetch_decay(pieces.decays, s + STAGE_D, a.decay, row, w.vt, valid);
  } else if constexpr (!BY_KEY) {
    const uint4_* c = a.kept_c + (chunk < 0 ? 0 : w.chunk_unit(a, chunk) * NS * 64 + p.lane);
#pragma unroll
    for (int i = 0; i < NS * 2; i++)
      copy_async(s + STAGE_C + (p.warp * NS + i / 2) * PAIR_PLANE + pair_row(i % 2 * 16 + p.lane / 2) + p.lane % 2 * 16, c + i * 32, chunk >= 0);
  }
  copy_commit();
}

// Keys and queries of a chunk as operands of products: tiles [16 tokens, K], or with a decay by key dim the prepared ones.
constexpr int KEY_ROW = RAW ? X_ROW : OPERAND_ROW;
struct Operands {
  const char *k, *q;
  KeyDecay decay;
  DEVICE Operands(char* stage, char* converted) : k(stage + STAGE_K), q(stage + STAGE_Q) {
    if constexpr (BY_KEY) {
      decay = key_decay_at(stage + STAGE_READY);
    } else if constexpr (!RAW) {
      as_operands(converted, k);
      as_operands(converted + NS * OPERAND_TILE, q);
      sync_block();
      k = converted, q = converted + NS * OPERAND_TILE;
    }
  }
};
