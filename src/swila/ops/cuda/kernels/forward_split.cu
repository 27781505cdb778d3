// The forward for bf16 without decay and two to four mixtures, with different work for different warps of a block.
//
// Some warps only substitute: a lane works on all mixtures of one output dim, so that lanes exchange nothing. Other warps hold the
// state, 32 columns each, and compute the matrix products: during the substitution of a chunk they compute the outputs of the
// chunk before, update the state, start the chunk after, and provide errors, rates and priors.
// With W the state at the start of chunk n, the predictions of chunk n + 1 are k · W + (k_{n+1} · k_n) c_n: only the second,
// small term waits for the substitution. The remaining warps compute the query mix, and with temporal priors the statistics of the
// responsibilities, which the substituting warps leave in the place of the priors.
#define ALL_BY_TOKEN
#include "forward.cuh"
#include "vectors.cuh"

static_assert(DECAY == 0 && RAW && (JP == 2 || JP == 4) && V >= DPW, "bf16 without decay, 2 to 4 mixtures");
constexpr int STAGES = 3;  // the current chunk, the next one, and one being fetched
constexpr int SOLVERS = (VB + 31) / 32, MIXERS = SOLVERS;  // warps that substitute, and that mix
constexpr int ALL_THREADS = NT + 32 * (SOLVERS + MIXERS), WITH_SOLVERS = NT + 32 * SOLVERS, WITH_MIXERS = NT + 32 * MIXERS;
constexpr bool SHARES_GIVEN = STATS && KEY_GATE, OWN_STATS = STATS && !SHARES_GIVEN;  // of the substituting warps
constexpr int WIDE = C * VB * JP * 4;                     // float [token, output dim, mixture]: errors, rates, priors
constexpr int GATE_ROW = VB + 8, GATES = KEY_GATE * C * GATE_ROW * 4;
constexpr int WRITTEN = NW * PAIR_PLANE;                  // c, a tile per warp
// With two warps of products the temporal substitution has a scheduler, and its instruction cache, to itself: in two parts by the same
// code a chunk fits into it, at the price of what is computed in vain.
constexpr int PARTS = KEY_GATE && NW == 2 ? 2 : 1, PART = C / PARTS;
constexpr int GRAMS = 2 * 32 * 16 + C * C * 4 + (C - PART) * 4;  // of a chunk: operands P and X as registers, A as floats, padding
constexpr int MIX = C * VB * JP * 4;
constexpr int EARLY_BYTES = STAGE_BYTES - STAGE_EARLY, GIVEN = 2 * WIDE + GATES;  // rates, priors and gates of a chunk
constexpr int AT_EARLY = STAGES * STAGE_EARLY, AT_U = AT_EARLY + 2 * EARLY_BYTES, AT_C = AT_U + WIDE;
constexpr int AT_GRAMS = AT_C + WRITTEN, AT_MIX = AT_GRAMS + 2 * GRAMS, AT_GIVEN = AT_MIX + MIX;
constexpr int RATE = 0, PRIOR = WIDE, STAY = 2 * WIDE;
NEEDS(AT_GIVEN + 2 * GIVEN, ALL_THREADS)

// The last two have a number for odd chunks as well: who announces may be a chunk ahead of who waits.
enum { PREDICTED = 1, WRITTEN_ALL, AMONG_PRODUCTS, MIXED, MIX_USED, SHARES, SHARES_USED = SHARES + 2 };

// Of logarithms to base 2, the shares that are still to be multiplied by what is returned: their inverse sum. With statistics, also
// the entropy of the shares, log Σ_i exp z_i - Σ_j r_j z_j.
DEVICE float unscaled_softmax(float (&z)[J], float& entropy) {
  const float most = largest(z);
  float sum, product = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) {
    const float x = z[j] - most;
    z[j] = ex2(x);
    sum = j ? sum + z[j] : z[j];
    if (STATS) product += z[j] * x;
  }
  const float inverse = rcp(sum);
  if (STATS) entropy = LN2 * (lg2(sum) - product * inverse);
  return inverse;
}
// Of numbers that are not logarithms.
DEVICE float entropy_of(const float (&x)[J]) {
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) sum -= x[j] * LN2 * lg2(max_nan(x[j], TINY));
  return sum;
}

