// The forward, chunk by chunk of 16 tokens. For the backward it keeps what every token wrote, c, and the state every SEGMENT
// tokens. Equations and names: ../../blocked/algorithm.py.
#include "forward.cuh"

constexpr int WARP_U = 0, WARP_C = WARP_U + C * U_ROW * 4, WARP_A = WARP_C + NS * PAIR_PLANE;
constexpr int WARP_BYTES = WARP_A + (BY_COLUMN ? 2 * C * C * 4 : BY_KEY ? 0 : 2 * 64 * 4);
constexpr int OPERANDS = RAW || BY_KEY ? 0 : 2 * NS * OPERAND_TILE;
constexpr int FIXED_BYTES = NW * WARP_BYTES + OPERANDS;
constexpr int STAGES = FIXED_BYTES + 3 * STAGE_BYTES <= SHARED_LIMIT / 2   ? 3
                       : FIXED_BYTES + 2 * STAGE_BYTES <= SHARED_LIMIT / 2 ? 2
                       : FIXED_BYTES + 3 * STAGE_BYTES <= SHARED_LIMIT     ? 3
                       : FIXED_BYTES + 2 * STAGE_BYTES <= SHARED_LIMIT     ? 2
                                                                           : 1;
NEEDS(STAGES * STAGE_BYTES + FIXED_BYTES, NT)

