// The adjoint, chunk after chunk in reverse. Equations and names: ../../blocked/adjoint.py. With c kept by the forward,
// the state is walked back from the end of each segment, W = W' - c ⊗ k, and errors follow from it by products alone.
// Sums over the columns of several warps go through shared memory in a fixed order. With a decay by key dim states come
// from states.cu, and gradients of queries, keys and decays are left to backward_keys.cu; with one by column states come
// from there too, and all that is within a chunk is done by the lanes that own the columns.
#include "backward_columns.cuh"
#include "backward_errors.cuh"
#include "backward_queries.cuh"

// A derivative in a probability grows as its inverse; this keeps it finite.
DEVICE float finite(float x) {
  const float most = 2.5e28f;
  return x > most ? most : x < -most ? -most : x;
}
KERNEL void __launch_bounds__(NT, 1) swila_backward(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  char* mine = shared + STAGES * STAGE_BYTES + p.warp * WARP_BYTES;
  float *u_tile = (float*)(mine + WARP_U), *a_tile = (float*)(mine + WARP_A);
  char *du_tile = mine + WARP_DU, *ds_tile = mine + WARP_DS;
  float4_* w_slots = (float4_*)(mine + WARP_W) + p.lane;
  char* operands = shared + STAGES * STAGE_BYTES + NW * WARP_BYTES;

  const i64 block = blockIdx.x, H = a.H, T = a.T;
  const int vt = (int)(block % VT), first = vt * VB + p.warp * DPW;
  const i64 head = block / VT % H;
  const Span span = sequence(a.bounds, block / VT / H, T);
  const i64 n = span.n, unit = n * H + head, at = (unit * J + p.j) * V + first + p.d;
  const i64 warp_unit = (head * VT + vt) * NW + p.warp, warp_units = H * VT * NW;
  const i64 chunks = (span.end - span.begin + C - 1) / C;
  float dW[2][KT][4], drho = 0.f, m = 0.f;  // m: adjoint of log r, from the token after
  if (a.dW_out) {
    load_state(dW, a.dW_out, unit, first, p);
  } else {
    clear_state(dW);
  }
  if (KEY_GATE && a.dr_out && p.alive) m = a.dr_out[at];
  if (QUERY_GATE && a.drho_out && p.alive) drho = a.drho_out[at];
  Spread spread_k = {}, spread_q = {};
  if (STATS && p.alive) {
    i64 of = (head * J + p.j) * V + first + p.d, all = H * J * V;
    spread_k.usage = a.dstats[of], spread_k.entropy = a.dstats[all + of];
    spread_q.usage = a.dstats[2 * all + of], spread_q.entropy = a.dstats[3 * all + of];
  }
  if constexpr (K_PADDED)
    for (int i = (int)threadIdx.x; i < STAGES * STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;
  sync_block();

  auto valid_of = [&](i64 chunk) {
    i64 left = span.end - span.begin - chunk * C;
    return chunk < 0 ? 0 : left < C ? (int)left : C;
  };
  auto fetch_stage = [&](int stage, i64 chunk) {
    char* s = shared + stage * STAGE_BYTES;
    const int valid = valid_of(chunk);
    const ChunkPieces pieces(H, thread_again());
    i64 row = (span.begin + chunk * C) * H + head, wide = row * J * V + vt * VB, narrow = row * V + vt * VB;
    if constexpr (BY_KEY) {
      fetch_prepared(s + STAGE_READY, a.prepared, chunk < 0 ? 0 : chunk_row(a.bounds, span, chunk, T) * H + head, chunk >= 0);
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
      fetch_decay(pieces.decays, s + STAGE_D, a.decay, row, vt, valid);
    } else if constexpr (!BY_KEY) {
      const uint4_* c = a.kept_c + (chunk < 0 ? 0 : (chunk_row(a.bounds, span, chunk, T) * warp_units + warp_unit) * NS * 64 + p.lane);
#pragma unroll
      for (int i = 0; i < NS * 2; i++)
        copy_async(s + STAGE_C + (p.warp * NS + i / 2) * PAIR_PLANE + pair_row(i % 2 * 16 + p.lane / 2) + p.lane % 2 * 16, c + i * 32, chunk >= 0);
    }
    copy_commit();
  };
  if (STAGES == 2) fetch_stage((int)((chunks - 1) % STAGES), chunks - 1);

  float W[2][KT][4];  // where they fit into registers
  for (i64 chunk = chunks - 1; chunk >= 0; chunk--) {
    const i64 t0 = span.begin + chunk * C;
    const int valid = valid_of(chunk);
    char* s = shared + (int)(chunk % STAGES) * STAGE_BYTES;
    if constexpr (STAGES == 2) {
      copy_wait<0>();
      sync_block();
      fetch_stage((int)((chunk + 1) % STAGES), chunk - 1);
    } else {
      sync_block();
      fetch_stage(0, chunk);
      copy_wait<0>();
      sync_block();
    }
    const char *k_tile = s + STAGE_K, *q_tile = s + STAGE_Q;
    constexpr int ROW = RAW ? X_ROW : OPERAND_ROW;
    KeyDecay decay;
    if constexpr (BY_KEY) {
      decay = key_decay_at(s + STAGE_READY);
    } else if constexpr (!RAW) {
      as_operands(operands, k_tile);
      as_operands(operands + NS * OPERAND_TILE, q_tile);
      sync_block();
      k_tile = operands, q_tile = operands + NS * OPERAND_TILE;
    }

    const i64 chunk_unit = chunk_row(a.bounds, span, chunk, T) * warp_units + warp_unit;
    float r_before = 1.f / J, rho_before = 1.f / J;
    if (KEY_GATE) r_before = a.kept_mix[chunk_unit * 64 + p.lane];
    if (QUERY_GATE) rho_before = a.kept_mix[chunk_unit * 64 + 32 + p.lane];
    if (!DECAY && (chunk + 1 == chunks || (chunk + 1) * C % SEGMENT == 0)) {
      i64 row = segment_row(a.bounds, span, chunk * C / SEGMENT, T) * warp_units + warp_unit;
#pragma unroll
      for (int i = 0; i < 2 * KT; i++) {
        float4_ w = a.kept_W[(row * 2 * KT + i) * 32 + p.lane];
        if constexpr (W_SHARED) w_slots[i * 32] = w;
#pragma unroll
        for (int e = 0; e < 4; e++)
          if constexpr (!W_SHARED) W[i / KT][i % KT][e] = w.x[e];
      }
    }
    auto state_tile = [&](int i, int kt, float (&w)[4]) {
      float4_ x = {};
      if constexpr (W_SHARED) x = w_slots[(i * KT + kt) * 32];
#pragma unroll
      for (int e = 0; e < 4; e++) w[e] = W_SHARED ? x.x[e] : W[i][kt][e];
    };

    // The state at the chunk's start. From it u = k · W + A c and S = q · W + P c, with the Gram matrices A and P.
    const char* c_tile = BY_COLUMN ? mine + WARP_C : s + STAGE_C + p.warp * NS * PAIR_PLANE;
    A16 c_columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      c_columns[i] = DECAY ? load_kept((const u32*)(a.kept_c + chunk_unit * NS * 64), i * 16, p) : load_columns_operand(c_tile, i * 16, p.lane);
    auto masked = [&](float (&x)[2][4], int below) {  // keep entries [t, s] with s + below <= t
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (h * 8 + p.quad * 2 + (i & 1) + below > p.row + (i >> 1) * 8) x[h][i] = 0.f;
    };
    float U[4][4] = {}, S[4][4] = {}, gram_a[2][4] = {}, gram_p[2][4] = {};
    Pair cross[NG];  // early tokens' reads by late ones, transposed
    A16 af, pf, pt;
    if constexpr (DECAY != 0) {
#pragma unroll
      for (int kk = 0; kk < KS / 2; kk++) {
        B16 wb[4][2];
#pragma unroll
        for (int i = 0; i < NS; i++)
#pragma unroll
          for (int nt = 0; nt < 4; nt++) {
            uint4_ w = a.chunk_W[(chunk_unit * STATE_PIECES + (i * 4 + nt) * (KS / 2) + kk) * 32 + p.lane];
            wb[nt][0].x[i][0] = w.x[0], wb[nt][0].x[i][1] = w.x[1], wb[nt][1].x[i][0] = w.x[2], wb[nt][1].x[i][1] = w.x[3];
          }
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int g = 0; g < NG; g++) {
            A16 kf = load_rows(BY_KEY ? decay.keys_u + g * GROUP_TILE : k_tile, OPERAND_TILE, ROW, (2 * kk + e) * 16, p.lane);
            A16 qf = load_rows(BY_KEY ? decay.queries + g * GROUP_TILE : q_tile, OPERAND_TILE, ROW, (2 * kk + e) * 16, p.lane);
            if constexpr (BY_COLUMN) {
#pragma unroll
              for (int h = 0; h < 2; h++) product(gram_a[h], kf, half_of(kf, h)), product(gram_p[h], qf, half_of(kf, h));
            }
#pragma unroll
            for (int nt = 0; nt < 4; nt++)
              if (group_of(nt) == g) product(U[nt], kf, wb[nt][e]), product(S[nt], qf, wb[nt][e]);
          }
      }
    } else {
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {  // before all else, while registers are free
        A16 kf = load_rows(k_tile, OPERAND_TILE, ROW, ks * 16, p.lane), qf = load_rows(q_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
        B16 kh[2];
        load_row_halves(kh[0], kh[1], k_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
#pragma unroll
        for (int h = 0; h < 2; h++) product(gram_a[h], kf, kh[h]), product(gram_p[h], qf, kh[h]);
      }
      *(float2_*)&a_tile[p.row * 8 + p.quad * 2] = {gram_a[0][0], gram_a[0][1]};
      *(float2_*)&a_tile[64 + p.row * 8 + p.quad * 2] = {gram_a[1][2], gram_a[1][3]};
      cross[0] = pack(gram_a[1][0], gram_a[1][1]);
      masked(gram_a, 1), masked(gram_p, 0);
      af = as_rows(gram_a[0], gram_a[1]), pf = as_rows(gram_p[0], gram_p[1]);
      pt = stacked(as_columns(gram_p[0]), as_columns(gram_p[1]));
      A16 minus_c[2];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int x = 0; x < NS; x++)
#pragma unroll
          for (int e = 0; e < 4; e++) minus_c[i].x[x][e] = c_columns[i].x[x][e] ^ 0x80008000u;
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        A16 kf = load_rows(k_tile, OPERAND_TILE, ROW, ks * 16, p.lane), qf = load_rows(q_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
        B16 kb[2];
        load_transposed(kb[0], kb[1], k_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float w[2][4];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            state_tile(i, 2 * ks + h, w[h]);
            product(w[h], minus_c[i], kb[h]);
            if constexpr (W_SHARED) w_slots[(i * KT + 2 * ks + h) * 32] = {w[h][0], w[h][1], w[h][2], w[h][3]};
#pragma unroll
            for (int e = 0; e < 4; e++)
              if constexpr (!W_SHARED) W[i][2 * ks + h][e] = w[h][e];
          }
#pragma unroll
          for (int h = 0; h < 2; h++) {
            B16 wb;
            Pair x = pack(w[0][2 * h], w[0][2 * h + 1]), y = pack(w[1][2 * h], w[1][2 * h + 1]);
#pragma unroll
            for (int e = 0; e < NS; e++) wb.x[e][0] = x.x[e], wb.x[e][1] = y.x[e];
            product(U[2 * i + h], kf, wb), product(S[2 * i + h], qf, wb);
          }
        }
      }
    }
    if constexpr (BY_COLUMN) {
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int t = p.row + (i >> 1) * 8, x = h * 8 + p.quad * 2 + (i & 1);
          a_tile[t * C + x] = gram_a[h][i], a_tile[C * C + t * C + x] = gram_p[h][i];
        }
    } else if constexpr (BY_KEY) {
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        const int g = group_of(nt);
        af = load_rows(decay.A + g * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
        pf = load_rows(decay.P + g * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
        product(U[nt], af, half_of(c_columns[nt / 2], nt % 2));
        product(S[nt], pf, half_of(c_columns[nt / 2], nt % 2));
        A16 at = load_rows_transposed(decay.A + g * GRAM_TILE, GRAM_PLANE, GRAM_ROW, p.lane);
#pragma unroll
        for (int i = 0; i < NS; i++) cross[g].x[i] = at.x[i][2];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        B16 c[2];
        load_column_halves(c[0], c[1], c_tile, i * 16, p.lane);
#pragma unroll
        for (int h = 0; h < 2; h++) product(U[2 * i + h], af, c[h]), product(S[2 * i + h], pf, c[h]);
      }
    }

    const Tiles tiles{s,       u_tile, a_tile, (float*)(mine + WARP_ERROR), (float*)(mine + WARP_R), (float*)(mine + WARP_PRIOR),
                      du_tile, ds_tile};
    // The query side: dρ and what follows from it, and dS = ρ do. By lanes it comes first where it can, in tiles that are free.
    Column read(tiles.error + p.column);  // what each token reads
    float dS[C];
    if constexpr (LANE_MIX && !BY_COLUMN) mix_by_lanes(tiles, S, read, dS, rho_before, drho, spread_q, valid, p);

    // Errors and responsibilities, as the forward had them.
    Column delta(tiles.error + p.column), r(tiles.r + p.column), pi(tiles.prior + p.column);
    float gk[C];  // gates, by column
    DecayedColumn column;
    if constexpr (SHARES_BY_TOKEN) {
      errors_by_token(tiles, U, p);
    } else if constexpr (BY_COLUMN) {
      float u[C], v[C], prior[C], last = r_before;
      column.load(a, U, S, u_tile, s + STAGE_D, chunk_unit, t0 * H + head, valid, p);
      column.predict(u, read, a_tile, a_tile + C * C);
      load_column<TX, 1>(v, s + STAGE_V, p);
#pragma unroll
      for (int t = 0; t < C; t++) delta[t] = (DEAD && !p.alive ? 0.f : v[t]) - u[t];
      if constexpr (KEY_GATE || !NORMALIZE) load_prior(prior, s + STAGE_LK, u_tile, p); else load_column<TB, J>(prior, s + STAGE_LK, p);
      if (KEY_GATE) load_column<TB, 1>(gk, s + STAGE_GK, p);
#pragma unroll
      for (int t = 0; t < C; t++) pi[t] = prior[t], r[t] = last = share_of(delta[t], prior[t], gk[t], last, p);
    } else {
      errors_by_lanes(tiles, U, r_before, p);
    }

    A16 ds_columns[2];
    if constexpr (BY_COLUMN) mix_by_lanes(tiles, S, read, dS, rho_before, drho, spread_q, valid, p);
    if constexpr (LANE_MIX) {
#pragma unroll
      for (int i = 0; i < 2; i++) ds_columns[i] = load_columns_operand(ds_tile, i * 16, p.lane);
    } else {
      mix_by_token(tiles, S, p);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        ds_columns[i] = stacked(as_columns(S[2 * i]), as_columns(S[2 * i + 1]));
        put_columns_operand(ds_tile, ds_columns[i], i * 16, p);
      }
    }
    // E = k · dW + P^T dS
    float E[4][4] = {};
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      A16 kf;
      if constexpr (!BY_KEY) kf = load_rows(k_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        if constexpr (BY_KEY) kf = load_rows(decay.keys_end + group_of(nt) * GROUP_TILE, OPERAND_TILE, OPERAND_ROW, ks * 16, p.lane);
        B16 d;
        Pair x = pack(dW[nt / 2][2 * ks][nt % 2 * 2], dW[nt / 2][2 * ks][nt % 2 * 2 + 1]);
        Pair y = pack(dW[nt / 2][2 * ks + 1][nt % 2 * 2], dW[nt / 2][2 * ks + 1][nt % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < NS; i++) d.x[i][0] = x.x[i], d.x[i][1] = y.x[i];
        product(E[nt], kf, d);
      }
    }
#pragma unroll
    for (int nt = 0; nt < 4 && !BY_COLUMN; nt++) {
      if constexpr (BY_KEY) pt = load_rows_transposed(decay.P + group_of(nt) * GRAM_TILE, GRAM_PLANE, GRAM_ROW, p.lane);
      product(E[nt], pt, half_of(ds_columns[nt / 2], nt % 2));
    }

    // The substitution in reverse.
    const float* blocks = BY_KEY ? decay.blocks + (J + (p.j < J ? p.j : 0)) * BLOCKS_STRIDE : a_tile;
    if (KEY_GATE && chunk == chunks - 1) m *= r[C - 1];
    auto extra_of = [&](int t, float r) {  // what the statistics add to r dr
      return STATS && t < valid ? r * (spread_k.usage - (LN2 * lg2(max_nan(r, TINY)) + 1.f) * spread_k.entropy) : 0.f;
    };
    // How prior and responsibility at the token before are blended: the inverse of the blend.
    auto blended = [&](float last, float prior, float g) { return rcp(max_nan((1.f - g) * last + g * prior, TINY)); };
    // What a token's adjoints e, du, dz give its inputs, from the last token to the first; m of the initial state is that of
    // r itself.
    float dv[4], dgate[4];
    auto put_gradients = [&](int t, float r_delta, float last, float prior, float g, float e, float du, float dz) {
      put_gradient<TB>(s + STAGE_BETA, p, t, e * r_delta);
      dv[t % 4] = -du;  // summed in full precision, for its terms cancel
      if (t % 4 == 0) put_sums<TX>(s + STAGE_O, p, t, dv);
      if constexpr (KEY_GATE) {
        const float inverse = blended(last, prior, g);
        dgate[t % 4] = finite(dz * ((prior - last) * inverse));
        if (t % 4 == 0) put_sums<TB>(s + STAGE_GK, p, t, dgate);
        const float dpi = g * prior * inverse * dz;
        put_gradient<TB, LK_TOKEN>(s + STAGE_LK, p, t, dpi - prior * sum_mixtures(dpi));
        if (t == 0 && chunk == 0) m = finite(dz * ((1.f - g) * inverse));  // of the initial r itself
      } else {
        put_gradient<TB, LK_TOKEN>(s + STAGE_LK, p, t, NORMALIZE ? dz : dz - prior * sum_mixtures(dz));
      }
    };
    if constexpr (BY_COLUMN) {
      float beta[C], e0[C];
      load_column<TB, J>(beta, s + STAGE_BETA, p);
      to_lanes(u_tile, E, 0, 0, p), to_lanes(u_tile, E, 1, 8, p);
      sync_warp();
#pragma unroll
      for (int t = 0; t < C; t++) {
        e0[t] = u_tile[t * U_ROW + p.column];
        if (DEAD && !p.alive) beta[t] = 0.f;
      }
      column.substitute(e0, dS, a_tile, a_tile + C * C, [&](int t, float e) {
        const float br = beta[t] * r[t], last = t > 0 ? r[t > 0 ? t - 1 : 0] : r_before;
        float x = br * delta[t] * e + extra_of(t, r[t]) + (KEY_GATE ? m : 0.f);
        float dz = NORMALIZE ? x - r[t] * over_mixtures(x) : x;
        if (DEAD && !p.alive) dz = 0.f;
        const float du = delta[t] * dz - br * e;
        if constexpr (KEY_GATE) m = (1.f - gk[t]) * last * blended(last, pi[t], gk[t]) * dz;
        put_gradients(t, r[t] * delta[t], last, pi[t], gk[t], e, du, dz);
        return du;
      });
      column.finish_flow(a, dW, chunk_unit, u_tile, p);
      u_tile[p.column] = column.to_end;  // for the state's adjoint, later
#pragma unroll
      for (int t = 0; t < C; t++) {
        if constexpr (DECAY == 2) put_gradient<TD>(s + STAGE_D, p, t, column.flow[t]);
        if (DECAY == 3 && p.alive && t < valid)
          ((float*)a.ddecay)[(((t0 + t) * H + head) * J + p.j) * V + first + p.d] = column.flow[t];
      }
      column.grams(gram_a, gram_p, dS, du_tile, ds_tile, p);
      column.leave(du_tile, ds_tile, mine + WARP_C, p);
    } else {
#pragma unroll
      for (int half = 1; half >= 0; half--) {
        if (half == 0) {
          Pair du[4], none = {};
          load_half(du, du_tile, 1, p.lane);
#pragma unroll
          for (int nt = 0; nt < 4; nt++) {
            float more[4] = {E[nt][0], E[nt][1], 0.f, 0.f};
            product_k8(more, cross[group_of(nt)], none, du[nt]);
            E[nt][0] = more[0], E[nt][1] = more[1];
          }
        }
        to_lanes(u_tile, E, half, 0, p);
        sync_warp();
        // dz = x - r Σ x with x = β r δ e + more, and du = δ dz - β r e: of these only Σ x waits for the token after.
        float e[8], du[8], dz[8], rd[8], beta[8], g[8], share[8], prior[8], before = r_before;
        load_half_column<TB, J>(beta, s + STAGE_BETA, half, p);
        if (KEY_GATE) load_half_column<TB, 1>(g, s + STAGE_GK, half, p);
        if (KEY_GATE && half) before = r[7];
#pragma unroll
        for (int i = 0; i < 8; i++) {
          e[i] = u_tile[i * U_ROW + p.column], share[i] = r[half * 8 + i], rd[i] = delta[half * 8 + i];
          if constexpr (KEY_GATE || !NORMALIZE) prior[i] = pi[half * 8 + i];
          if (DEAD && !p.alive) beta[i] = 0.f;
        }
        auto last = [&](int i) { return i > 0 ? share[i > 0 ? i - 1 : 0] : before; };
#pragma unroll
        for (int i = 7; i >= 0; i--) {
          const float error = rd[i], br = beta[i] * share[i];
          rd[i] *= share[i];
          float x = br * error * e[i];
          if (STATS || KEY_GATE) x += extra_of(half * 8 + i, share[i]) + (KEY_GATE ? m : 0.f);
          float part = error * x - br * e[i];
          if constexpr (NORMALIZE) {
            float sum = over_mixtures(x);
            du[i] = part - rd[i] * sum, dz[i] = x - share[i] * sum;
          } else {
            du[i] = part, dz[i] = x;
          }
          if (DEAD && !p.alive) du[i] = 0.f, dz[i] = 0.f;
          if (KEY_GATE) m = (1.f - g[i]) * last(i) * blended(last(i), prior[i], g[i]) * dz[i];
#pragma unroll
          for (int i4 = 0; i4 < 2; i4++)
            if (i4 * 4 < i) {
              float4_ row = *(const float4_*)&blocks[half * 64 + i * 8 + i4 * 4];
#pragma unroll
              for (int y = 0; y < 4; y++)
                if (i4 * 4 + y < i) e[i4 * 4 + y] += row.x[y] * du[i];
            }
        }
        put_column(du_tile, p, half, du);
        sync_warp();
#pragma unroll
        for (int i = 7; i >= 0; i--) put_gradients(half * 8 + i, rd[i], last(i), prior[i], g[i], e[i], du[i], dz[i]);
      }
    }

    A16 du_columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      du_columns[i] = load_columns_operand(du_tile, i * 16, p.lane);
      ds_columns[i] = load_columns_operand(ds_tile, i * 16, p.lane);  // again, for registers were short between
    }
    if constexpr (BY_KEY) {
      u32 *du_kept = (u32*)(a.chunk_du + chunk_unit * NS * 64), *ds_kept = (u32*)(a.chunk_ds + chunk_unit * NS * 64);
#pragma unroll
      for (int i = 0; i < 2; i++) store_kept(du_kept, du_columns[i], i * 16, p), store_kept(ds_kept, ds_columns[i], i * 16, p);
      emit_state(a.chunk_dW + chunk_unit * STATE_PIECES * 32, dW, p.lane);
      decay_state(dW, decay, p);
      add_outer(dW, du_columns, decay.keys_u, OPERAND_ROW, p.lane);
      add_outer(dW, ds_columns, decay.queries, OPERAND_ROW, p.lane);
      sync_block();
    } else {
      A16 c_tokens[2], du_tokens[2], ds_tokens[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        ds_tokens[i] = load_tokens_operand(ds_tile, i * 16, p.lane);
        c_tokens[i] = load_tokens_operand(c_tile, i * 16, p.lane);
        du_tokens[i] = load_tokens_operand(du_tile, i * 16, p.lane);
      }
      // Within the chunk: dA = du c^T below the diagonal, dP = dS c^T on and below it.
      A16 da, da_t, dp, dp_t;
      {
        float x[2][4] = {}, y[2][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int h = 0; h < 2; h++)
            product(x[h], du_tokens[i], half_of(c_tokens[i], h)), product(y[h], ds_tokens[i], half_of(c_tokens[i], h));
        masked(x, 1), masked(y, 0);
        if constexpr (BY_COLUMN) {
#pragma unroll
          for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[h][i] = gram_a[h][i], y[h][i] = gram_p[h][i];
        }
        da = as_rows(x[0], x[1]), da_t = stacked(as_columns(x[0]), as_columns(x[1]));
        dp = as_rows(y[0], y[1]), dp_t = stacked(as_columns(y[0]), as_columns(y[1]));
      }
      // This warp's part of dq and dk, eight key dims at a time, and the adjoint of the state at the chunk's start.
      float* sums = (float*)mine;
      float across[2][2];  // by column: decay across the chunk, of this lane's rows of the state
      if constexpr (BY_COLUMN) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int h = 0; h < 2; h++) across[i][h] = u_tile[i * 16 + h * 8 + p.row];
      }
      sync_warp();
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        B16 kb[2], qb[2];
        load_transposed(kb[0], kb[1], k_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
        load_transposed(qb[0], qb[1], q_tile, OPERAND_TILE, ROW, ks * 16, p.lane);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int kt = 2 * ks + h;
          float dq[4] = {}, dk[4] = {};
#pragma unroll
          for (int i = 0; i < 2; i++) {
            B16 wt;
            if constexpr (BY_COLUMN) {
#pragma unroll
              for (int x = 0; x < NS; x++)
#pragma unroll
                for (int y = 0; y < 2; y++) {
                  const u32* words = (const u32*)&a.chunk_W[(chunk_unit * STATE_PIECES + (x * 4 + 2 * i + y) * (KS / 2) + kt / 4) * 32 + p.lane];
                  wt.x[x][y] = transposed(words[kt % 4]);
                }
            } else {
              float w[4];
              state_tile(i, kt, w);
              wt = as_columns(w);
            }
            product(dq, ds_tokens[i], wt);
            product(dk, du_tokens[i], wt);
            product(dk, c_tokens[i], as_columns(dW[i][kt]));
          }
          product(dq, dp, kb[h]);
          product(dk, da, kb[h]), product(dk, da_t, kb[h]), product(dk, dp_t, qb[h]);
          float* to = sums + p.row * SUM_ROW + kt * 8 + p.quad * 2;
          *(float2_*)to = {dq[0], dq[1]}, *(float2_*)(to + 8 * SUM_ROW) = {dq[2], dq[3]};
          *(float2_*)(to + C * SUM_ROW) = {dk[0], dk[1]}, *(float2_*)(to + (C + 8) * SUM_ROW) = {dk[2], dk[3]};
#pragma unroll
          for (int i = 0; i < 2; i++) {
            if constexpr (BY_COLUMN) {
#pragma unroll
              for (int x = 0; x < 4; x++) dW[i][kt][x] *= across[i][x >> 1];
            }
            product(dW[i][kt], du_columns[i], kb[h]), product(dW[i][kt], ds_columns[i], qb[h]);
          }
        }
      }
      sync_block();
      store_sums(a, shared + STAGES * STAGE_BYTES, t0, head, vt, valid);
    }
    ChunkPieces(H, thread_again()).flush(a, s, t0 * H + head, vt, valid);
  }
  copy_wait<0>();
  if (a.dW_in) {
    store_state(a.dW_in, dW, unit, first, p);
    if (KEY_GATE && p.alive) a.dr_in[at] = m;
    if (QUERY_GATE && p.alive) a.drho_in[at] = drho;
  }
}
