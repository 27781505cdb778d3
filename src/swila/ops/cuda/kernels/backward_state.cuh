// Predictions and reads of a chunk, from the state W at its start and from what its tokens wrote, c:
//   U_t = (Γ_t k_t) · W + Σ_{s<t} A_ts c_s      S_t = (Γ_t q_t) · W + Σ_{s≤t} P_ts c_s
// Without a decay, W is recovered from the state W' at the chunk's end: W = W' - Σ_t c_t ⊗ k_t. With a decay, states.cu
// has stored it.
#pragma once
#include "backward.cuh"

// Gram matrices of a chunk as operands [16, 16]: A_ts = k_t · k_s for s < t, P_ts = q_t · k_s for s ≤ t, and the transpose of P.
// As accumulators they are two tiles [16, 8], gram_a and gram_p.
struct GramOperands { A16 A, P, P_t; };

// The state W of a warp's columns without a decay: in registers, or in shared memory where there are too few of them.
struct State {
  float (&W)[2][KT][4];
  float4_* slots;
  DEVICE void load(const Arguments& a, i64 row, const Place& p) const {  // as the forward kept it at the end of a segment
#pragma unroll
    for (int i = 0; i < 2 * KT; i++) {
      float4_ kept = a.kept_W[(row * 2 * KT + i) * 32 + p.lane];
      if constexpr (W_SHARED) slots[i * 32] = kept;
#pragma unroll
      for (int e = 0; e < 4; e++)
        if constexpr (!W_SHARED) W[i / KT][i % KT][e] = kept.x[e];
    }
  }
  DEVICE void get(int i, int kt, float (&w)[4]) const {
    float4_ x = {};
    if constexpr (W_SHARED) x = slots[(i * KT + kt) * 32];
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = W_SHARED ? x.x[e] : W[i][kt][e];
  }
  DEVICE void put(int i, int kt, const float (&w)[4]) const {
    if constexpr (W_SHARED) slots[(i * KT + kt) * 32] = {w[0], w[1], w[2], w[3]};
#pragma unroll
    for (int e = 0; e < 4; e++)
      if constexpr (!W_SHARED) W[i][kt][e] = w[e];
  }
};

// Without a decay: the products k_t · k_s and q_t · k_s. Loops whose body does not differ are not unrolled where all of the code of a
// chunk should fit into the instruction cache; warps that wait for these products alone have them unrolled.
DEVICE void gram_products(float (&gram_a)[2][4], float (&gram_p)[2][4], const Operands& x, const Place& p) {
#pragma unroll GRAM_STEPS
  for (int ks = 0; ks < KS; ks++) {
    A16 kf = load_rows(x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane), qf = load_rows(x.q, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
    B16 kh[2];
    load_row_halves(kh[0], kh[1], x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
    for (int h = 0; h < 2; h++) product(gram_a[h], kf, kh[h]), product(gram_p[h], qf, kh[h]);
  }
}
// Gram matrices as operands; as accumulators they are masked. `blocks` are the diagonal blocks of A; A of late
// readers and early writers is `cross`, transposed.
DEVICE void make_gram_operands(GramOperands& g, Pair& cross, float (&blocks)[4], float (&gram_a)[2][4], float (&gram_p)[2][4], const Place& p) {
  blocks[0] = gram_a[0][0], blocks[1] = gram_a[0][1], blocks[2] = gram_a[1][2], blocks[3] = gram_a[1][3];
  cross = pack(gram_a[1][0], gram_a[1][1]);
  mask(gram_a, 1, p), mask(gram_p, 0, p);
  g.A = as_rows(gram_a[0], gram_a[1]), g.P = as_rows(gram_p[0], gram_p[1]);
  g.P_t = stacked(as_columns(gram_p[0]), as_columns(gram_p[1]));
}
// The diagonal blocks of A into a tile [half][t][s].
DEVICE void put_gram_blocks(float* tile, const float (&blocks)[4], const Place& p) {
  *(float2_*)&tile[p.row * 8 + p.quad * 2] = {blocks[0], blocks[1]};
  *(float2_*)&tile[64 + p.row * 8 + p.quad * 2] = {blocks[2], blocks[3]};
}
// Without a decay: W = W' - Σ c ⊗ k in place of W', and from it the first terms, U = k · W and S = q · W.
DEVICE void walk_back(const State& state, float (&U)[4][4], float (&S)[4][4], const Operands& x, const A16 (&c_columns)[2], const Place& p) {
  A16 minus_c[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int n = 0; n < NS; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) minus_c[i].x[n][e] = c_columns[i].x[n][e] ^ 0x80008000u;
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    A16 kf = load_rows(x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane), qf = load_rows(x.q, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
    B16 kb[2];
    load_transposed(kb[0], kb[1], x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float w[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        state.get(i, 2 * ks + h, w[h]);
        product(w[h], minus_c[i], kb[h]);
        state.put(i, 2 * ks + h, w[h]);
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        B16 wb;
        Pair low = pack(w[0][2 * h], w[0][2 * h + 1]), high = pack(w[1][2 * h], w[1][2 * h + 1]);
#pragma unroll
        for (int e = 0; e < NS; e++) wb.x[e][0] = low.x[e], wb.x[e][1] = high.x[e];
        product(U[2 * i + h], kf, wb), product(S[2 * i + h], qf, wb);
      }
    }
  }
}
// Without a decay: the second terms, U += A c and S += P c.
DEVICE void add_written(float (&U)[4][4], float (&S)[4][4], const GramOperands& g, const char* c_tile, const Place& p) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    B16 c[2];
    load_column_halves(c[0], c[1], c_tile, i * 16, p.lane);
#pragma unroll
    for (int h = 0; h < 2; h++) product(U[2 * i + h], g.A, c[h]), product(S[2 * i + h], g.P, c[h]);
  }
}