KERNEL void __launch_bounds__(NT, 1) swila_forward(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  const Fetch<> fetch(a.H);
  char* mine = shared + STAGES * STAGE_BYTES + p.warp * WARP_BYTES;
  float* u_tile = (float*)(mine + WARP_U);
  char* c_tile = mine + WARP_C;
  float* a_tile = (float*)(mine + WARP_A);
  char* operands = shared + STAGES * STAGE_BYTES + NW * WARP_BYTES;

  const i64 block = blockIdx.x, H = a.H, T = a.T;
  const int vt = (int)(block % VT), first = vt * VB + p.warp * DPW;  // of the warp's output dims
  const i64 head = block / VT % H;
  const Span span = sequence(a.bounds, block / VT / H, T);
  const i64 n = span.n, unit = n * H + head, start = span.begin, stop = span.end;
  const i64 warp_unit = (head * VT + vt) * NW + p.warp, warp_units = H * VT * NW;

  float W[2][KT][4], r = 1.f / J, rho = 1.f / J;
  if (a.W) {
    load_state(W, a.W, unit, first, p);
  } else {
    clear_state(W);
  }
  const i64 at = (unit * J + p.j) * V + first + p.d;
  if (a.r && p.alive) r = a.r[at];
  if (a.rho && p.alive) rho = a.rho[at];
  if (DEAD && !p.alive) r = rho = 0.f;

  if constexpr (K_PADDED)  // zero the padding of the key dims
    for (int i = (int)threadIdx.x; i < STAGES * STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;
  sync_block();

  const i64 chunks = (stop - start + C - 1) / C;
  auto prepared_unit = [&](i64 chunk) { return BY_KEY ? chunk_row(a.bounds, span, chunk, T) * H + head : 0; };
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) fetch(a, shared + i * STAGE_BYTES, start + i * C, stop, head, vt, prepared_unit(i));

  float used_k = 0.f, spread_k = 0.f, used_q = 0.f, spread_q = 0.f;  // sums for the statistics
  for (i64 chunk = 0; chunk < chunks; chunk++) {
    const i64 t0 = start + chunk * C;
    const int valid = stop - t0 < C ? (int)(stop - t0) : C;
    if constexpr (STAGES > 1) {
      copy_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
      sync_block();
      fetch(a, shared + (int)((chunk + STAGES - 1) % STAGES) * STAGE_BYTES, t0 + (STAGES - 1) * C, stop, head, vt, prepared_unit(chunk + STAGES - 1));
    } else {
      sync_block();
      fetch(a, shared, t0, stop, head, vt, prepared_unit(chunk));
      copy_wait<0>();
      sync_block();
    }
    const char* s = shared + (int)(chunk % STAGES) * STAGE_BYTES;
    const char *k_tile = s + STAGE_K, *q_tile = s + STAGE_Q;
    KeyDecay decay;
    if constexpr (BY_KEY) {
      decay = key_decay_at((char*)s + STAGE_READY);
    } else if constexpr (!RAW) {
      as_operands(operands, k_tile);
      as_operands(operands + NS * OPERAND_TILE, q_tile);
      sync_block();
      k_tile = operands, q_tile = operands + NS * OPERAND_TILE;
    }

    const i64 chunk_unit = chunk_row(a.bounds, span, chunk, T) * warp_units + warp_unit;
    if ((KEY_GATE || QUERY_GATE) && a.kept_c) {
      a.kept_mix[chunk_unit * KEPT_MIX + p.lane] = r;
      a.kept_mix[chunk_unit * KEPT_MIX + KEPT_RHO + p.lane] = rho;
    }
    B16 wb[4][KS];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int kt = 0; kt < KT; kt++) {
          Pair y = pack(W[m][kt][2 * h], W[m][kt][2 * h + 1]);
#pragma unroll
          for (int i = 0; i < NS; i++) wb[2 * m + h][kt / 2].x[i][kt % 2] = y.x[i];
        }
    // What the state at the start gives: u = (Γ k) · W and S = (Γ q) · W. Gram matrices A and P.
    float u[4][4] = {}, S[4][4] = {}, gram_a[2][4] = {}, gram_p[2][4] = {};
#pragma unroll
    for (int g = 0; g < NG; g++) {
      const char* keys = BY_KEY ? decay.keys_u + g * GROUP_TILE : k_tile;
      const char* queries = BY_KEY ? decay.queries + g * GROUP_TILE : q_tile;
      const int row = RAW ? X_ROW : OPERAND_ROW;
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        A16 kf = load_rows(keys, OPERAND_TILE, row, ks * 16, p.lane);
#pragma unroll
        for (int nt = 0; nt < 4; nt++)
          if (group_of(nt) == g) product(u[nt], kf, wb[nt][ks]);
        if constexpr (!BY_KEY) product(gram_a[0], kf, half_of(kf, 0)), product(gram_a[1], kf, half_of(kf, 1));
        A16 qf = load_rows(queries, OPERAND_TILE, row, ks * 16, p.lane);
#pragma unroll
        for (int nt = 0; nt < 4; nt++)
          if (group_of(nt) == g) product(S[nt], qf, wb[nt][ks]);
        if constexpr (!BY_KEY) product(gram_p[0], qf, half_of(kf, 0)), product(gram_p[1], qf, half_of(kf, 1));
      }
    }
    auto keep_c = [&]() {
      if (a.kept_c)
#pragma unroll
        for (int i = 0; i < NS * 2; i++)  // the tile's rows, without their padding
          a.kept_c[(chunk_unit * NS * 2 + i) * 32 + p.lane] =
              *(const uint4_*)(c_tile + i / 2 * PAIR_PLANE + pair_row(i % 2 * 16 + p.lane / 2) + p.lane % 2 * 16);
    };
    // From accumulators to a tile that lanes read by column.
    auto to_lanes = [&](const float (&x)[4][4], int half, int row) {
#pragma unroll
      for (int nt = 0; nt < 4; nt++)
        *(float2_*)&u_tile[(p.row + row) * U_ROW + nt * 8 + p.quad * 2] = {x[nt][2 * half], x[nt][2 * half + 1]};
    };

    float v[C], beta[C], lk[C], gk[C];
    load_column<TX, 1>(v, s + STAGE_V, p);
    load_column<TB, J>(beta, s + STAGE_BETA, p);
    if (KEY_GATE) load_column<TB, 1>(gk, s + STAGE_GK, p);
    if constexpr (KEY_GATE || !NORMALIZE) {
      load_prior(lk, s + STAGE_LK, u_tile, p);  // the prior itself
    } else {
      load_column<TB, J>(lk, s + STAGE_LK, p);
#pragma unroll
      for (int t = 0; t < C; t++) lk[t] = log_prior(lk[t], p);
    }