struct Work {
  Span span;
  i64 head, unit, warp_units, first_unit;  // warps of a head are numbered from first_unit
  int vt, chunks;
};

// The output dim of a lane, where lanes have one each.
struct OutputDim {
  bool alive;
  int dim, warp, column;  // of the block; which multiplying warp has it, and where
  i64 at;                 // of its first mixture, in what a head has
  DEVICE OutputDim(const Work& w, int d)
      : alive(d < VB), dim(alive ? d : 0), warp(dim / DPW), column(dim % DPW), at(w.unit * J * V + w.vt * VB + dim) {}
};

// One output dim per lane: the substitution.
DEVICE void substitute(const Arguments& a, char* shared, const Work& w, int solver, int lane) {
  const OutputDim o(w, solver * 32 + lane);
  const auto [alive, dim, warp, column, at] = o;
  float r[J], used[J] = {}, spread = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) r[j] = KEY_GATE && a.r && alive ? a.r[at + j * V] : 1.f / J;
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    char* c_tile = shared + AT_C + warp * PAIR_PLANE;
    char* given = shared + AT_GIVEN + (chunk & 1) * GIVEN;
    const char* stays = given + STAY;
    const float* gram = (const float*)(shared + AT_GRAMS + (chunk & 1) * GRAMS + 2 * 32 * 16);
    const i64 t0 = w.span.begin + (i64)chunk * C;
    const int valid = w.span.end - t0 < C ? (int)(w.span.end - t0) : C;
    float* kept = nullptr;
    if (KEY_GATE && a.kept_c && alive)
      kept = a.kept_mix + (chunk_row(a.bounds, w.span, chunk, a.T) * w.warp_units + w.first_unit + warp) * KEPT_MIX;
    auto keep = [&](int at) {
#pragma unroll
      for (int j = 0; j < JP; j++) kept[at + kept_lane(j, o.column)] = j < J ? r[j < J ? j : 0] : 0.f;
    };
    if (kept) keep(0);
    await(PREDICTED, WITH_SOLVERS);
    float x[C][J], before[J];
#pragma unroll
    for (int t = 0; t < C; t++) {
      const Vector error = *(const Vector*)(shared + AT_U + vector_at(t, dim));
#pragma unroll
      for (int j = 0; j < J; j++) x[t][j] = error.x[j];
    }
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
      const int valid_part = valid - part * PART;
      u32 written[J][4];
