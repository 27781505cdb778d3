// Gradients of queries and keys, and the adjoint of the state at the chunk's start, once du and dS of the chunk are known:
//   dA = du c^T below the diagonal      dP = dS c^T on and below it
//   dq = dS W + dP k                    dk = du W + (dA + dA^T) k + dP^T q + c dW'
//   dW = Γ_C dW' + Σ_t du_t ⊗ Γ_t k_t + dS_t ⊗ Γ_t q_t
#pragma once
#include "backward_state.cuh"

// du, dS and c of a warp as operands [16 tokens, 16 columns], whose columns are summed over.
struct TokenOperands {
  A16 c[2], du[2], ds[2];
  TokenOperands() = default;
  DEVICE TokenOperands(const char* c_tile, const Tiles& tiles, const Place& p) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      ds[i] = load_tokens_operand(tiles.ds, i * 16, p.lane);
      c[i] = load_tokens_operand(c_tile, i * 16, p.lane);
      du[i] = load_tokens_operand(tiles.du, i * 16, p.lane);
    }
  }
};
// dA + dA^T, dP and the transpose of dP as operands. dA is zero on and above the diagonal, so that its sum with the transpose is a
// union of bits.
struct GramAdjoints {
  A16 da, dp, dp_t;
  DEVICE GramAdjoints(const float (&x)[2][4], const float (&y)[2][4])
      : da(as_rows(x[0], x[1])), dp(as_rows(y[0], y[1])), dp_t(stacked(as_columns(y[0]), as_columns(y[1]))) {
    const A16 da_t = stacked(as_columns(x[0]), as_columns(x[1]));
#pragma unroll
    for (int n = 0; n < NS; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) da.x[n][i] |= da_t.x[n][i];
  }
};
// Without a decay by column; with one they are from DecayedColumn::grams.
DEVICE GramAdjoints gram_adjoints(const TokenOperands& o, const Place& p) {
  float x[2][4] = {}, y[2][4] = {};
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) product(x[h], o.du[i], half_of(o.c[i], h)), product(y[h], o.ds[i], half_of(o.c[i], h));
  mask(x, 1, p), mask(y, 0, p);
  return GramAdjoints(x, y);
}

