// The adjoint for bf16 without decay, two to four mixtures and K up to 64, with different work for different warps of a block.
//
// Half of the warps hold the state W. They go back through the chunks ahead of the others and compute what does not depend on the
// adjoint of the state: errors, responsibilities, the query side with dS and dq, and W as operands. The other half hold the adjoint
// dW: substitution in reverse, gradients of β, logits, gates and v, dk and dW. What the first give to the second is in shared
// memory, twice where there is room. The algorithms are those of backward.cu.
#define SPLIT_ROLES
#include "backward_adjoint.cuh"
#include "backward_gradients.cuh"
#include "backward_mix.cuh"

static_assert(DECAY == 0 && RAW && (JP == 2 || JP == 4) && V >= DPW && KP <= 64, "bf16 without decay, 2 to 4 mixtures, K up to 64");

enum { READY = 1, W_READY = READY + 2, FREE = W_READY + 2, AMONG_STATES = FREE + 2, AMONG_ADJOINTS };

// What the forward kept of a chunk, loaded a chunk ahead: c as operands [16 columns, 16 tokens], and the lane's r and ρ before the
// chunk and r in its middle. Chunks come from the last to the first. A chunk's are used before those of the next are loaded: a wait for some is for all.
struct Kept {
  A16 c[2];
  float r, middle, rho;
  const u32* at_c;
  const float* at_mix;
  i64 step;
  DEVICE Kept(const Arguments& a, const Work& w, const Place& p)
      : r(1.f / J), rho(1.f / J), at_c((const u32*)(a.kept_c + w.chunk_unit(a, w.chunks - 1) * 64)), step(w.warp_units) {
    if (KEY_GATE || QUERY_GATE) at_mix = a.kept_mix + w.chunk_unit(a, w.chunks - 1) * KEPT_MIX + p.lane;
    load(w.chunks - 1, p);
  }
  DEVICE void load(i64 chunk, const Place& p) {
    if (chunk < 0) return;
#pragma unroll
    for (int i = 0; i < 2; i++) c[i] = load_kept(at_c, i * 16, p);
    at_c -= step * 256;
    if (KEY_GATE) r = at_mix[0];
    if (OVER_TIME) middle = at_mix[KEPT_MIDDLE];
    if (QUERY_GATE) rho = at_mix[KEPT_RHO];
    if (KEY_GATE || QUERY_GATE) at_mix -= step * KEPT_MIX;
  }
};
// The place of a chunk in the inputs: number of its first token and head, and how many tokens it has.
struct At {
  i64 row, chunk, step;
  int tail;
  DEVICE At(const Work& w)
      : row((w.span.begin + (w.chunks - 1) * C) * w.H + w.head), chunk(w.chunks - 1), step(C * w.H), tail(w.valid(w.chunks - 1)) {}
  DEVICE int valid(const Work& w) const { return chunk < 0 ? 0 : chunk == w.chunks - 1 ? tail : C; }
  DEVICE At before() const {
    At b = *this;
    b.row -= step, b.chunk--;
    return b;
  }
};
// dS of a warp: [16 tokens, 32 columns] as it comes by token, [32 columns, 16 tokens] by column.
constexpr int DS_ROW = row_bytes<bf16>(32);
DEVICE A16 load_ds_tokens(const char* tile, int from, int lane) {
  return QUERY_GATE ? load_tokens_operand(tile, from, lane) : load_rows(tile, 0, DS_ROW, from, lane);
}
DEVICE A16 load_ds_columns(const char* tile, int from, int lane) {
  if constexpr (QUERY_GATE) return load_columns_operand(tile, from, lane);
  A16 a;
  ldmatrix_t(a.x[0], tile + ((lane & 7) + (lane >> 4) * 8) * DS_ROW + (from + (lane >> 3 & 1) * 8) * 2);
  return a;
}
DEVICE void put_ds(char* tile, const A16& a, int from, const Place& p) {  // by token
#pragma unroll
  for (int i = 0; i < 4; i++) *(u32*)(tile + (p.row + (i & 1) * 8) * DS_ROW + (from + (i >> 1) * 8 + p.quad * 2) * 2) = a.x[0][i];
}
// The transpose of an operand.
DEVICE A16 flipped(const A16& a) {
  A16 b;
  b.x[0][0] = transposed(a.x[0][0]), b.x[0][1] = transposed(a.x[0][2]), b.x[0][2] = transposed(a.x[0][1]), b.x[0][3] = transposed(a.x[0][3]);
  return b;
}
DEVICE void put_sum(float* sums, int kt, const float (&x)[4], const Place& p) {
  float* to = sums + p.row * SUM_ROW + kt * 8 + p.quad * 2;
  *(float2_*)to = {x[0], x[1]}, *(float2_*)(to + 8 * SUM_ROW) = {x[2], x[3]};
}