#pragma unroll
    for (int t = 0; t < C; t++) {
      if (KEY_GATE) lk[t] *= gk[t], gk[t] = 1.f - gk[t];
      if (DEAD && !p.alive) beta[t] = 0.f, v[t] = 0.f;
      v[t] *= SCALE;
    }
    // Responsibility for the scaled error x at token t; updates r.
    auto respond = [&](float x, int t) {
      if constexpr (KEY_GATE) {
        float prior = max_nan(gk[t] * r + lk[t], TINY);
        if constexpr (NORMALIZE) {
          float z = lg2(prior) - x * x;
          r = share(DEAD && !p.alive ? NEVER : z);
        } else {
          r = prior * ex2(-x * x);
        }
        if (DEAD && !p.alive) r = 0.f;
      } else {
        r = NORMALIZE ? share(lk[t] - x * x) : lk[t] * ex2(-x * x);
      }
      if (STATS && t < valid) used_k += r, spread_k -= r * LN2 * lg2(max_nan(r, TINY));
      return r;
    };
    float mix[C];
    if constexpr (LANE_MIX) {
      float gq[C];
      load_prior(mix, s + STAGE_LQ, u_tile, p);
      if (QUERY_GATE) load_column<TB, 1>(gq, s + STAGE_GQ, p);
#pragma unroll
      for (int t = 0; t < C; t++) {
        rho = QUERY_GATE ? (1.f - gq[t]) * rho + gq[t] * mix[t] : mix[t];
        mix[t] = rho;
        if (STATS && t < valid) used_q += rho, spread_q -= rho * LN2 * lg2(max_nan(rho, TINY));
      }
    }

    if constexpr (BY_COLUMN) {
      float ku[C], qs[C], alpha[C], w[C], written[C], gamma = 1.f;  // w: what was written, decayed to the token at hand
      to_lanes(u, 0, 0), to_lanes(u, 1, 8);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        *(float2_*)&a_tile[p.row * C + h * 8 + p.quad * 2] = {gram_a[h][0], gram_a[h][1]};
        *(float2_*)&a_tile[(p.row + 8) * C + h * 8 + p.quad * 2] = {gram_a[h][2], gram_a[h][3]};
        *(float2_*)&a_tile[C * C + p.row * C + h * 8 + p.quad * 2] = {gram_p[h][0], gram_p[h][1]};
        *(float2_*)&a_tile[C * C + (p.row + 8) * C + h * 8 + p.quad * 2] = {gram_p[h][2], gram_p[h][3]};
      }
      sync_warp();
#pragma unroll
      for (int t = 0; t < C; t++) ku[t] = u_tile[t * U_ROW + p.column];
      sync_warp();
      to_lanes(S, 0, 0), to_lanes(S, 1, 8);
      sync_warp();
#pragma unroll
      for (int t = 0; t < C; t++) qs[t] = u_tile[t * U_ROW + p.column];
      load_decay(alpha, s + STAGE_D, a.decay, t0 * H + head, H, valid, p);
