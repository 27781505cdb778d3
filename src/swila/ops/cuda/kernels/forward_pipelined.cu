// The forward for bf16 without decay, with overlapping chunks: between the steps of a chunk's substitution, the outputs of the
// chunk before are computed, its writes are added to the state, and the products of the chunk after are started.
//
// With W the state at the start of chunk n, the predictions of chunk n + 1 are k · W + (k_{n+1} · k_n) c_n: only the
// second, small term waits for the substitution.
#include "forward.cuh"

static_assert(DECAY == 0 && RAW, "bf16 without decay");
constexpr int STAGES = 4;  // the chunk before, the current one, the next one, and one being fetched
constexpr int WARP_U = 0, WARP_C = WARP_U + 8 * U_ROW * 4, WARP_A = WARP_C + PAIR_PLANE, WARP_MIX = WARP_A + 2 * 128 * 4;
constexpr int WARP_PRIOR = WARP_MIX + LANE_MIX * C * U_ROW * 4;
constexpr int WARP_BYTES = WARP_PRIOR + (LANE_MIX || KEY_GATE || !NORMALIZE) * C * U_ROW * 4;
NEEDS(STAGES * STAGE_BYTES + NW * WARP_BYTES, NT)

KERNEL void __launch_bounds__(NT, 1) swila_forward_pipelined(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  const Fetch<> fetch(a.H);
  char* mine = shared + STAGES * STAGE_BYTES + p.warp * WARP_BYTES;
  float *u_tile = (float*)(mine + WARP_U), *a_tiles = (float*)(mine + WARP_A);
  float *mix_tile = (float*)(mine + WARP_MIX), *prior_tile = (float*)(mine + WARP_PRIOR);
  char* c_tile = mine + WARP_C;

  const i64 block = blockIdx.x, H = a.H, T = a.T;
  const int vt = (int)(block % VT), first = vt * VB + p.warp * DPW;  // of the warp's output dims
  const i64 head = block / VT % H;
  const Span span = sequence(a.bounds, block / VT / H, T);
  const i64 unit = span.n * H + head, start = span.begin, stop = span.end;
  const i64 warp_unit = (head * VT + vt) * NW + p.warp, warp_units = H * VT * NW;
  const int chunks = (int)((stop - start + C - 1) / C);

  float W[2][KT][4], r = 1.f / J, rho = 1.f / J;
  clear_state(W);
  if (a.W) load_state(W, a.W, unit, first, p);
  const i64 at = (unit * J + p.j) * V + first + p.d;
  if (a.r && p.alive) r = a.r[at];
  if (a.rho && p.alive) rho = a.rho[at];
  if (DEAD && !p.alive) r = rho = 0.f;
  auto stage = [&](int chunk) { return shared + (chunk & (STAGES - 1)) * STAGE_BYTES; };
  if constexpr (K_PADDED)  // zero the padding of the key dims
    for (int i = (int)threadIdx.x; i < STAGES * STAGE_BYTES / 4; i += NT) ((u32*)shared)[i] = 0;
  for (int i = (int)threadIdx.x; i < C * X_ROW / 4; i += NT) ((u32*)(stage(-1) + STAGE_K))[i] = 0;  // before the first
  sync_block();

#pragma unroll
  for (int i = 0; i < 2; i++) fetch(a, stage(i), start + i * C, stop, head, vt);
  copy_wait<1>();
  sync_block();

  float used_k = 0.f, spread_k = 0.f, used_q = 0.f, spread_q = 0.f;  // sums for the statistics
  float u[4][4] = {}, S[4][4] = {};  // predictions of the chunk in work; what the chunk before it reads
  A16 c_before[2] = {};
  auto state_operand = [&](int nt, int ks) {
    B16 b;
    b.x[0][0] = pack_bf16(W[nt / 2][2 * ks][nt % 2 * 2], W[nt / 2][2 * ks][nt % 2 * 2 + 1]);
    b.x[0][1] = pack_bf16(W[nt / 2][2 * ks + 1][nt % 2 * 2], W[nt / 2][2 * ks + 1][nt % 2 * 2 + 1]);
    return b;
  };
  // The diagonal blocks of A, [half][writer][reader] (it is symmetric), and the block of late readers and early writers.
  Pair cross;
  auto put_blocks = [&](const float (&gram)[2][4], int chunk) {
    float* tile = a_tiles + (chunk & 1) * 128;
    *(float2_*)&tile[p.row * 8 + p.quad * 2] = {gram[0][0], gram[0][1]};
    *(float2_*)&tile[64 + p.row * 8 + p.quad * 2] = {gram[1][2], gram[1][3]};
    cross = pack(gram[0][2], gram[0][3]);
  };
  {
    float gram[2][4] = {};
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      A16 kf = load_rows(stage(0) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
      for (int nt = 0; nt < 4; nt++) product(u[nt], kf, state_operand(nt, ks));
      product(gram[0], kf, half_of(kf, 0)), product(gram[1], kf, half_of(kf, 1));
    }
    put_blocks(gram, 0);
  }
  // Rows of one half and one block of output dims of what a chunk reads, o = Σ_j ρ_j S_j: first the logits or the mix.
  float left[JT], right[JT];
  auto load_mix = [&](int chunk, int h, int b) {
    const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
#pragma unroll
    for (int i = 0; i < JT; i++) {
      int j = ((i * DB + b) * 8 + p.quad * 2) / DPW;
      left[i] = right[i] = J == 1 ? 1.f : NEVER;
      if constexpr (LANE_MIX) {
        float2_ m = *(const float2_*)&mix_tile[t * U_ROW + (i * DB + b) * 8 + p.quad * 2];
        left[i] = m.x[0], right[i] = m.x[1];
      } else if (J > 1 && j < J && (V >= DPW || d < V)) {
        load2((const TB*)(stage(chunk) + STAGE_LQ + t * BY_TOKEN + j * B_ROW) + p.warp * DPW + d, left[i], right[i]);
      }
    }
  };
  auto read_out = [&](int chunk, int h, int b) {
    const i64 t0 = start + (i64)chunk * C;
    const int t = p.row + h * 8, d = (b * 8 + p.quad * 2) % DPW;
    if constexpr (!LANE_MIX && J > 1) {
#pragma unroll
      for (int i = 0; i < JT; i++) {  // to base 2, kept finite
        const float least = ((i * DB + b) * 8 + p.quad * 2) / DPW < J ? LEAST : NEVER;
        left[i] = max_nan(left[i] * LOG2E, least), right[i] = max_nan(right[i] * LOG2E, least);
      }
      softmax_tile(left, right);
    }
    float o0 = 0.f, o1 = 0.f;
#pragma unroll
    for (int i = 0; i < JT; i++) o0 += left[i] * S[i * DB + b][2 * h], o1 += right[i] * S[i * DB + b][2 * h + 1];
    o0 = over_tile(o0), o1 = over_tile(o1);
    if (chunk >= 0 && t0 + t < stop && p.quad * 2 < DPW && (V >= DPW || d < V))
      store2(a.out + ((t0 + t) * H + head) * V + first + d, o0, o1);
  };
  // Operands are loaded a step before they are used, so that the substitution does not wait for them.
  constexpr int AHEAD = KS > 4 ? 2 : 1;
  B16 kx[AHEAD], ky[AHEAD];
  auto load_written = [&](int chunk, int ks) {
    load_transposed(kx[ks % AHEAD], ky[ks % AHEAD], stage(chunk) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
  };
  auto write_state = [&](int ks) {
#pragma unroll
    for (int m = 0; m < 2; m++)
      product(W[m][2 * ks], c_before[m], kx[ks % AHEAD]), product(W[m][2 * ks + 1], c_before[m], ky[ks % AHEAD]);
  };
  auto keep_end = [&](int chunk) {  // at the end of that chunk
    if (a.kept_W && chunk >= 0 && ((chunk + 1) * C % SEGMENT == 0 || chunk + 1 == chunks)) {
      i64 row = segment_row(a.bounds, span, chunk * C / SEGMENT, T) * warp_units + warp_unit;
      keep_state(a.kept_W, row, W, p.lane);
    }
  };

  for (int chunk = 0; chunk < chunks; chunk++) {
    const i64 t0 = start + (i64)chunk * C;
    const int valid = stop - t0 < C ? (int)(stop - t0) : C;
    copy_wait<0>();
    sync_block();
    fetch(a, stage(chunk + 2), t0 + 2 * C, stop, head, vt);
    const char *s = stage(chunk), *next = stage(chunk + 1);
    const i64 chunk_unit = chunk_row(a.bounds, span, chunk, T) * warp_units + warp_unit;
    if ((KEY_GATE || QUERY_GATE) && a.kept_c) {
      a.kept_mix[chunk_unit * KEPT_MIX + p.lane] = r;
      a.kept_mix[chunk_unit * KEPT_MIX + KEPT_RHO + p.lane] = rho;
    }

    float prior[C], gk[C];  // used where the prior is blended or not normalised away
    if constexpr (KEY_GATE || !NORMALIZE) load_prior(prior, s + STAGE_LK, prior_tile, p);
    if constexpr (KEY_GATE) {
      load_column<TB, 1>(gk, s + STAGE_GK, p);
#pragma unroll
      for (int t = 0; t < C; t++) prior[t] *= gk[t], gk[t] = 1.f - gk[t];
    }
    load_mix(chunk - 1, 0, 0);
    float reads[4][4] = {}, begun[4][4] = {}, gram_a[2][4] = {}, gram_p[2][4] = {}, gram_x[2][4] = {};
    Pair cross_now = cross;
    A16 qf, kf, nf;
    auto load_products = [&](int ks) {
      qf = load_rows(s + STAGE_Q, OPERAND_TILE, X_ROW, ks * 16, p.lane);
      kf = load_rows(s + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
      nf = load_rows(next + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
    };
    // Work that does not depend on the substitution, a part of it after each step.
    auto meanwhile = [&](int step) {
#pragma unroll
      for (int i = 0; i < 2 * DB; i++) {
        if (i * 4 / (2 * DB) == step) read_out(chunk - 1, i / DB, i % DB);
        if (i + 1 < 2 * DB && i * 4 / (2 * DB) == step) load_mix(chunk - 1, (i + 1) / DB, (i + 1) % DB);
      }
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        if (4 + ks * 4 / KS == step) write_state(ks);
        if (8 + ks * 8 / KS == step) {
#pragma unroll
          for (int nt = 0; nt < 4; nt++) {
            B16 w = state_operand(nt, ks);
            product(reads[nt], qf, w), product(begun[nt], nf, w);
          }
        }
        if (8 + ks * 8 / KS + (KS > 4 ? 0 : 1) == step) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            product(gram_p[h], qf, half_of(kf, h));
            product(gram_x[h], nf, half_of(kf, h));
            product(gram_a[h], nf, half_of(nf, h));
          }
        }
      }
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        if (3 + ks * 4 / KS == step) load_written(chunk - 1, ks);
        if (7 + ks * 8 / KS == step) load_products(ks);
      }
      if (LANE_MIX && step == 3) {
        float mix[C], gq[C];
        load_prior(mix, s + STAGE_LQ, prior_tile, p);
        if (QUERY_GATE) load_column<TB, 1>(gq, s + STAGE_GQ, p);
#pragma unroll
        for (int t = 0; t < C; t++) {
          rho = QUERY_GATE ? (1.f - gq[t]) * rho + gq[t] * mix[t] : mix[t];
          mix_tile[t * U_ROW + p.column] = rho;
          if (STATS && t < valid) used_q += rho, spread_q -= rho * LN2 * lg2(max_nan(rho, TINY));
        }
      }
    };
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float v[8], beta[8], lk[8], c[8];
      load_half_column<TX, 1>(v, s + STAGE_V, half, p);
      load_half_column<TB, J>(beta, s + STAGE_BETA, half, p);
      if constexpr (!KEY_GATE && NORMALIZE) load_half_column<TB, J>(lk, s + STAGE_LK, half, p);
      if (half == 1) {
        if (KEY_GATE && a.kept_c) a.kept_mix[chunk_unit * KEPT_MIX + KEPT_MIDDLE + p.lane] = r;
        Pair early[4], none = {};
        load_half(early, c_tile, 0, p.lane);
#pragma unroll
        for (int nt = 0; nt < 4; nt++) {
          float more[4] = {0.f, 0.f, u[nt][2], u[nt][3]};
          product_k8(more, none, cross_now, early[nt]);
          u[nt][2] = more[2], u[nt][3] = more[3];
        }
      }
#pragma unroll
      for (int nt = 0; nt < 4; nt++)
        *(float2_*)&u_tile[p.row * U_ROW + nt * 8 + p.quad * 2] = {u[nt][2 * half], u[nt][2 * half + 1]};
      sync_warp();
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (DEAD && !p.alive) beta[i] = 0.f, v[i] = 0.f;
        if (!KEY_GATE && NORMALIZE) lk[i] = log_prior(lk[i], p);
        x[i] = SCALE * v[i] - SCALE * u_tile[i * U_ROW + p.column];
      }
      const float* blocks = a_tiles + (chunk & 1) * 128 + half * 64;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int t = half * 8 + i;
        float write = beta[i] * x[i];
        if constexpr (KEY_GATE) {
          float p_t = max_nan(gk[t] * r + prior[t], TINY);
          if constexpr (NORMALIZE) {
            float z = lg2(p_t) - x[i] * x[i];
            r = share(DEAD && !p.alive ? NEVER : z);
          } else {
            r = p_t * ex2(-x[i] * x[i]);
          }
          if (DEAD && !p.alive) r = 0.f;
        } else {
          r = NORMALIZE ? share(lk[i] - x[i] * x[i]) : prior[t] * ex2(-x[i] * x[i]);
        }
        if (STATS && t < valid) used_k += r, spread_k -= r * LN2 * lg2(max_nan(r, TINY));
        c[i] = write * r;
