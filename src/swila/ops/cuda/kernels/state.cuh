// The tokens that a block works on, and what is kept for the backward: c of every chunk and the states at the ends of segments,
// in the order of registers.
#pragma once
#include "layout.cuh"

// Floats kept for a warp's chunk with temporal gates: r and rho of its columns at the start, and r in the middle.
constexpr int KEPT_MIX = 3 * 32, KEPT_RHO = 32, KEPT_MIDDLE = 64;

// A sequence and the range of its tokens.
struct Span {
  i64 n, begin, end;
};
DEVICE Span sequence(const INDEX* bounds, i64 n, i64 T) {
  if (bounds) return {n, (i64)bounds[n], (i64)bounds[n + 1]};
  return {n, n * T, n * T + T};
}

// Rows of the kept tensors: one per chunk of 16 tokens, one per segment. In packed sequences a row is numbered by its first
// token and its sequence, so that no two share a number.
DEVICE i64 chunk_row(const INDEX* bounds, const Span& span, i64 chunk, i64 T) {
  return bounds ? (span.begin + chunk * C) / C + span.n : span.n * ((T + C - 1) / C) + chunk;
}
DEVICE i64 segment_row(const INDEX* bounds, const Span& span, i64 segment, i64 T) {
  return bounds ? (span.begin + segment * SEGMENT) / SEGMENT + span.n : span.n * ((T + SEGMENT - 1) / SEGMENT) + segment;
}

// The inverse: the chunk of a row, and its sequence; -1 if the row is empty.
DEVICE i64 chunk_of(const INDEX* bounds, i64 row, i64 N, i64 T, Span& span) {
  if (!bounds) {
    i64 per = (T + C - 1) / C;
    span = sequence(nullptr, row / per, T);
    return row % per;
  }
  i64 low = 0, high = N;
  while (high - low > 1) {
    i64 middle = (low + high) / 2;
    if ((i64)bounds[middle] / C + middle <= row) low = middle; else high = middle;
  }
  span = sequence(bounds, low, T);
  i64 chunk = row - low - span.begin / C;
  return span.begin + chunk * C < span.end ? chunk : -1;
}

// The operand [16 columns, 16 tokens] out of a tile kept in memory, 32 columns without padding per plane.
DEVICE A16 load_kept(const u32* tile, int from, const Place& p) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int i = 0; i < 4; i++) a.x[s][i] = tile[s * 256 + (from + p.row + (i & 1) * 8) * 8 + p.quad + (i >> 1) * 4];
  return a;
}
DEVICE void store_kept(u32* tile, const A16& a, int from, const Place& p) {
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int i = 0; i < 4; i++) tile[s * 256 + (from + p.row + (i & 1) * 8) * 8 + p.quad + (i >> 1) * 4] = a.x[s][i];
}
// The 16 tokens of a lane's column out of such a tile.
DEVICE void load_kept_column(float (&x)[C], const uint4_* tile, const Place& p) {
#pragma unroll
  for (int t = 0; t < C; t++) x[t] = 0.f;
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint4_ w = tile[s * 64 + p.column * 2 + h];
#pragma unroll
      for (int i = 0; i < 4; i++)
        x[h * 8 + 2 * i] += as_float(w.x[i] << 16), x[h * 8 + 2 * i + 1] += as_float(w.x[i] & 0xffff0000u);
    }
}
// A raw tile of keys or queries as operands.
DEVICE void put_operand(char* tile, int t, int dim, float x) {
  char* to = tile + t * OPERAND_ROW + dim * 2;
  Pair y = pack(x, 0.f);
#pragma unroll
  for (int s = 0; s < NS; s++) *(u16*)(to + s * OPERAND_TILE) = (u16)y.x[s];
}
DEVICE void as_operands(char* tile, const char* raw) {
  for (int i = (int)threadIdx.x; i < C * KP; i += NT)
    put_operand(tile, i / KP, i % KP, to_float(*(const TX*)(raw + i / KP * X_ROW + i % KP * sizeof(TX))));
}
// States as operands: [plane][tile of 8 columns][pair of steps][lane] of 16 bytes.
constexpr int STATE_PIECES = NS * 4 * (KS / 2);
DEVICE void emit_state(uint4_* to, const float (&W)[2][KT][4], int lane) {
#pragma unroll
  for (int nt = 0; nt < 4; nt++)
#pragma unroll
    for (int kk = 0; kk < KS / 2; kk++) {
      uint4_ w[NS];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Pair y = pack(W[nt / 2][4 * kk + i][nt % 2 * 2], W[nt / 2][4 * kk + i][nt % 2 * 2 + 1]);
#pragma unroll
        for (int s = 0; s < NS; s++) w[s].x[i] = y.x[s];
      }
#pragma unroll
      for (int s = 0; s < NS; s++) to[((s * 4 + nt) * (KS / 2) + kk) * 32 + lane] = w[s];
    }
}

// The state of 32 columns as accumulators of W^T: [16 columns] x [8 key dims] x 4.
DEVICE void load_state(float (&W)[2][KT][4], const float* from, i64 unit, int first, const Place& p) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      int n = m * 16 + (i >> 1) * 8 + p.row, j = n / DPW, d = n % DPW;
      const float* row = from + ((unit * J + j) * V + first + d) * K + p.quad * 2;
#pragma unroll
      for (int kt = 0; kt < KT; kt++) {
        bool there = j < J && d < V && kt * 8 < K;
        W[m][kt][i] = there ? row[kt * 8] : 0.f;
        W[m][kt][i + 1] = there ? row[kt * 8 + 1] : 0.f;
      }
    }
}
DEVICE void clear_state(float (&W)[2][KT][4]) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int kt = 0; kt < KT; kt++)
#pragma unroll
      for (int i = 0; i < 4; i++) W[m][kt][i] = 0.f;
}
// A state as it lies in registers, at a row of what is kept for a warp.
DEVICE void keep_state(float4_* kept, i64 row, const float (&W)[2][KT][4], int lane) {
#pragma unroll
  for (int i = 0; i < 2 * KT; i++) {
    const float* w = W[i / KT][i % KT];
    kept[(row * 2 * KT + i) * 32 + lane] = {w[0], w[1], w[2], w[3]};
  }
}
DEVICE void store_state(float* to, const float (&W)[2][KT][4], i64 unit, int first, const Place& p) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      int n = m * 16 + (i >> 1) * 8 + p.row, j = n / DPW, d = n % DPW;
      float* row = to + ((unit * J + j) * V + first + d) * K + p.quad * 2;
#pragma unroll
      for (int kt = 0; kt < KT; kt++)
        if (j < J && d < V && kt * 8 < K) *(float2_*)(row + kt * 8) = {W[m][kt][i], W[m][kt][i + 1]};
    }
}