#pragma unroll
      for (int t = 0; t < C; t++) {
        if (!POST) {
          gamma *= alpha[t];
#pragma unroll
          for (int i = 0; i < t; i++) w[i] *= alpha[t];
        }
        float u = gamma * ku[t];
#pragma unroll
        for (int i = 0; i < t; i++) u += a_tile[t * C + i] * w[i];
        float x = v[t] - SCALE * u;
        respond(x, t);
        if (POST) {
          gamma *= alpha[t];
#pragma unroll
          for (int i = 0; i < t; i++) w[i] *= alpha[t];
        }
        w[t] = written[t] = UNSCALE * beta[t] * x * r;
        float read = gamma * qs[t];
#pragma unroll
        for (int i = 0; i <= t; i++) read += a_tile[C * C + t * C + i] * w[i];
        float o = over_mixtures(mix[t] * read);
        if (p.alive && p.j == 0 && t < valid) store(a.out + ((t0 + t) * H + head) * V + first + p.d, o);
      }
      sync_warp();
      u_tile[p.column] = gamma;
      if (a.kept_c) {
        put_columns(c_tile, p, written);
        sync_warp();
        keep_c();
        sync_warp();
      }
      put_columns(c_tile, p, w);
      sync_warp();
      decay_rows(W, u_tile, p);
    } else {
      const float* blocks = a_tile;
      Pair cross[NG];
      if constexpr (BY_KEY) {
        blocks = decay.blocks + (p.j < J ? p.j : 0) * BLOCKS_STRIDE;
#pragma unroll
        for (int g = 0; g < NG; g++) {
          A16 x = load_rows(decay.A + g * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
#pragma unroll
          for (int i = 0; i < NS; i++) cross[g].x[i] = x.x[i][1];
        }
      } else {
        // A is symmetric: rows by writer and by reader are the same.
        *(float2_*)&a_tile[p.row * 8 + p.quad * 2] = {gram_a[0][0], gram_a[0][1]};
        *(float2_*)&a_tile[64 + p.row * 8 + p.quad * 2] = {gram_a[1][2], gram_a[1][3]};
        cross[0] = pack(gram_a[0][2], gram_a[0][3]);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (half == 1) {
          if (KEY_GATE && a.kept_c) a.kept_mix[chunk_unit * KEPT_MIX + KEPT_MIDDLE + p.lane] = r;
          Pair c[4], none = {};
          load_half(c, c_tile, 0, p.lane);
          float more[4][4];
#pragma unroll
          for (int nt = 0; nt < 4; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) more[nt][i] = u[nt][i];
            product_k8(more[nt], none, cross[group_of(nt)], c[nt]);
            u[nt][2] = more[nt][2], u[nt][3] = more[nt][3];
          }
        }
        to_lanes(u, half, 0);
        sync_warp();
        float x[8], c[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = v[half * 8 + i] - SCALE * u_tile[i * U_ROW + p.column];
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const int t = half * 8 + i;
          float write = beta[t] * x[i];
          c[i] = write * respond(x[i], t);
#pragma unroll
          for (int i4 = 0; i4 < 2; i4++)
            if (i4 * 4 + 3 > i) {
              float4_ row = *(const float4_*)&blocks[half * 64 + i * 8 + i4 * 4];
#pragma unroll
              for (int e = 0; e < 4; e++)
                if (i4 * 4 + e > i) x[i4 * 4 + e] -= row.x[e] * c[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) c[i] *= UNSCALE;
        put_column(c_tile, p, half, c);
        sync_warp();
      }
    }
    // The state at the chunk's end: W = Γ W + Σ c ⊗ Γ k, and what the chunk wrote, read by its queries: S += P c.
    A16 ca[2];
#pragma unroll
    for (int m = 0; m < 2; m++) ca[m] = load_columns_operand(c_tile, m * 16, p.lane);
    if constexpr (!BY_COLUMN) keep_c();
    if constexpr (BY_KEY) decay_state(W, decay, p);
    add_outer(W, ca, BY_KEY ? decay.keys_end : k_tile, RAW ? X_ROW : OPERAND_ROW, p.lane);
    if constexpr (!BY_COLUMN) {
      A16 pf;
      if constexpr (!BY_KEY) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (h * 8 + p.quad * 2 + (i & 1) > p.row + (i >> 1) * 8) gram_p[h][i] = 0.f;
        pf = as_rows(gram_p[0], gram_p[1]);
      }
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        if constexpr (BY_KEY)
          pf = load_rows(decay.P + group_of(nt) * GRAM_TILE, GRAM_PLANE, GRAM_ROW, 0, p.lane);
        product(S[nt], pf, half_of(ca[nt / 2], nt % 2));
      }
      // o = Σ_j ρ_j S_j: tiles hold pairs of output dims of one mixture, so most of the sum is within a lane.
      if constexpr (LANE_MIX) {
#pragma unroll
        for (int t = 0; t < C; t++) u_tile[t * U_ROW + p.column] = mix[t];
        sync_warp();
      }
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int b = 0; b < DB; b++) {
          const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
          float x[JT], y[JT], o0 = 0.f, o1 = 0.f;
          if constexpr (LANE_MIX) {
#pragma unroll
            for (int i = 0; i < JT; i++) {
              float2_ m = *(const float2_*)&u_tile[t * U_ROW + (i * DB + b) * 8 + p.quad * 2];
              x[i] = m.x[0], y[i] = m.x[1];
            }
          } else if constexpr (J == 1) {
            x[0] = y[0] = 1.f;
          } else {
            prior_of(x, y, s + STAGE_LQ, t, b, p);
          }
#pragma unroll
          for (int i = 0; i < JT; i++) o0 += x[i] * S[i * DB + b][2 * h], o1 += y[i] * S[i * DB + b][2 * h + 1];
          o0 = over_tile(o0), o1 = over_tile(o1);
          if (t < valid && p.quad * 2 < DPW && (V >= DPW || d < V))
            store2(a.out + ((t0 + t) * H + head) * V + first + d, o0, o1);
        }
      if constexpr (LANE_MIX) sync_warp();
    }
    if constexpr (BY_COLUMN) sync_warp();
    if (a.kept_W && ((chunk + 1) * C % SEGMENT == 0 || chunk + 1 == chunks)) {
      i64 row = segment_row(a.bounds, span, chunk * C / SEGMENT, T) * warp_units + warp_unit;
      keep_state(a.kept_W, row, W, p.lane);
    }
  }
  copy_wait<0>();
  finish(a, W, {r, rho, used_k, spread_k, used_q, spread_q}, unit, first, at, p);
}
