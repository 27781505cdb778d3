// The adjoint, chunk by chunk from the last to the first. Equations and names: ../../blocked/adjoint.py.
//
// The forward keeps c, so that the errors follow from the state by matrix products alone, without a second substitution.
// Sums over the columns of several warps go through shared memory in a fixed order. With a decay by key dim, gradients of
// queries, keys and decays are computed by backward_keys.cu from what this kernel leaves.
//
// backward.cuh, backward_tiles.cuh, backward_copies.cuh: arguments, shared memory, copies. backward_state.cuh: states, predictions and reads. backward_errors.cuh:
// errors and responsibilities. backward_queries.cuh: the query side. backward_adjoint.cuh: the substitution in reverse.
// backward_columns.cuh: decays by output dim or head. backward_gradients.cuh: dq, dk and dW.
#include "backward_adjoint.cuh"
#include "backward_copies.cuh"
#include "backward_gradients.cuh"

KERNEL void __launch_bounds__(NT, 1) swila_backward(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  char* mine = shared + STAGES * STAGE_BYTES + p.warp * WARP_BYTES;
  float *u_tile = (float*)(mine + WARP_U), *a_tile = (float*)(mine + WARP_A);
  char *du_tile = mine + WARP_DU, *ds_tile = mine + WARP_DS;
  float4_* w_slots = (float4_*)(mine + WARP_W) + p.lane;
  char* converted = shared + STAGES * STAGE_BYTES + NW * WARP_BYTES;
  const Work w(a, p);

  float dW[2][KT][4], drho = 0.f, m = 0.f;  // m: adjoint of log r, from the token after
  if (a.dW_out) {
    load_state(dW, a.dW_out, w.unit, w.first, p);
  } else {
    clear_state(dW);
  }
  if (KEY_GATE && a.dr_out && p.alive) m = a.dr_out[w.at];
  if (QUERY_GATE && a.drho_out && p.alive) drho = a.drho_out[w.at];
  Spread spread_k = {}, spread_q = {};
  if (STATS && p.alive) {
    i64 of = (w.head * J + p.j) * V + w.first + p.d, all = w.H * J * V;
    spread_k.usage = a.dstats[of], spread_k.entropy = a.dstats[all + of];
    spread_q.usage = a.dstats[2 * all + of], spread_q.entropy = a.dstats[3 * all + of];
  }
  if constexpr (K_PADDED)
    for (int i = (int)threadIdx.x; i < STAGES * STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;
  sync_block();

  if (STAGES == 2) fetch_stage(a, w, shared + (int)((w.chunks - 1) & 1) * STAGE_BYTES, w.chunks - 1, p);  // also of no chunks
  float W[2][KT][4];
  const State state{W, w_slots};
  for (i64 chunk = w.chunks - 1; chunk >= 0; chunk--) {
    const i64 t0 = w.span.begin + chunk * C;
    const int valid = w.valid(chunk);
    char* s = shared + (int)(chunk % STAGES) * STAGE_BYTES;
    if constexpr (STAGES == 2) {
      copy_wait<0>();
      sync_block();
      fetch_stage(a, w, shared + (int)((chunk + 1) % STAGES) * STAGE_BYTES, chunk - 1, p);
    } else {
      sync_block();
      fetch_stage(a, w, shared, chunk, p);
      copy_wait<0>();
      sync_block();
    }
    const Operands x(s, converted);
    const i64 chunk_unit = w.chunk_unit(a, chunk);
    float r_before = 1.f / J, r_middle, rho_before = 1.f / J;
    if (KEY_GATE) r_before = a.kept_mix[chunk_unit * KEPT_MIX + p.lane];
    if (OVER_TIME) r_middle = a.kept_mix[chunk_unit * KEPT_MIX + KEPT_MIDDLE + p.lane];
    if (QUERY_GATE) rho_before = a.kept_mix[chunk_unit * KEPT_MIX + KEPT_RHO + p.lane];
    if (!DECAY && (chunk + 1 == w.chunks || (chunk + 1) * C % SEGMENT == 0)) {
      const i64 row = segment_row(a.bounds, w.span, chunk * C / SEGMENT, w.T) * w.warp_units + w.warp_unit;
      state.load(a, row, p);
    }

    // Predictions U and reads S.
    const char* c_tile = BY_COLUMN ? mine + WARP_C : s + STAGE_C + p.warp * NS * PAIR_PLANE;
    A16 c_columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      c_columns[i] = DECAY ? load_kept((const u32*)(a.kept_c + chunk_unit * NS * 64), i * 16, p) : load_columns_operand(c_tile, i * 16, p.lane);
    float U[4][4] = {}, S[4][4] = {}, gram_a[2][4] = {}, gram_p[2][4] = {};
    Pair cross[NG];
    GramOperands grams;
    if constexpr (BY_COLUMN) {
      read_stored_state(U, S, gram_a, gram_p, x, a.chunk_W, chunk_unit, p);
      put_grams(a_tile, gram_a, gram_p, p);
    } else if constexpr (BY_KEY) {
      read_stored_state(U, S, gram_a, gram_p, x, a.chunk_W, chunk_unit, p);
      add_written_by_key(U, S, cross, x.decay, c_columns, p);
    } else {
      float blocks[4];
      gram_products(gram_a, gram_p, x, p);  // first, while registers are free
      make_gram_operands(grams, cross[0], blocks, gram_a, gram_p, p);
      put_gram_blocks(a_tile, blocks, p);
      walk_back(state, U, S, x, c_columns, p);
      add_written(U, S, grams, c_tile, p);
    }

    const Tiles tiles{s,       u_tile, a_tile, (float*)(mine + WARP_ERROR), (float*)(mine + WARP_R), (float*)(mine + WARP_PRIOR),
                      du_tile, ds_tile};
    // The query side, dS = ρ do, and errors and responsibilities. By lanes the query side comes first where it can: its tiles
    // are free then.
    Column read(tiles.error + p.column);  // what each token reads
    Column delta(tiles.error + p.column), r(tiles.r + p.column), pi(tiles.prior + p.column);
    DecayedColumn column;
    A16 ds_columns[2];
    float dS[C];
    if constexpr (LANE_MIX && !BY_COLUMN) mix_by_lanes(tiles, S, read, dS, rho_before, drho, spread_q, valid, p);
    if constexpr (ERRORS_BY_TOKEN) {
      errors_by_token(tiles, U, NothingBeside{}, p);
      if constexpr (OVER_TIME) {
        BothSharesOverTime shares;
        shares.load(tiles, p), shares.put(tiles, r_before, r_middle, p);
      }
    } else if constexpr (BY_COLUMN) {
      column.load(a, U, S, u_tile, s + STAGE_D, chunk_unit, t0 * w.H + w.head, valid, p);
      column.errors(tiles, read, delta, r, pi, r_before, p);
      mix_by_lanes(tiles, S, read, dS, rho_before, drho, spread_q, valid, p);
    } else {
      errors_by_lanes(tiles, U, r_before, p);
    }
    if constexpr (!LANE_MIX) mix_by_token(tiles, S, {}, valid, p);
    ds_operands(ds_columns, S, tiles, p);

    // The substitution in reverse: du, and gradients of β, logits, gates and v.
    float E[4][4] = {};
    adjoint_of_end(E, dW, x, p);
    adjoint_of_reads(E, x, grams, ds_columns, p);
    if (KEY_GATE && chunk == w.chunks - 1) m *= r[C - 1];
    if constexpr (BY_COLUMN) {
      substitute_by_column(column, tiles, E, dS, delta, r, pi, r_before, spread_k, m, chunk, valid, p);
      column.finish_flow(a, dW, chunk_unit, u_tile, p);
      u_tile[p.column] = column.to_end;  // for the adjoint of the state, below
      column.put_flow(a, s + STAGE_D, w, t0, valid, p);
      column.grams(gram_a, gram_p, dS, du_tile, ds_tile, p);
      column.leave(du_tile, ds_tile, mine + WARP_C, p);
    } else {
      const float* blocks = BY_KEY ? x.decay.blocks + (J + (p.j < J ? p.j : 0)) * BLOCKS_STRIDE : a_tile;
      substitute_by_halves(tiles, E, cross, blocks, delta, r, pi, r_before, spread_k, m, chunk, valid, p);
    }

    // Gradients of queries and keys, and of the state at the chunk's start.
    A16 du_columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      du_columns[i] = load_columns_operand(du_tile, i * 16, p.lane);
      ds_columns[i] = load_columns_operand(ds_tile, i * 16, p.lane);  // again: there were no registers to hold it
    }
    if constexpr (BY_KEY) {
      state_gradients_by_key(dW, a, chunk_unit, x.decay, du_columns, ds_columns, p);
      sync_block();
    } else {
      const TokenOperands by_token(c_tile, tiles, p);
      const GramAdjoints adjoints = BY_COLUMN ? GramAdjoints(gram_a, gram_p) : gram_adjoints(by_token, p);
      state_gradients(dW, (float*)mine, state, a, chunk_unit, x, by_token, adjoints, du_columns, ds_columns, u_tile, p);
      sync_block();
#pragma unroll
      for (int which = 0; which < 2; which++)
        store_sum<false>(sums_at(a, which, w.vt), shared + STAGES * STAGE_BYTES + which * C * SUM_ROW * 4, WARP_BYTES, thread_again(), t0 * w.H + w.head, w.H, valid);
    }
    flush_gradients(ChunkPieces(w.H, thread_again()), a, s, t0 * w.H + w.head, w.vt, valid);
  }
  copy_wait<0>();
  if (a.dW_in) {
    store_state(a.dW_in, dW, w.unit, w.first, p);
    if (KEY_GATE && p.alive) a.dr_in[w.at] = m;
    if (QUERY_GATE && p.alive) a.drho_in[w.at] = drho;
  }
}