#pragma unroll
      for (int t = 0; t < PART; t++) {
        if (part * PART + t == C / 2 && kept) keep(KEPT_MIDDLE);
        const Vector rate = *(const Vector*)(given + RATE + vector_at(t, dim));
        const Vector prior = *(const Vector*)(given + PRIOR + vector_at(t, dim));
        const float stay = KEY_GATE ? *(const float*)(stays + (t * GATE_ROW + dim) * 4) : 0.f;
        float c[J], inverse = 1.f, entropy;  // the inverse is multiplied in last: the next token waits for it
#pragma unroll
        for (int j = 0; j < J; j++) c[j] = rate.x[j] * x[t][j];
        if constexpr (NORMALIZE && KEY_GATE) {  // without a logarithm of the priors, which would be in the chain as well
          float likelihood[J], sum;
#pragma unroll
          for (int j = 0; j < J; j++) likelihood[j] = -x[t][j] * x[t][j];
          const float most = largest(likelihood);
#pragma unroll
          for (int j = 0; j < J; j++) {
            r[j] = max_nan(stay * r[j] + prior.x[j], TINY) * ex2(likelihood[j] - most + AMPLE);
            sum = j ? sum + r[j] : r[j];
          }
          inverse = rcp(sum);
        } else {
#pragma unroll
          for (int j = 0; j < J; j++) {
            float z = prior.x[j];
            if constexpr (KEY_GATE) {
              z = max_nan(stay * r[j] + z, TINY);
              if (NORMALIZE) z = lg2(z);
            }
            r[j] = NORMALIZE ? z - x[t][j] * x[t][j] : z * ex2(-x[t][j] * x[t][j]);
          }
          if constexpr (NORMALIZE) inverse = unscaled_softmax(r, entropy);
        }
#pragma unroll
        for (int j = 0; j < J; j++) {
          if constexpr (STATS || KEY_GATE) {
            r[j] *= inverse, c[j] *= r[j];
          } else {
            c[j] *= r[j], c[j] *= inverse;
          }
          if (OWN_STATS && t < valid_part) used[j] += r[j];
        }
        if (OWN_STATS && t < valid_part) spread += NORMALIZE ? entropy : entropy_of(r);
        if constexpr (SHARES_GIVEN) {
          Vector share = {};
#pragma unroll
          for (int j = 0; j < J; j++) share.x[j] = r[j];
          if (alive) *(Vector*)(given + PRIOR + vector_at(t, dim)) = share;
        }
        // Of the last part, what follows the chunk is computed too and not used: without a branch, in the time of the chain.
#pragma unroll
        for (int i = 0; i < C; i += 4)
          if (i + 3 > t) {
            float4_ row = *(const float4_*)&gram[t * C + i];
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
              for (int j = 0; j < J; j++)
                if (i + e > t) x[i + e][j] -= row.x[e] * c[j];
          }
#pragma unroll
        for (int j = 0; j < J; j++) {
          if (t % 2) written[j][t % 8 / 2] = pack_bf16(before[j], c[j]);
          before[j] = c[j];
          if (t % 8 == 7 && alive)
            *(uint4_*)(c_tile + pair_row(j * DPW + column) + t / 8 * 16) = {written[j][0], written[j][1], written[j][2], written[j][3]};
        }
      }
      given += PART * VB * JP * 4, stays += PART * GATE_ROW * 4, gram += PART * C + PART, c_tile += PART * 2;
#pragma unroll
      for (int t = 0; t + PART < C; t++)
#pragma unroll
        for (int j = 0; j < J; j++) x[t][j] = x[t + PART][j];
    }
    announce(WRITTEN_ALL, WITH_SOLVERS);
    if (SHARES_GIVEN) announce(SHARES + (chunk & 1), 32 * (SOLVERS + MIXERS));
  }
  if (alive) {
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (KEY_GATE && a.r_out) a.r_out[at + j * V] = r[j];
      if (OWN_STATS) a.stats[at + j * V] = used[j], a.stats[a.N * a.H * J * V + at + j * V] = j ? 0.f : spread;  // of all mixtures
    }
  }
}

// One output dim per lane: the query mix, and statistics of what is given.
DEVICE void mix(const Arguments& a, char* shared, const Work& w, int mixer, int lane) {
  const OutputDim o(w, mixer * 32 + lane);
  const auto [alive, dim, warp, column, at] = o;
  float rho[J], used[J] = {}, spread = 0.f, keys_used[J] = {}, keys_spread = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) rho[j] = QUERY_GATE && a.rho && alive ? a.rho[at + j * V] : 1.f / J;
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const char* s = shared + chunk % STAGES * STAGE_EARLY;
    const i64 t0 = w.span.begin + (i64)chunk * C;
    const int valid = w.span.end - t0 < C ? (int)(w.span.end - t0) : C;
    if (QUERY_GATE && a.kept_c && alive) {
      const i64 unit = chunk_row(a.bounds, w.span, chunk, a.T) * w.warp_units + w.first_unit + warp;
#pragma unroll
      for (int j = 0; j < JP; j++) a.kept_mix[unit * KEPT_MIX + KEPT_RHO + kept_lane(j, column)] = j < J ? rho[j < J ? j : 0] : 0.f;
    }
    await(MIX_USED, WITH_MIXERS);