// Without a decay by key dim: this warp's part of dq and dk into `sums`, eight key dims at a time, and dW in place of dW'.
DEVICE void state_gradients(float (&dW)[2][KT][4], float* sums, const State& state, const Arguments& a, i64 chunk_unit, const Operands& x,
                            const TokenOperands& o, const GramAdjoints& g, const A16 (&du_columns)[2], const A16 (&ds_columns)[2],
                            const float* across_tile, const Place& p) {
  float across[2][2];  // by column: Γ_C of this lane's rows of the state
  if constexpr (BY_COLUMN) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) across[i][h] = across_tile[i * 16 + h * 8 + p.row];
  }
  sync_warp();
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    B16 kb[2], qb[2];
    load_transposed(kb[0], kb[1], x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
    load_transposed(qb[0], qb[1], x.q, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int kt = 2 * ks + h;
      float dq[4] = {}, dk[4] = {};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        B16 wt;
        if constexpr (BY_COLUMN) {
#pragma unroll
          for (int n = 0; n < NS; n++)
#pragma unroll
            for (int y = 0; y < 2; y++) {
              const u32* words = (const u32*)&a.chunk_W[(chunk_unit * STATE_PIECES + (n * 4 + 2 * i + y) * (KS / 2) + kt / 4) * 32 + p.lane];
              wt.x[n][y] = transposed(words[kt % 4]);
            }
        } else {
          float w[4];
          state.get(i, kt, w);
          wt = as_columns(w);
        }
        product(dq, o.ds[i], wt);
        product(dk, o.du[i], wt);
        product(dk, o.c[i], as_columns(dW[i][kt]));
      }
      product(dq, g.dp, kb[h]);
      product(dk, g.da, kb[h]), product(dk, g.dp_t, qb[h]);
      float* to = sums + p.row * SUM_ROW + kt * 8 + p.quad * 2;
      *(float2_*)to = {dq[0], dq[1]}, *(float2_*)(to + 8 * SUM_ROW) = {dq[2], dq[3]};
      *(float2_*)(to + C * SUM_ROW) = {dk[0], dk[1]}, *(float2_*)(to + (C + 8) * SUM_ROW) = {dk[2], dk[3]};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if constexpr (BY_COLUMN) {
#pragma unroll
          for (int e = 0; e < 4; e++) dW[i][kt][e] *= across[i][e >> 1];
        }
        product(dW[i][kt], du_columns[i], kb[h]), product(dW[i][kt], ds_columns[i], qb[h]);
      }
    }
  }
}
// With a decay by key dim: du, dS and dW' are left to backward_keys.cu, and dW takes the place of dW'.
DEVICE void state_gradients_by_key(float (&dW)[2][KT][4], const Arguments& a, i64 chunk_unit, const KeyDecay& decay,
                                   const A16 (&du_columns)[2], const A16 (&ds_columns)[2], const Place& p) {
  u32 *du_kept = (u32*)(a.chunk_du + chunk_unit * NS * 64), *ds_kept = (u32*)(a.chunk_ds + chunk_unit * NS * 64);
#pragma unroll
  for (int i = 0; i < 2; i++) store_kept(du_kept, du_columns[i], i * 16, p), store_kept(ds_kept, ds_columns[i], i * 16, p);
  emit_state(a.chunk_dW + chunk_unit * STATE_PIECES * 32, dW, p.lane);
  decay_state(dW, decay, p);
  add_outer(dW, du_columns, decay.keys_u, OPERAND_ROW, p.lane);
  add_outer(dW, ds_columns, decay.queries, OPERAND_ROW, p.lane);
}
// Where dq (which = 0) or dk (which = 1) go, or with several blocks per head a block's parts of them.
typedef typename type_if<VT == 1, TX, PARTIAL>::type SUM;
DEVICE SUM* sums_at(const Arguments& a, int which, int vt) {
  if constexpr (VT == 1) return which ? a.dk : a.dq;
  return (SUM*)a.partial + (which * VT + vt) * (a.bounds ? a.T : a.N * a.T) * a.H * K;
}
// The sum of the warps' parts, `stride` bytes apart, to memory; `row` is the number of the chunk's first token and head. A thread loads
// four key dims at once, twice if there are enough, or two, in an unrolled loop.
template <bool BY_FOUR> DEVICE void store_sum(SUM* sums, const char* parts, int stride, u32 thread, i64 row, i64 H, int valid) {
  typedef typename type_if<BY_FOUR, float4_, float2_>::type Dims;
  constexpr int DIMS = BY_FOUR ? 4 : 2, TIMES = BY_FOUR && C * K / 8 >= NT ? 2 : 1, PER_TOKEN = K / (DIMS * TIMES), PIECES = C * PER_TOKEN;
#pragma unroll(BY_FOUR ? 1 : 4)
  for (int from = 0; from < PIECES; from += NT) {
    const u32 i = from + thread, t = i / PER_TOKEN, dim = i % PER_TOKEN * DIMS;
    if (PIECES % NT != 0 && i >= PIECES) continue;
    Dims sum[TIMES];
#pragma unroll
    for (int w = 0; w < NW; w++)
#pragma unroll
      for (int n = 0; n < TIMES; n++) {
        const Dims x = *(const Dims*)(parts + w * stride + (t * SUM_ROW + dim + n * (K / TIMES)) * 4);
#pragma unroll
        for (int e = 0; e < DIMS; e++) sum[n].x[e] = w ? sum[n].x[e] + x.x[e] : x.x[e];
      }
    if ((int)t >= valid) continue;
    SUM* to = sums + row * K + (i64)(t * (u32)(H * K) + dim);
#pragma unroll
    for (int n = 0; n < TIMES; n++)
      if constexpr (BY_FOUR) store4(to + n * (K / TIMES), sum[n]); else store2(to, sum[n].x[0], sum[n].x[1]);
  }
}