// With a decay: the first terms, from the stored state; keys and queries carry the decay Γ_t if it is by key dim. With a
// decay by column, also the products k_t · k_s and q_t · k_s, to which the lanes of the columns add the decay.
DEVICE void read_stored_state(float (&U)[4][4], float (&S)[4][4], float (&gram_a)[2][4], float (&gram_p)[2][4], const Operands& x,
                              const uint4_* chunk_W, i64 chunk_unit, const Place& p) {
#pragma unroll
  for (int kk = 0; kk < KS / 2; kk++) {
    B16 wb[4][2];
#pragma unroll
    for (int i = 0; i < NS; i++)
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        uint4_ w = chunk_W[(chunk_unit * STATE_PIECES + (i * 4 + nt) * (KS / 2) + kk) * 32 + p.lane];
        wb[nt][0].x[i][0] = w.x[0], wb[nt][0].x[i][1] = w.x[1], wb[nt][1].x[i][0] = w.x[2], wb[nt][1].x[i][1] = w.x[3];
      }
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int g = 0; g < NG; g++) {
        A16 kf = load_rows(BY_KEY ? x.decay.keys_u + g * GROUP_TILE : x.k, OPERAND_TILE, KEY_ROW, (2 * kk + e) * 16, p.lane);
        A16 qf = load_rows(BY_KEY ? x.decay.queries + g * GROUP_TILE : x.q, OPERAND_TILE, KEY_ROW, (2 * kk + e) * 16, p.lane);
        if constexpr (BY_COLUMN) {
#pragma unroll
          for (int h = 0; h < 2; h++) product(gram_a[h], kf, half_of(kf, h)), product(gram_p[h], qf, half_of(kf, h));
        }
#pragma unroll
        for (int nt = 0; nt < 4; nt++)
          if (group_of(nt) == g) product(U[nt], kf, wb[nt][e]), product(S[nt], qf, wb[nt][e]);
      }
  }
}
// With a decay by column: the Gram matrices into tiles [t, s], first A, then P.
DEVICE void put_grams(float* tile, const float (&gram_a)[2][4], const float (&gram_p)[2][4], const Place& p) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int t = p.row + (i >> 1) * 8, s = h * 8 + p.quad * 2 + (i & 1);
      tile[t * C + s] = gram_a[h][i], tile[C * C + t * C + s] = gram_p[h][i];
    }
}
// With a decay by key dim: the second terms, by the prepared Gram matrices, which contain the decay Γ_ts.
DEVICE void add_written_by_key(float (&U)[4][4], float (&S)[4][4], Pair (&cross)[NG], const KeyDecay& decay, const A16 (&c_columns)[2],
                               const Place& p) {
#pragma unroll
  for (int nt = 0; nt < 4; nt++) {
    const int group = group_of(nt);
    const A16 A = load_rows(decay.A + group * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
    const A16 P = load_rows(decay.P + group * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
    product(U[nt], A, half_of(c_columns[nt / 2], nt % 2));
    product(S[nt], P, half_of(c_columns[nt / 2], nt % 2));
    const A16 A_t = load_rows_transposed(decay.A + group * GRAM_TILE, GRAM_PLANE, GRAM_ROW, p.lane);
#pragma unroll
    for (int i = 0; i < NS; i++) cross[group].x[i] = A_t.x[i][2];
  }
}