#pragma unroll 1
    for (int from = 0; from < C; from += 4) {
      float z[4][J], g[4], entropy[4];  // all loads before any store: a load does not overtake a store that may alias it
#pragma unroll
      for (int i = 0; i < 4; i++) {
        load_logits(z[i], s + STAGE_LQ, BY_TOKEN, from + i, dim);
        g[i] = QUERY_GATE ? to_float(*((const TB*)(s + STAGE_GQ + (from + i) * B_ROW) + dim)) : 1.f;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float inverse = unscaled_softmax(z[i], entropy[i]);
#pragma unroll
        for (int j = 0; j < J; j++) z[i][j] *= inverse;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Vector m = {};
#pragma unroll
        for (int j = 0; j < J; j++) {
          rho[j] = QUERY_GATE ? (1.f - g[i]) * rho[j] + g[i] * z[i][j] : z[i][j];
          m.x[j] = rho[j];
          if (STATS && from + i < valid) used[j] += rho[j];
        }
        if (STATS && from + i < valid) spread += QUERY_GATE ? entropy_of(rho) : entropy[i];
        if (alive) *(Vector*)(shared + AT_MIX + vector_at(from + i, dim)) = m;
      }
    }
    announce(MIXED, WITH_MIXERS);
    if constexpr (SHARES_GIVEN) {
      const char* shares = shared + AT_GIVEN + (chunk & 1) * GIVEN + PRIOR;
      await(SHARES + (chunk & 1), 32 * (SOLVERS + MIXERS));
#pragma unroll 1
      for (int from = 0; from < C; from += 4) {
        float share[4][J];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const Vector given = *(const Vector*)(shares + vector_at(from + i, dim));
#pragma unroll
          for (int j = 0; j < J; j++) share[i][j] = given.x[j];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (from + i >= valid) continue;
#pragma unroll
          for (int j = 0; j < J; j++) keys_used[j] += share[i][j];
          keys_spread += entropy_of(share[i]);
        }
      }
      if (chunk + 1 < w.chunks) announce(SHARES_USED + (chunk & 1), WITH_MIXERS);
    }
  }
  if (alive) {
    const i64 all = a.N * a.H * J * V;
#pragma unroll
    for (int j = 0; j < J; j++) {
      if (a.rho_out) a.rho_out[at + j * V] = rho[j];
      if (SHARES_GIVEN) a.stats[at + j * V] = keys_used[j], a.stats[all + at + j * V] = j ? 0.f : keys_spread;
      if (STATS) a.stats[2 * all + at + j * V] = used[j], a.stats[3 * all + at + j * V] = j ? 0.f : spread;
    }
  }
}