// Start copying a chunk's inputs of one role into its stage; zeros for a chunk before the first.
template <bool ADJOINT> DEVICE void fetch(const Arguments& a, const Work& w, char* s, const At& at, u32 thread) {
  const int valid = at.valid(w);
  const ChunkPieces pieces(w.H, thread);
  const i64 row = at.row, wide = row * J * V + w.vt * VB, narrow = row * V + w.vt * VB;
  pieces.keys.copy(s + STAGE_K, a.k + row * K, valid);
  pieces.keys.copy(s + STAGE_Q, a.q + row * K, valid);
  if (KEY_GATE) pieces.gates.copy(s + STAGE_GK, a.key_gate + narrow, valid);
  if constexpr (ADJOINT) {
    pieces.rates.copy(s + STAGE_BETA, a.beta + wide, valid);
  } else {
    pieces.values.copy(s + STAGE_O, a.dout + narrow, valid);
    pieces.values.copy(s + STAGE_V, a.v + narrow, valid);
    pieces.key_logits.copy(s + STAGE_LK, a.key_logits + wide, valid);
    pieces.query_logits.copy(s + STAGE_LQ, a.query_logits + wide, valid);
    if (QUERY_GATE) pieces.gates.copy(s + STAGE_GQ, a.query_gate + narrow, valid);
  }
  copy_commit();
}