#pragma unroll
        for (int i4 = 0; i4 < 2; i4++)
          if (i4 * 4 + 3 > i) {
            float4_ row = *(const float4_*)&blocks[i * 8 + i4 * 4];
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (i4 * 4 + e > i) x[i4 * 4 + e] -= row.x[e] * c[i];
          }
        c[i] *= UNSCALE;
        meanwhile(t);
      }
      put_column(c_tile, p, half, c);
      sync_warp();
    }
    put_blocks(gram_a, chunk + 1);
#pragma unroll
    for (int m = 0; m < 2; m++) c_before[m] = load_columns_operand(c_tile, m * 16, p.lane);
    if (a.kept_c)
#pragma unroll
      for (int i = 0; i < 2; i++)  // the tile's rows, without their padding
        a.kept_c[(chunk_unit * 2 + i) * 32 + p.lane] = *(const uint4_*)(c_tile + pair_row(i * 16 + p.lane / 2) + p.lane % 2 * 16);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (h * 8 + p.quad * 2 + (i & 1) > p.row + (i >> 1) * 8) gram_p[h][i] = 0.f;
    const A16 pf = as_rows(gram_p[0], gram_p[1]), xf = as_rows(gram_x[0], gram_x[1]);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) {
      product(begun[nt], xf, half_of(c_before[nt / 2], nt % 2));
      product(reads[nt], pf, half_of(c_before[nt / 2], nt % 2));
#pragma unroll
      for (int i = 0; i < 4; i++) u[nt][i] = begun[nt][i], S[nt][i] = reads[nt][i];
    }
    sync_warp();
    keep_end(chunk - 1);
  }
  copy_wait<0>();

#pragma unroll
  for (int i = 0; i < 2 * DB; i++) load_mix(chunks - 1, i / DB, i % DB), read_out(chunks - 1, i / DB, i % DB);
#pragma unroll
  for (int ks = 0; ks < KS; ks++) load_written(chunks - 1, ks), write_state(ks);
  keep_end(chunks - 1);
  finish(a, W, {r, rho, used_k, spread_k, used_q, spread_q}, unit, first, at, p);
}