// The state and all products with it.
DEVICE void multiply(const Arguments& a, char* shared, const Work& w, const Place& p) {
  const i64 H = a.H, start = w.span.begin, stop = w.span.end;
  const int first = w.vt * VB + p.warp * DPW;
  auto stage = [&](int chunk) { return shared + chunk % STAGES * STAGE_EARLY; };
  auto early = [&](int chunk) { return shared + AT_EARLY + (chunk & 1) * EARLY_BYTES - STAGE_EARLY; };
  auto grams = [&](int chunk) { return shared + AT_GRAMS + (chunk & 1) * GRAMS; };
  const Fetch pieces(H);
  i64 row = start * H + w.head;  // of the chunk that is fetched next
  const int tail = (int)(stop - start - (i64)(w.chunks - 1) * C);
  auto fetch = [&](int chunk) {
    const int valid = chunk >= w.chunks ? 0 : chunk == w.chunks - 1 ? tail : C;
    pieces.parted(a, stage(chunk), early(chunk) + STAGE_EARLY, row, valid, w.vt);
    row += C * H;
  };
  float W[2][KT][4];
  clear_state(W);
  if (a.W) load_state(W, a.W, w.unit, first, p);
  auto state_operand = [&](int nt, int ks) {
    B16 b;
    b.x[0][0] = pack_bf16(W[nt / 2][2 * ks][nt % 2 * 2], W[nt / 2][2 * ks][nt % 2 * 2 + 1]);
    b.x[0][1] = pack_bf16(W[nt / 2][2 * ks + 1][nt % 2 * 2], W[nt / 2][2 * ks + 1][nt % 2 * 2 + 1]);
    return b;
  };
  // Gram matrices of a chunk, one by each of three warps, as the registers that all will use them in.
  auto make_grams = [&](int chunk) {
    float all[NW == 1 ? 3 : 1][2][4] = {};
    if constexpr (NW == 1) {  // all three at once: their products do not wait for each other
#pragma unroll
      for (int ks = 0; ks < KS; ks++) {
        const A16 k = load_rows(stage(chunk) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
        const A16 q = load_rows(stage(chunk) + STAGE_Q, OPERAND_TILE, X_ROW, ks * 16, p.lane);
        const A16 before = load_rows(stage(chunk + STAGES - 1) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
        for (int h = 0; h < 2; h++)
          product(all[0][h], k, half_of(k, h)), product(all[1][h], q, half_of(k, h)), product(all[2][h], k, half_of(before, h));
      }
    }
#pragma unroll
    for (int which = 0; which < 3; which++) {
      if (p.warp != which % NW) continue;
      float (&m)[2][4] = all[NW == 1 ? which : 0];
      if constexpr (NW > 1) {
#pragma unroll
        for (int i = 0; i < 4; i++) m[0][i] = m[1][i] = 0.f;
#pragma unroll
        for (int ks = 0; ks < KS; ks++) {
          A16 rows = load_rows(stage(chunk) + (which == 1 ? STAGE_Q : STAGE_K), OPERAND_TILE, X_ROW, ks * 16, p.lane);
          A16 columns = rows;
          if (which) columns = load_rows(stage(which == 2 ? chunk + STAGES - 1 : chunk) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
          product(m[0], rows, half_of(columns, 0)), product(m[1], rows, half_of(columns, 1));
        }
      }
      char* to = grams(chunk);
      if (which == 0) {  // A: readers of this chunk, writers of this chunk; symmetric
        float* gram = (float*)(to + 2 * 32 * 16) + p.row * C + p.quad * 2;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int i = 0; i < 2; i++) *(float2_*)&gram[i * 8 * C + h * 8] = {SCALE * m[h][2 * i], SCALE * m[h][2 * i + 1]};
      } else {
        if (which == 1)  // P: queries and keys of this chunk; X: keys of this and of the one before
#pragma unroll
          for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
              if (h * 8 + p.quad * 2 + (i & 1) > p.row + (i >> 1) * 8) m[h][i] = 0.f;
        A16 f = as_rows(m[0], m[1]);
        ((uint4_*)(to + (which - 1) * 32 * 16))[p.lane] = {f.x[0][0], f.x[0][1], f.x[0][2], f.x[0][3]};
      }
    }
  };
  auto gram_operand = [&](int chunk, int which) {
    uint4_ x = ((const uint4_*)(grams(chunk) + which * 32 * 16))[p.lane];
    return A16{{{x.x[0], x.x[1], x.x[2], x.x[3]}}};
  };
  // Errors, scaled so that log2 of their likelihood is minus their square.
  auto load_values = [&](float (&v)[2][DB][2], int chunk) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++)
        load2((const TX*)(stage(chunk) + STAGE_V + (h * 8 + p.row) * V_ROW) + p.warp * DPW + b * 8 + p.quad * 2, v[h][b][0], v[h][b][1]);
  };
  auto give_errors = [&](const float (&u)[4][4], const float (&v)[2][DB][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          Vector y;
#pragma unroll
          for (int i = 0; i < JT; i++) y.x[i] = SCALE * v[h][b][e] - SCALE * u[i * DB + b][2 * h + e];
          *(Vector*)(shared + AT_U + vector_at(h * 8 + p.row, p.warp * DPW + b * 8 + p.quad * 2 + e)) = y;
        }
  };
  // Rates, for errors so scaled, and priors; with a gate its share of both.
  auto give_rates = [&](int chunk) {
    const char* s = early(chunk);
    char* given = shared + AT_GIVEN + (chunk & 1) * GIVEN;
    Vector rate[2][DB][2] = {}, prior[2][DB][2] = {};
    float g[2][DB][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++) {
        const int t = h * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
        float x[JT], y[JT];
        if constexpr (KEY_GATE || !NORMALIZE) prior_of(x, y, s + STAGE_LK, t, b, p); else logits_of(x, y, s + STAGE_LK, t, b, p);
        g[h][b][0] = g[h][b][1] = 1.f;
        if (KEY_GATE) load2((const TB*)(s + STAGE_GK + t * B_ROW) + d, g[h][b][0], g[h][b][1]);
#pragma unroll
        for (int j = 0; j < J; j++) {
          float left, right;
          load2((const TB*)(s + STAGE_BETA + t * BETA_TOKEN + j * B_ROW) + d, left, right);
          rate[h][b][0].x[j] = UNSCALE * left, rate[h][b][1].x[j] = UNSCALE * right;
          prior[h][b][0].x[j] = KEY_GATE ? g[h][b][0] * x[j] : x[j], prior[h][b][1].x[j] = KEY_GATE ? g[h][b][1] * y[j] : y[j];
        }
      }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++) {
        const int t = h * 8 + p.row, d = p.warp * DPW + b * 8 + p.quad * 2;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          *(Vector*)(given + RATE + vector_at(t, d + e)) = rate[h][b][e];
          *(Vector*)(given + PRIOR + vector_at(t, d + e)) = prior[h][b][e];
        }
        if (KEY_GATE) *(float2_*)(given + STAY + (t * GATE_ROW + d) * 4) = {1.f - g[h][b][0], 1.f - g[h][b][1]};
      }
  };
  if constexpr (K_PADDED) {  // zero the padding of the key dims
    for (int i = (int)threadIdx.x; i < STAGES * STAGE_EARLY / 4; i += NT) ((u32*)shared)[i] = 0;
    await(AMONG_PRODUCTS, NT);
  }
  fetch(0), fetch(1);
  copy_wait<1>();
  await(AMONG_PRODUCTS, NT);
  make_grams(0);  // its X, with a chunk that is not there, is not used
  float u[4][4] = {}, S[4][4], v[2][DB][2];
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    A16 kf = load_rows(stage(0) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) product(u[nt], kf, state_operand(nt, ks));
  }
  load_values(v, 0);
  give_rates(0);
  give_errors(u, v);
  announce(PREDICTED, WITH_SOLVERS);
  announce(MIX_USED, WITH_MIXERS);

  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const i64 t0 = start + (i64)chunk * C;
    const bool more = chunk + 1 < w.chunks;
    const char *s = stage(chunk), *next = stage(chunk + 1), *c_tile = shared + AT_C + p.warp * PAIR_PLANE;
    copy_wait<0>();
    await(AMONG_PRODUCTS, NT);

    // While the chunk is substituted: what the state at its start gives.
    fetch(chunk + 2);
    make_grams(chunk + 1);