DEVICE void recover_states(const Arguments& a, char* shared, const Work& w, const Place& p) {
  char* mine = shared + AT_STATE_WARPS + p.warp * STATE_WARP;
  auto thread = [&] { return thread_again() & (NT - 1); };
  float W[2][KT][4], drho = QUERY_GATE && a.drho_out && p.alive ? a.drho_out[w.at] : 0.f;
  const State state{W, nullptr};
  const i64 all = w.H * J * V;
  Spread spread = {};
  TokenSpread spreads = {};
  if (STATS && QUERY_GATE && p.alive) {
    const i64 of = (w.head * J + p.j) * V + w.first + p.d;
    spread = {a.dstats[2 * all + of], a.dstats[3 * all + of]};
  }
  if (STATS && !QUERY_GATE) spreads.load(a.dstats + 2 * all, w.head, all, w.first, p);
  SUM* const sums = sums_at(a, 0, w.vt);
  Kept kept(a, w, p);
  At at(w);
  fetch<false>(a, w, shared, at, thread());
  for (int done = 0; at.chunk >= 0; done++, at = at.before()) {
    const i64 chunk = at.chunk;
    const int buffer = done % GIVENS, valid = at.valid(w);
    char *s = shared + (done & 1) * STATE_STAGE, *given = shared + AT_GIVEN + buffer * GIVEN_BYTES;
    char* to = given + p.warp * GIVEN_WARP;
    copy_wait<0>();
    await(AMONG_STATES, NT);
    fetch<false>(a, w, shared + (~done & 1) * STATE_STAGE, at.before(), thread());
    if (chunk + 1 == w.chunks || (chunk + 1) * C % SEGMENT == 0)
      state.load(a, segment_row(a.bounds, w.span, chunk * C / SEGMENT, w.T) * w.warp_units + w.warp_unit, p);
    const Operands x(s, nullptr);
    float U[4][4] = {}, S[4][4] = {}, gram_a[2][4] = {}, gram_p[2][4] = {}, blocks[4];
    Pair cross;
    GramOperands grams;
    gram_products(gram_a, gram_p, x, p);
    make_gram_operands(grams, cross, blocks, gram_a, gram_p, p);
    walk_back(state, U, S, x, kept.c, p);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) product(U[nt], grams.A, half_of(kept.c[nt / 2], nt % 2)), product(S[nt], grams.P, half_of(kept.c[nt / 2], nt % 2));

    if (done >= GIVENS) await(FREE + buffer, ALL_THREADS);
    if (p.warp == 0) {
      put_gram_blocks((float*)(given + GIVEN_A), blocks, p);
      ((u32*)(given + GIVEN_CROSS))[p.lane] = cross.x[0];
      ((uint4_*)(given + GIVEN_P))[p.lane] = {grams.P_t.x[0][0], grams.P_t.x[0][1], grams.P_t.x[0][2], grams.P_t.x[0][3]};
    }
    const Tiles tiles{s, (float*)mine, nullptr, (float*)(to + GIVEN_ERROR), (float*)(to + GIVEN_R), (float*)(to + GIVEN_PRIOR), nullptr, to + GIVEN_DS};
    A16 ds_tokens[2];
    const MixOverTime mix{tiles, (float*)(mine + WARP_MIX), (float*)(mine + WARP_MIX_PRIOR), (float*)(to + GIVEN_W), p};
    if constexpr (QUERY_GATE) mix.put_reads(S, kept.rho);
    if constexpr (!ERRORS_BY_TOKEN) {
      errors_by_lanes(tiles, U, kept.r, p);
      if constexpr (QUERY_GATE) put_prior(mix.prior, s + STAGE_LQ, p);
    } else if constexpr (QUERY_GATE) {
      errors_by_token(tiles, U, MixOverTime::Prior(mix), p);
    } else {
      errors_by_token(tiles, U, NothingBeside{}, p);
    }
    if constexpr (QUERY_GATE) mix.put_ds(kept.rho);
    // The chain of responsibilities from token to token, and beside it the adjoint of the mix.
    BothSharesOverTime shares;
    MixOverTime::Back early, late;
    if constexpr (OVER_TIME) shares.load(tiles, p);
    if constexpr (QUERY_GATE) mix.load(late, 1, spread, valid), mix.load(early, 0, spread, valid);
    if constexpr (OVER_TIME) shares.put(tiles, kept.r, kept.middle, p);
    if constexpr (QUERY_GATE) mix.put_back(late, 1, drho), mix.put_back(early, 0, drho);
    if constexpr (QUERY_GATE) mix.put_gradients(); else mix_by_token(tiles, S, spreads, valid, p);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if constexpr (QUERY_GATE) {
        ds_tokens[i] = load_ds_tokens(tiles.ds, i * 16, p.lane);
      } else {
        ds_tokens[i] = as_rows(S[2 * i], S[2 * i + 1]);
        put_ds(tiles.ds, ds_tokens[i], i * 16, p);
      }
    }
    announce(READY + buffer, ALL_THREADS);

    // dq = dS W + dP k, dP = dS c^T on and below the diagonal; and W for the others.
    float dp[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const A16 c_tokens = flipped(kept.c[i]);
#pragma unroll
      for (int h = 0; h < 2; h++) product(dp[h], ds_tokens[i], half_of(c_tokens, h));
    }
    kept.load(chunk - 1, p);
    mask(dp, 0, p);
    const A16 dP = as_rows(dp[0], dp[1]);
    sync_warp();  // the mix is in the same memory as the sums
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      B16 kb[2];
      load_transposed(kb[0], kb[1], x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int kt = 2 * ks + h;
        float dq[4] = {};
        uint4_ words;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const B16 wt = as_columns(W[i][kt]);
          product(dq, ds_tokens[i], wt);
          words.x[2 * i] = wt.x[0][0], words.x[2 * i + 1] = wt.x[0][1];
        }
        ((uint4_*)(to + GIVEN_W))[kt * 32 + p.lane] = words;
        product(dq, dP, kb[h]);
        put_sum((float*)mine, kt, dq, p);
      }
    }
    announce(W_READY + buffer, ALL_THREADS);
    await(AMONG_STATES, NT);
    const i64 row = at.row;
    const ChunkPieces pieces(w.H, thread());
    const auto logits = pieces.query_logits.hold(s + STAGE_LQ);
    decltype(pieces.gates.hold(s)) gates;
    if (QUERY_GATE) gates = pieces.gates.hold(s + STAGE_GQ);
    store_sum<true>(sums, shared + AT_STATE_WARPS, STATE_WARP, thread(), row, w.H, valid);
    pieces.query_logits.store(a.dquery_logits + row * J * V + w.vt * VB, logits, valid);
    if (QUERY_GATE) pieces.gates.store(a.dquery_gate + row * V + w.vt * VB, gates, valid);
  }
  copy_wait<0>();
  if (QUERY_GATE && a.dW_in && p.alive) a.drho_in[w.at] = drho;
}

