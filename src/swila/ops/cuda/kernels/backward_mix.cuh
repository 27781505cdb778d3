// The query side of backward_split.cu with a query gate, in warps of its own: a lane works on all mixtures of one output dim.
// From the last chunk to the first, with ρ_t = (1 - g_t) ρ_{t-1} + g_t π_t and dρ_t = do_t S_t + (1 - g_{t+1}) dρ_{t+1},
//   dS = ρ do      dg = Σ_j dρ (π - ρ_{t-1})      dπ = g dρ, and the logits' π ⊙ (dπ - Σ_j π dπ).
// dS does not depend on what the tokens read, S, so it is ready before the states have it.
#pragma once
#include "backward_queries.cuh"
#include "vectors.cuh"

enum { DS_READY = 1, READS_READY = DS_READY + 2, READS_FREE, AMONG_MIXERS, MIX_BARRIERS };
constexpr int GROUP = 4;  // tokens of a step of the loops

// What the tokens of a chunk read, from accumulators of products into vectors.
DEVICE void give_reads(char* reads, const float (&S)[4][4], const Place& p) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int b = 0; b < DB; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        Vector y;
#pragma unroll
        for (int i = 0; i < JT; i++) y.x[i] = S[i * DB + b][2 * h + e];
        *(Vector*)(reads + vector_at(h * 8 + p.row, p.warp * DPW + b * 8 + p.quad * 2 + e)) = y;
      }
}

// Start copying rows of a chunk, ROWS a token, into a tile; tokens from `valid` on become zeros.
template <class T, int ROWS> DEVICE void fetch_rows(char* tile, const T* from, u32 token, int valid, u32 thread) {
  constexpr u32 PER_ROW = VB * sizeof(T) / 16, ALL = C * ROWS * PER_ROW;
#pragma unroll 1
  for (u32 i = thread; i < ALL; i += MIX_THREADS) {
    const u32 row = i / PER_ROW, t = row / ROWS, piece = i % PER_ROW * (16 / sizeof(T));
    copy_async(tile + row * row_bytes<T>(VB) + i % PER_ROW * 16, from + (t * token + row % ROWS * V + piece), (int)t < valid);
  }
}

// Logits of a token and output dim as priors.
DEVICE void prior_at(float (&pi)[J], const char* logits, int t, int dim) {
  load_logits(pi, logits, J * B_ROW, t, dim);
  const float most = largest(pi);
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) pi[j] = ex2(pi[j] - most), sum += pi[j];
  sum = rcp(sum);
#pragma unroll
  for (int j = 0; j < J; j++) pi[j] *= sum;
}

// Inputs of a group of tokens, and the mix after each; `rho` becomes that after the last.
struct MixGroup {
  float pi[GROUP][J], rho[GROUP][J], g[GROUP], out[GROUP];
  DEVICE void load(const char* s, int from, int dim, float (&last)[J]) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      prior_at(pi[i], s + MIX_LQ, from + i, dim);
      g[i] = to_float(*((const TB*)(s + MIX_GQ + (from + i) * B_ROW) + dim));
      out[i] = to_float(*((const TX*)(s + MIX_O + (from + i) * V_ROW) + dim));
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++)
#pragma unroll
      for (int j = 0; j < J; j++) rho[i][j] = last[j] = (1.f - g[i]) * last[j] + g[i] * pi[i][j];
  }
};