#pragma unroll
    for (int nt = 0; nt < 4; nt++)
#pragma unroll
      for (int i = 0; i < 4; i++) S[nt][i] = u[nt][i] = 0.f;
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      A16 qf = load_rows(s + STAGE_Q, OPERAND_TILE, X_ROW, ks * 16, p.lane);
      A16 nf = load_rows(next + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
      for (int nt = 0; nt < 4; nt++) {
        B16 b = state_operand(nt, ks);
        product(S[nt], qf, b), product(u[nt], nf, b);
      }
    }
    if (SHARES_GIVEN && chunk > 0) await(SHARES_USED + (~chunk & 1), WITH_MIXERS);  // of the chunk before, whose place rates take
    give_rates(chunk + 1);
    load_values(v, chunk + 1);
    await(WRITTEN_ALL, WITH_SOLVERS);
    const A16 x = gram_operand(chunk + 1, 1);
    A16 c[2];
#pragma unroll
    for (int m = 0; m < 2; m++) c[m] = load_columns_operand(c_tile, m * 16, p.lane);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) product(u[nt], x, half_of(c[nt / 2], nt % 2));
    if (more) {
      give_errors(u, v);
      announce(PREDICTED, WITH_SOLVERS);
    }

    // While the next chunk is substituted: the state at this one's end, and what it read.
    {
      const A16 pf = gram_operand(chunk, 0);
#pragma unroll
      for (int nt = 0; nt < 4; nt++) product(S[nt], pf, half_of(c[nt / 2], nt % 2));
    }