DEVICE void run_adjoint(const Arguments& a, char* shared, const Work& w, const Place& p) {
  char* mine = shared + AT_ADJOINT_WARPS + p.warp * ADJOINT_WARP;
  auto thread = [&] { return thread_again() & (NT - 1); };
  float dW[2][KT][4], m = KEY_GATE && a.dr_out && p.alive ? a.dr_out[w.at] : 0.f;  // m: adjoint of log r, from the token after
  if (a.dW_out) {
    load_state(dW, a.dW_out, w.unit, w.first, p);
  } else {
    clear_state(dW);
  }
  Spread spread = {};
  if (STATS && p.alive) {
    const i64 of = (w.head * J + p.j) * V + w.first + p.d;
    spread = {a.dstats[of], a.dstats[w.H * J * V + of]};
  }
  SUM* const sums = sums_at(a, 1, w.vt);
  Kept kept(a, w, p);
  At at(w);
  fetch<true>(a, w, shared + AT_ADJOINT_STAGE, at, thread());
  for (int done = 0; at.chunk >= 0; done++, at = at.before()) {
    const i64 chunk = at.chunk;
    const int buffer = done % GIVENS, valid = at.valid(w);
    char *s = shared + AT_ADJOINT_STAGE + (done & 1) * ADJOINT_STAGE, *given = shared + AT_GIVEN + buffer * GIVEN_BYTES;
    char* from = given + p.warp * GIVEN_WARP;
    copy_wait<0>();
    await(AMONG_ADJOINTS, NT);
    fetch<true>(a, w, shared + AT_ADJOINT_STAGE + (~done & 1) * ADJOINT_STAGE, at.before(), thread());
    const Operands x(s, nullptr);
    float E[4][4] = {};
    GramOperands grams;
    A16 ds_columns[2];
    adjoint_of_end(E, dW, x, p);

    await(READY + buffer, ALL_THREADS);
    const uint4_ P_t = ((const uint4_*)(given + GIVEN_P))[p.lane];
    const Pair cross[1] = {{{((const u32*)(given + GIVEN_CROSS))[p.lane]}}};
#pragma unroll
    for (int i = 0; i < 4; i++) grams.P_t.x[0][i] = P_t.x[i];
#pragma unroll
    for (int i = 0; i < 2; i++) ds_columns[i] = load_ds_columns(from + GIVEN_DS, i * 16, p.lane);
    adjoint_of_reads(E, x, grams, ds_columns, p);
    const Tiles tiles{s, (float*)(mine + WARP_U), nullptr, (float*)(from + GIVEN_ERROR), (float*)(from + GIVEN_R), (float*)(from + GIVEN_PRIOR), mine + WARP_DU, nullptr};
    Column delta(tiles.error + p.column), r(tiles.r + p.column), pi(tiles.prior + p.column);
    if (KEY_GATE && chunk == w.chunks - 1) m *= r[C - 1];
    substitute_by_halves(tiles, E, cross, (const float*)(given + GIVEN_A), delta, r, pi, kept.r, spread, m, chunk, valid, p);

    // dk = du W + (dA + dA^T) k + dP^T q + c dW', and dW.
    TokenOperands by_token;
    A16 du_columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      du_columns[i] = load_columns_operand(tiles.du, i * 16, p.lane);
      by_token.c[i] = flipped(kept.c[i]), by_token.du[i] = load_tokens_operand(tiles.du, i * 16, p.lane);
      by_token.ds[i] = load_ds_tokens(from + GIVEN_DS, i * 16, p.lane);
    }
    kept.load(chunk - 1, p);
    const GramAdjoints g = gram_adjoints(by_token, p);
    sync_warp();  // du is in the same memory as the sums
    await(W_READY + buffer, ALL_THREADS);
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      B16 kb[2], qb[2];
      load_transposed(kb[0], kb[1], x.k, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
      load_transposed(qb[0], qb[1], x.q, OPERAND_TILE, KEY_ROW, ks * 16, p.lane);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int kt = 2 * ks + h;
        const uint4_ words = ((const uint4_*)(from + GIVEN_W))[kt * 32 + p.lane];
        float dk[4] = {}, more[4] = {};  // two chains of products
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const B16 wt = {{{words.x[2 * i], words.x[2 * i + 1]}}};
          product(dk, by_token.du[i], wt), product(more, by_token.c[i], as_columns(dW[i][kt]));
        }
        product(dk, g.da, kb[h]), product(more, g.dp_t, qb[h]);
#pragma unroll
        for (int e = 0; e < 4; e++) dk[e] += more[e];
        put_sum((float*)mine, kt, dk, p);
#pragma unroll
        for (int i = 0; i < 2; i++) product(dW[i][kt], du_columns[i], kb[h]), product(dW[i][kt], ds_columns[i], qb[h]);
      }
    }
    if (chunk >= GIVENS) announce(FREE + buffer, ALL_THREADS);
    await(AMONG_ADJOINTS, NT);
    const i64 row = at.row, wide = row * J * V + w.vt * VB, narrow = row * V + w.vt * VB;
    const ChunkPieces pieces(w.H, thread());
    const auto rates = pieces.rates.hold(s + STAGE_BETA);
    const auto logits = pieces.key_logits.hold(s + STAGE_LK);
    const auto values = pieces.values.hold(s + STAGE_O);
    decltype(pieces.gates.hold(s)) gates;
    if (KEY_GATE) gates = pieces.gates.hold(s + STAGE_GK);
    store_sum<true>(sums, shared + AT_ADJOINT_WARPS, ADJOINT_WARP, thread(), row, w.H, valid);
    pieces.rates.store(a.dbeta + wide, rates, valid);
    pieces.key_logits.store(a.dkey_logits + wide, logits, valid);
    pieces.values.store(a.dv + narrow, values, valid);
    if (KEY_GATE) pieces.gates.store(a.dkey_gate + narrow, gates, valid);
  }
  copy_wait<0>();
  if (a.dW_in) {
    store_state(a.dW_in, dW, w.unit, w.first, p);
    if (KEY_GATE && p.alive) a.dr_in[w.at] = m;
  }
}

KERNEL void __launch_bounds__(ALL_THREADS, 1) swila_backward_split(const Arguments a) {
  SHARED(shared);
  Place p = place();
  const bool adjoint = p.warp >= NW;
  p.warp %= NW;
  const Work w(a, p);
  if constexpr (K_PADDED)  // zero the padding of the key dims
    for (int i = (int)threadIdx.x; i < AT_STATE_WARPS / 4; i += ALL_THREADS) ((u32*)shared)[i] = 0;
  sync_block();
  if (adjoint) {
    run_adjoint(a, shared, w, p);
  } else {
    recover_states(a, shared, w, p);
  }
}