// `mixer` is the number of the warp among those that mix, FREE the barrier at which the adjoint gives back what it was given.
template <int FREE> DEVICE void mix_over_time(const Arguments& a, char* shared, int mixer, const Place& place) {
  const bool alive = mixer * 32 + place.lane < VB;
  const int dim = alive ? mixer * 32 + place.lane : 0, column = dim % DPW;
  Place p = place;
  p.warp = dim / DPW;
  const Work w(a, p);
  const i64 at = w.unit * J * V + w.vt * VB + dim;  // of the first mixture
  const int first = w.vt * VB + dim, thread = mixer * 32 + place.lane;
  float drho[J];
  Spread spread[J] = {};
#pragma unroll
  for (int j = 0; j < J; j++) {
    drho[j] = a.drho_out ? a.drho_out[at + j * V] : 0.f;
    const i64 of = (w.head * J + j) * V + first, all = w.H * J * V;
    if (STATS) spread[j] = {a.dstats[2 * all + of], a.dstats[3 * all + of]};
  }
  auto fetch = [&](int done) {
    const i64 chunk = w.chunks - 1 - done, row = (w.span.begin + chunk * C) * w.H + w.head;
    char* s = shared + AT_MIX_STAGE + (done & 1) * MIX_STAGE;
    const int valid = w.valid(chunk);
    fetch_rows<TB, J>(s + MIX_LQ, a.query_logits + row * J * V + w.vt * VB, (u32)w.H * J * V, valid, thread);
    fetch_rows<TB, 1>(s + MIX_GQ, a.query_gate + row * V + w.vt * VB, (u32)w.H * V, valid, thread);
    fetch_rows<TX, 1>(s + MIX_O, a.dout + row * V + w.vt * VB, (u32)w.H * V, valid, thread);
    copy_commit();
  };
  auto load_before = [&](float (&rho)[J], i64 chunk) {
    const float* kept = a.kept_mix + (chunk < 0 ? 0 : w.chunk_unit(a, chunk) * 64 + 32);
#pragma unroll
    for (int j = 0; j < J; j++) rho[j] = kept[kept_lane(j, column)];
  };
  float next[J];
  fetch(0), load_before(next, w.chunks - 1);
  for (int done = 0; done < w.chunks; done++) {
    const i64 chunk = w.chunks - 1 - done, row = (w.span.begin + chunk * C) * w.H + w.head;
    const int buffer = done % GIVENS, valid = w.valid(chunk);
    const char *s = shared + AT_MIX_STAGE + (done & 1) * MIX_STAGE, *reads = shared + AT_READS;
    char* ds = shared + AT_GIVEN + buffer * GIVEN_BYTES + p.warp * GIVEN_WARP + GIVEN_DS;
    char* before = shared + AT_BEFORE + dim * JP * 4;
    TB *dgates = a.dquery_gate + row * V + first, *dlogits = a.dquery_logits + row * J * V + first;
    float rho[J];
#pragma unroll
    for (int j = 0; j < J; j++) rho[j] = next[j];
    copy_wait<0>();
    await(AMONG_MIXERS, MIX_THREADS);
    fetch(done + 1), load_before(next, chunk - 1);
    if (done >= GIVENS) await(FREE + buffer, ALL_THREADS);
#pragma unroll 1
    for (int from = 0; from < C; from += GROUP) {
      Vector last = {};
#pragma unroll
      for (int j = 0; j < J; j++) last.x[j] = rho[j];
      MixGroup x;
      x.load(s, from, dim, rho);
      if (alive) {
        *(Vector*)(before + from / GROUP * VB * JP * 4) = last;
#pragma unroll
        for (int j = 0; j < JP; j++) {
          u32 pairs[2] = {};
          if (j < J)
#pragma unroll
            for (int i = 0; i < 2; i++)
              pairs[i] = pack_bf16(x.rho[2 * i][j < J ? j : 0] * x.out[2 * i], x.rho[2 * i + 1][j < J ? j : 0] * x.out[2 * i + 1]);
          u32* to = (u32*)(ds + pair_row(j * DPW + column) + from * 2);
          to[0] = pairs[0], to[1] = pairs[1];
        }
      }
    }
    announce(DS_READY + (done & 1), NT + MIX_THREADS);

    await(READS_READY, NT + MIX_THREADS);
#pragma unroll 1
    for (int from = C - GROUP; from >= 0; from -= GROUP) {
      const Vector start = *(const Vector*)(before + from / GROUP * VB * JP * 4);
      Vector read[GROUP];
#pragma unroll
      for (int i = 0; i < GROUP; i++) read[i] = *(const Vector*)(reads + vector_at(from + i, dim));
      float last[J];
#pragma unroll
      for (int j = 0; j < J; j++) last[j] = start.x[j];
      MixGroup x;
      x.load(s, from, dim, last);
#pragma unroll
      for (int i = GROUP - 1; i >= 0; i--) {
        const int t = from + i;
        float dpi[J], dgate = 0.f, sum = 0.f;
#pragma unroll
        for (int j = 0; j < J; j++) {
          float back = drho[j] + x.out[i] * read[i].x[j];
          if (STATS) back += statistics_of_mix(x.rho[i][j], spread[j], t < valid);
          dgate += back * (x.pi[i][j] - (i > 0 ? x.rho[i > 0 ? i - 1 : 0][j] : start.x[j]));
          drho[j] = (1.f - x.g[i]) * back;
          dpi[j] = x.g[i] * back;
          sum += x.pi[i][j] * dpi[j];
        }
        if (alive && t < valid) {
          store(dgates + t * (u32)w.H * V, dgate);
#pragma unroll
          for (int j = 0; j < J; j++) store(dlogits + (t * (u32)w.H * J + j) * V, x.pi[i][j] * (dpi[j] - sum));
        }
      }
    }
    if (chunk > 0) announce(READS_FREE, NT + MIX_THREADS);
  }
  copy_wait<0>();
  if (a.dW_in && alive)
#pragma unroll
    for (int j = 0; j < J; j++) a.drho_in[at + j * V] = drho[j];
}