#pragma unroll
    for (int ks = 0; ks < KS; ks++) {
      B16 x, y;
      load_transposed(x, y, s + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
      for (int m = 0; m < 2; m++) product(W[m][2 * ks], c[m], x), product(W[m][2 * ks + 1], c[m], y);
    }
    if (a.kept_c) {
      const i64 unit = chunk_row(a.bounds, w.span, chunk, a.T) * w.warp_units + w.first_unit + p.warp;
#pragma unroll
      for (int m = 0; m < 2; m++) store_kept((u32*)(a.kept_c + unit * 64), c[m], m * 16, p);  // the tile is being written again
      if ((chunk + 1) * C % SEGMENT == 0 || chunk + 1 == w.chunks) {
        const i64 row = segment_row(a.bounds, w.span, chunk * C / SEGMENT, a.T) * w.warp_units + w.first_unit + p.warp;
        keep_state(a.kept_W, row, W, p.lane);
      }
    }
    await(MIXED, WITH_MIXERS);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++) {
        const int t = p.row + h * 8, d = b * 8 + p.quad * 2;
        const Vector left = *(const Vector*)(shared + AT_MIX + vector_at(t, p.warp * DPW + d));
        const Vector right = *(const Vector*)(shared + AT_MIX + vector_at(t, p.warp * DPW + d + 1));
        float o0 = 0.f, o1 = 0.f;
#pragma unroll
        for (int i = 0; i < JT; i++) o0 += left.x[i] * S[i * DB + b][2 * h], o1 += right.x[i] * S[i * DB + b][2 * h + 1];
        if (t0 + t < stop) store2(a.out + ((t0 + t) * H + w.head) * V + first + d, o0, o1);
      }
    if (more) announce(MIX_USED, WITH_MIXERS);
  }
  copy_wait<0>();
  if (a.W_out) store_state(a.W_out, W, w.unit, first, p);
}

KERNEL void __launch_bounds__(ALL_THREADS, 1) swila_forward_split(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  const i64 block = blockIdx.x;
  Work w;
  w.vt = (int)(block % VT), w.head = block / VT % a.H;
  w.span = sequence(a.bounds, block / VT / a.H, a.T);
  w.unit = w.span.n * a.H + w.head, w.warp_units = a.H * VT * NW, w.first_unit = (w.head * VT + w.vt) * NW;
  w.chunks = (int)((w.span.end - w.span.begin + C - 1) / C);
  for (int i = (int)threadIdx.x; i < WRITTEN / 4; i += ALL_THREADS) ((u32*)(shared + AT_C))[i] = 0;  // columns without a mixture
  sync_block();
  if (p.warp < NW) {
    multiply(a, shared, w, p);
  } else if (p.warp < NW + SOLVERS) {
    substitute(a, shared, w, p.warp - NW, p.lane);
  } else {
    mix(a, shared, w, p.warp - NW - SOLVERS, p.lane);
  }
}
