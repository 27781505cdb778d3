// The forward for bf16 without decay and two to four mixtures, with different work for different warps of a block.
//
// Some warps only substitute: a lane works on all mixtures of one output dim, so that lanes exchange nothing. Other warps hold the
// state, 32 columns each, and compute the products with it: during the substitution of a chunk they compute the outputs of the chunk
// before, update the state, start the chunk after, and give errors, rates and priors. What follows from the inputs alone is provided by one
// more warp, or by those that hold the state.
// With W the state at the start of chunk n, the predictions of chunk n + 1 are k · W + (k_{n+1} · k_n) c_n: only the second,
// small term waits for the substitution. The remaining warps compute the query mix, and with temporal priors the statistics of the
// responsibilities, which the substituting warps leave in the place of the priors.
#include "forward_split_inputs.cuh"
#include "forward_split_mix.cuh"
#include "forward_split_substitution.cuh"

// The state and all products with it.
DEVICE void multiply(const Arguments& a, char* shared, const Work& w, const Place& p) {
  const i64 H = a.H, start = w.span.begin, stop = w.span.end;
  const int first = w.vt * VB + p.warp * DPW;
  float W[2][KT][4];
  clear_state(W);
  if (a.W) load_state(W, a.W, w.unit, first, p);
  auto state_operand = [&](int nt, int ks) {
    B16 b;
    b.x[0][0] = pack_bf16(W[nt / 2][2 * ks][nt % 2 * 2], W[nt / 2][2 * ks][nt % 2 * 2 + 1]);
    b.x[0][1] = pack_bf16(W[nt / 2][2 * ks + 1][nt % 2 * 2], W[nt / 2][2 * ks + 1][nt % 2 * 2 + 1]);
    return b;
  };
  auto gram_operand = [&](int chunk, int which) {
    uint4_ x = ((const uint4_*)(grams_of(shared, chunk) + which * 32 * 16))[p.lane];
    return A16{{{x.x[0], x.x[1], x.x[2], x.x[3]}}};
  };
  // Errors, scaled so that log2 of their likelihood is minus their square.
  auto load_values = [&](float (&v)[2][DB][2], int chunk) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int b = 0; b < DB; b++)
        load2((const TX*)(stage_of(shared, chunk) + STAGE_V + (h * 8 + p.row) * V_ROW) + p.warp * DPW + b * 8 + p.quad * 2, v[h][b][0], v[h][b][1]);
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
  const u32 thread = PROVIDERS ? (u32)(p.warp * 32 + p.lane) : threadIdx.x;
  if constexpr (K_PADDED) {  // zero the padding of the key dims
    for (int i = (int)thread; i < STAGES * STAGE_EARLY / 4; i += NT) ((u32*)shared)[i] = 0;
    await(AMONG_PRODUCTS, WITH_PROVIDER);
  }
  Chunks<NT> chunks(a, w, thread);
  if constexpr (!PROVIDERS) {
    chunks.fetch(a, shared, w, 0), chunks.fetch(a, shared, w, 1);
    copy_wait<1>();
  }
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  if constexpr (!PROVIDERS) make_grams_together(shared, 0, p);  // its X, with a chunk that is not there, is not used
  float u[4][4] = {}, S[4][4], v[2][DB][2];
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    A16 kf = load_rows(stage_of(shared, 0) + STAGE_K, OPERAND_TILE, X_ROW, ks * 16, p.lane);
#pragma unroll
    for (int nt = 0; nt < 4; nt++) product(u[nt], kf, state_operand(nt, ks));
  }
  load_values(v, 0);
  if (!RATES_PROVIDED) give_rates(shared, 0, p);
  give_errors(u, v);
  await(AMONG_PRODUCTS, WITH_PROVIDER);
  announce(PREDICTED, WITH_SOLVERS);
  announce(MIX_USED, WITH_MIXERS);

  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const i64 t0 = start + (i64)chunk * C;
    const bool more = chunk + 1 < w.chunks;
    const char *s = stage_of(shared, chunk), *next = stage_of(shared, chunk + 1), *c_tile = shared + AT_C + p.warp * PAIR_PLANE;
    if constexpr (!PROVIDERS) copy_wait<0>();
    await(AMONG_PRODUCTS, WITH_PROVIDER);

    // While the chunk is substituted: what the state at its start gives.
    if constexpr (!PROVIDERS) {
      chunks.fetch(a, shared, w, chunk + 2);
      make_grams_together(shared, chunk + 1, p);
    }
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
    if (!RATES_PROVIDED) give_rates(shared, chunk + 1, p);
    load_values(v, chunk + 1);
    await(WRITTEN_ALL, ALL_BUT_MIXERS);
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
  if constexpr (!PROVIDERS) copy_wait<0>();
  if (a.W_out) store_state(a.W_out, W, w.unit, first, p);
}

KERNEL void __launch_bounds__(ALL_THREADS, 1) swila_forward_split(const Arguments a) {
  SHARED(shared);
  Place p = place();
  const i64 block = blockIdx.x;
  Work w;
  w.vt = (int)(block % VT), w.head = block / VT % a.H;
  w.span = sequence(a.bounds, block / VT / a.H, a.T);
  w.unit = w.span.n * a.H + w.head, w.warp_units = a.H * VT * NW, w.first_unit = (w.head * VT + w.vt) * NW;
  w.chunks = (int)((w.span.end - w.span.begin + C - 1) / C);
  for (int i = (int)threadIdx.x; i < WRITTEN / 4; i += ALL_THREADS) ((u32*)(shared + AT_C))[i] = 0;  // columns without a mixture
  sync_block();
  if constexpr (PROVIDERS) {
    constexpr u64 NUMBERS = assigned_warps();
    p.warp = (int)(NUMBERS >> 4 * p.warp & 15);
  }
  if (p.warp < SOLVER) {
    multiply(a, shared, w, p);
  } else if (p.warp < MIXER) {
    substitute(a, shared, w, p.warp - SOLVER, p.lane);
  } else if (p.warp < PROVIDER) {
    mix(a, shared, w, p.warp - MIXER, p.lane);
  } else if constexpr (PROVIDERS) {
    provide(a, shared, w, p);
  }
}
