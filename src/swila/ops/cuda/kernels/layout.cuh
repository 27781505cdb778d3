// Sizes of one specialisation, the layout of numbers in a warp, and tiles of 16 tokens in shared memory.
//
// Macros given at compilation: K_DIM, V_DIM, MIXTURES, TX (q, k, v), TB (beta, logits, gates), TD (decay),
// DECAY (0 none, 1 by key dim, 2 by output dim, 3 by head), POST, NORMALIZE, KEY_GATE, QUERY_GATE, BETA_LOGITS, STATS,
// INDEX, WARPS.
//
// A block works on VB output dims of one (sequence, head), a warp on 32 columns (j, d) of it, a lane on one column:
// within the warp a column is number j * DPW + d, as the tiles of matrix products have it. DPW = 32 / JP output dims.
#pragma once
#include "primitives.cuh"

template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
template <bool, class A, class B> struct type_if { typedef B type; };
template <class A, class B> struct type_if<true, A, B> { typedef A type; };

constexpr int C = 16;  // tokens in a chunk
constexpr int K = K_DIM, V = V_DIM, J = MIXTURES;
constexpr int KP = K < 32 ? 32 : K;  // padded with zeros
constexpr int KS = KP / 16, KT = KP / 8;  // steps and tiles along it
constexpr int JP = J > 8 ? 16 : J > 4 ? 8 : J > 2 ? 4 : J;
constexpr int DPW = 32 / JP;
constexpr int NW = WARPS, VB = V < NW * DPW ? V : NW * DPW, VT = V / VB;  // blocks along the output dims
constexpr int NT = NW * 32;
constexpr bool DEAD = JP != J || V < DPW;  // whether some lanes have no column
constexpr bool BY_KEY = DECAY == 1, BY_COLUMN = DECAY == 2 || DECAY == 3;
constexpr int NG = BY_KEY ? J : 1;  // groups of columns with key decays of their own
// Operands of matrix products: bf16, or where inputs are more precise the sum of two of them.
constexpr int NS = same<TX, bf16>::value ? 1 : 2;
constexpr bool RAW = same<TX, bf16>::value && !BY_KEY;  // q and k are operands as they come
constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f, TINY = 1.17549435e-38f;
constexpr float NEVER = -3e38f;  // log-prior of a lane without a column
constexpr float LEAST = -1e30f;  // log-prior of a mixture that is ruled out
// Shares r ∝ p l are computed from likelihoods l over the largest of l times a bound of the prior p, g π or TINY, so that a mixture with the
// smallest prior may be the likeliest. Divided by 2 to this, a sum of 16 such products and its inverse stay finite.
constexpr float HEADROOM = 5.f;
DEVICE float log_bound(float x) { return lg2(max_nan(x, TINY)); }

static_assert(!BY_KEY || J <= 4, "decay by key dim: up to 4 mixtures");

struct A16 { u32 x[NS][4]; };  // [16, 16], by rows
struct B16 { u32 x[NS][2]; };  // [16, 8], by columns
struct Pair { u32 x[NS]; };

DEVICE void product(float (&d)[4], const A16& a, const B16& b) {
  mma(d, a.x[0], b.x[0][0], b.x[0][1]);
  if constexpr (NS == 2) {
    mma(d, a.x[0], b.x[1][0], b.x[1][1]);
    mma(d, a.x[1], b.x[0][0], b.x[0][1]);
  }
}
DEVICE void product_k8(float (&d)[4], const Pair& a0, const Pair& a1, const Pair& b) {
  mma_k8(d, a0.x[0], a1.x[0], b.x[0]);
  if constexpr (NS == 2) {
    mma_k8(d, a0.x[0], a1.x[0], b.x[1]);
    mma_k8(d, a0.x[1], a1.x[1], b.x[0]);
  }
}
DEVICE Pair pack(float x, float y) {
  Pair p;
  p.x[0] = pack_bf16(x, y);
  if constexpr (NS == 2) p.x[1] = pack_bf16(x - as_float(p.x[0] << 16), y - as_float(p.x[0] & 0xffff0000u));
  return p;
}
// The accumulators of two neighbouring [16, 8] tiles as one [16, 16] operand.
DEVICE A16 as_rows(const float (&x)[4], const float (&y)[4]) {
  A16 a;
  Pair p[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(y[0], y[1]), pack(y[2], y[3])};
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int i = 0; i < 4; i++) a.x[s][i] = p[i].x[s];
  return a;
}
// The transpose of accumulators [16 tokens, 8 columns] as an operand whose 16 rows are summed over.
DEVICE B16 as_columns(const float (&x)[4]) {
  B16 b;
  Pair p[2] = {pack(x[0], x[1]), pack(x[2], x[3])};
#pragma unroll
  for (int s = 0; s < NS; s++) b.x[s][0] = transposed(p[0].x[s]), b.x[s][1] = transposed(p[1].x[s]);
  return b;
}
// Operands [8 columns, 16 tokens] of two neighbouring tiles as rows of one.
DEVICE A16 stacked(const B16& x, const B16& y) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++) a.x[s][0] = x.x[s][0], a.x[s][1] = y.x[s][0], a.x[s][2] = x.x[s][1], a.x[s][3] = y.x[s][1];
  return a;
}
// One half of such an operand: the columns (or tokens) of half h.
DEVICE B16 half_of(const A16& a, int h) {
  B16 b;
#pragma unroll
  for (int s = 0; s < NS; s++) b.x[s][0] = a.x[s][h], b.x[s][1] = a.x[s][2 + h];
  return b;
}
DEVICE A16 only_half(A16 a, int h) {
#pragma unroll
  for (int s = 0; s < NS; s++) a.x[s][1 - h] = 0, a.x[s][3 - h] = 0;
  return a;
}

// Indices of a lane.
struct Place {
  int warp, lane, row, quad;  // row and quad: its place in the tiles of matrix products
  int j, d, column;           // mixture, output dim within the warp, number of the column in the warp
  bool alive;
};
DEVICE Place place() {
  Place p;
  int tid = (int)threadIdx.x;
  p.warp = tid >> 5, p.lane = tid & 31, p.row = p.lane >> 2, p.quad = p.lane & 3;
  p.j = p.lane % JP;
  p.d = JP <= 4 ? (p.quad / JP) * 8 + p.row : p.lane / JP;
  p.column = p.j * DPW + p.d;
  p.alive = p.j < J && p.d < V;
  return p;
}

// Of two tiles [16, 8] of products between tokens, zero the entries [t, s] with s + below > t.
DEVICE void mask(float (&x)[2][4], int below, const Place& p) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (h * 8 + p.quad * 2 + (i & 1) + below > p.row + (i >> 1) * 8) x[h][i] = 0.f;
}

// A tile of rows in shared memory, each 16 bytes longer than its contents so that rows fall into different banks.
template <class T> constexpr int row_bytes(int n) { return n * (int)sizeof(T) + 16; }

constexpr int OPERAND_ROW = row_bytes<bf16>(KP);         // [16 tokens, K], as operands of products
constexpr int OPERAND_TILE = C * OPERAND_ROW;
constexpr int PAIR_ROW = row_bytes<bf16>(C);             // [.., 16 tokens]
constexpr int PAIR_PLANE = 32 * PAIR_ROW + 4 * 32;       // [32 columns, 16 tokens]: lanes that write it have columns 8 apart
DEVICE int pair_row(int column) { return column * PAIR_ROW + (column >> 3) * 32; }
constexpr int X_ROW = row_bytes<TX>(KP), V_ROW = row_bytes<TX>(VB), B_ROW = row_bytes<TB>(VB);
constexpr int D_ROW = BY_KEY ? row_bytes<TD>(KP) : row_bytes<TD>(VB);
constexpr int U_ROW = 40;  // floats; [tokens, 32 columns] between the layouts of products and of lanes

// [16, 16] operand from a tile of rows, columns from `from` on; lane i gives the address of a row.
DEVICE A16 load_rows(const char* tile, int plane_bytes, int row, int from, int lane) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++) ldmatrix(a.x[s], tile + s * plane_bytes + (lane & 15) * row + (from + (lane >> 4) * 8) * 2);
  return a;
}
// The same rows as two operands [16 columns summed over, 8 rows], those of each half of it: like `half_of`, but in neighbouring
// registers, which saves moving them there.
DEVICE void load_row_halves(B16& x, B16& y, const char* tile, int plane_bytes, int row, int from, int lane) {
#pragma unroll
  for (int s = 0; s < NS; s++) {
    u32 d[4];
    ldmatrix(d, tile + s * plane_bytes + ((lane >> 4) * 8 + (lane & 7)) * row + (from + (lane >> 3 & 1) * 8) * 2);
    x.x[s][0] = d[0], x.x[s][1] = d[1], y.x[s][0] = d[2], y.x[s][1] = d[3];
  }
}
// Two tiles [16 tokens summed over, 8] of a tile of rows [16 tokens, ..]: columns from `from` on and the 8 after.
DEVICE void load_transposed(B16& x, B16& y, const char* tile, int plane_bytes, int row, int from, int lane) {
#pragma unroll
  for (int s = 0; s < NS; s++) {
    u32 d[4];
    ldmatrix_t(d, tile + s * plane_bytes + (lane & 15) * row + (from + (lane >> 4) * 8) * 2);
    x.x[s][0] = d[0], x.x[s][1] = d[1], y.x[s][0] = d[2], y.x[s][1] = d[3];
  }
}
// The [16 columns, 16 tokens] operand of columns `from` ...: rows are columns of the warp.
DEVICE A16 load_columns_operand(const char* tile, int from, int lane) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++)
    ldmatrix(a.x[s], tile + s * PAIR_PLANE + pair_row(from + (lane & 15)) + (lane >> 4) * 16);
  return a;
}
// Store such an operand into the tile.
DEVICE void put_columns_operand(char* tile, const A16& a, int from, const Place& p) {
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      *(u32*)(tile + s * PAIR_PLANE + pair_row(from + p.row + (i & 1) * 8) + (p.quad + (i >> 1) * 4) * 4) = a.x[s][i];
}
// Its two halves as operands [16 tokens summed over, 8 columns], in neighbouring registers.
DEVICE void load_column_halves(B16& x, B16& y, const char* tile, int from, int lane) {
#pragma unroll
  for (int s = 0; s < NS; s++) {
    u32 d[4];
    ldmatrix(d, tile + s * PAIR_PLANE + pair_row(from + (lane >> 4) * 8 + (lane & 7)) + (lane >> 3 & 1) * 16);
    x.x[s][0] = d[0], x.x[s][1] = d[1], y.x[s][0] = d[2], y.x[s][1] = d[3];
  }
}
// The same numbers as [16 tokens, 16 columns].
DEVICE A16 load_tokens_operand(const char* tile, int from, int lane) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++)
    ldmatrix_t(a.x[s], tile + s * PAIR_PLANE + pair_row(from + (lane & 7) + (lane >> 4) * 8) + ((lane >> 3) & 1) * 16);
  return a;
}
// Eight tokens of this lane's column into a tile [32 columns, 16 tokens].
DEVICE void put_column(char* tile, const Place& p, int half, const float (&x)[8]) {
  uint4_ w[NS];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    Pair y = pack(x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int s = 0; s < NS; s++) w[s].x[i] = y.x[s];
  }
#pragma unroll
  for (int s = 0; s < NS; s++) *(uint4_*)(tile + s * PAIR_PLANE + pair_row(p.column) + half * 16) = w[s];
}
DEVICE void put_columns(char* tile, const Place& p, const float (&x)[C]) {
  float low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; i++) low[i] = x[i], high[i] = x[8 + i];
  put_column(tile, p, 0, low), put_column(tile, p, 1, high);
}
// Tokens of one half of all 32 columns, as operands [8 tokens, 8 columns] of the four tiles.
DEVICE void load_half(Pair (&b)[4], const char* tile, int half, int lane) {
#pragma unroll
  for (int s = 0; s < NS; s++) {
    u32 d[4];
    ldmatrix(d, tile + s * PAIR_PLANE + pair_row(lane) + half * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) b[i].x[s] = d[i];
  }
}

// Half of the accumulators [16 tokens, 32 columns] into a tile of floats, from row `row` on, for lanes to read by column.
DEVICE void to_lanes(float* tile, const float (&x)[4][4], int half, int row, const Place& p) {
#pragma unroll
  for (int nt = 0; nt < 4; nt++)
    *(float2_*)&tile[(p.row + row) * U_ROW + nt * 8 + p.quad * 2] = {x[nt][2 * half], x[nt][2 * half + 1]};
}

// Rows [token, J] of logits that lanes read by token: tokens fall into different banks.
constexpr int BY_TOKEN = J * B_ROW + 16;

// Eight tokens of a lane's column out of a tile of rows [token, R]: R = J mixtures, or 1 for what has none.
template <class T, int R> DEVICE void load_half_column(float (&x)[8], const char* tile, int half, const Place& p) {
  constexpr int ROW = row_bytes<T>(VB);
  if constexpr (sizeof(T) == 2 && JP <= 4) {
    // Rows 2 i and 2 i + 1 of a transposed matrix go to the lanes of quad i: two tokens of quad i's mixture.
    int i = (p.lane & 7) >> 1, j = i % JP, block = i / JP;
    if (R == 1 || j >= J) j = 0;
    if (block * 8 >= V) block = 0;
    const char* row = tile + (((p.lane >> 3) * 2 + (p.lane & 1)) * R + j) * ROW + (p.warp * DPW + block * 8) * 2;
    u32 w[4];
    ldmatrix_t(w, row + half * 8 * R * ROW);
#pragma unroll
    for (int m = 0; m < 4; m++) unpack(T{}, w[m], x[m * 2], x[m * 2 + 1]);
  } else {
    int j = R == 1 || p.j >= J ? 0 : p.j, d = p.d < V ? p.warp * DPW + p.d : 0;
    const char* column = tile + j * ROW + d * sizeof(T);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = to_float(*(const T*)(column + (half * 8 + i) * R * ROW));
  }
}
template <class T, int R> DEVICE void load_column(float (&x)[C], const char* tile, const Place& p) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float y[8];
    load_half_column<T, R>(y, tile, half, p);
#pragma unroll
    for (int i = 0; i < 8; i++) x[half * 8 + i] = y[i];
  }
}

// Copies R rows per token, for 16 tokens, into a tile; tokens from `valid` on become zeros. The pieces of a thread are computed
// once and used for all tensors of one shape.
template <int R, int BYTES, int ROW, int TOKEN = R * ROW, int THREADS = NT> struct Pieces {
  static constexpr int PER_ROW = BYTES / 16, PER_TOKEN = R * PER_ROW, ALL = C * PER_TOKEN;
  static constexpr bool REGULAR = THREADS % PER_TOKEN == 0;  // then a thread's pieces are the same ones of several tokens
  static constexpr int STEP = REGULAR ? THREADS / PER_TOKEN : 1, MINE = REGULAR ? (C + STEP - 1) / STEP : (ALL + THREADS - 1) / THREADS;
  u32 thread, token_bytes, row_stride;
  DEVICE Pieces(i64 token_bytes, int row_stride, u32 thread = threadIdx.x)
      : thread(thread), token_bytes((u32)token_bytes), row_stride((u32)row_stride) {}
  // Which piece of which token is the thread's n-th, and its places in the tile and in memory.
  DEVICE u32 token(int n) const { return REGULAR ? thread / PER_TOKEN + n * STEP : (n * THREADS + thread) / PER_TOKEN; }
  DEVICE u32 piece(int n) const { return REGULAR ? thread % PER_TOKEN : (n * THREADS + thread) % PER_TOKEN; }
  DEVICE u32 to(int n) const {
    if constexpr (REGULAR) return thread / PER_TOKEN * TOKEN + piece(0) / PER_ROW * ROW + piece(0) % PER_ROW * 16 + n * STEP * TOKEN;
    return token(n) * TOKEN + piece(n) / PER_ROW * ROW + piece(n) % PER_ROW * 16;
  }
  DEVICE u32 from(int n) const {
    u32 within = piece(n) / PER_ROW * row_stride + piece(n) % PER_ROW * 16;
    if constexpr (REGULAR) return thread / PER_TOKEN * token_bytes + within + n * STEP * token_bytes;
    return token(n) * token_bytes + within;
  }
  static constexpr bool FULL = REGULAR ? C % STEP == 0 : ALL % THREADS == 0;  // every thread has MINE of them
  DEVICE void copy(char* tile, const void* base, int valid) const {
#pragma unroll
    for (int n = 0; n < MINE; n++)
      if (FULL || token(n) < C) copy_async(tile + to(n), (const char*)base + from(n), (int)token(n) < valid);
  }
  DEVICE void flush(void* base, const char* tile, int valid) const {  // from the tile to memory
#pragma unroll
    for (int n = 0; n < MINE; n++)
      if ((FULL || token(n) < C) && (int)token(n) < valid) *(uint4_*)((char*)base + from(n)) = *(const uint4_*)(tile + to(n));
  }
  // The same in two steps, so that several tensors are loaded before any is stored.
  struct Held { uint4_ x[MINE]; };
  DEVICE Held hold(const char* tile) const {
    Held held;
#pragma unroll
    for (int n = 0; n < MINE; n++)
      if (FULL || token(n) < C) held.x[n] = *(const uint4_*)(tile + to(n));
    return held;
  }
  DEVICE void store(void* base, const Held& held, int valid) const {
#pragma unroll
    for (int n = 0; n < MINE; n++)
      if ((FULL || token(n) < C) && (int)token(n) < valid) *(uint4_*)((char*)base + from(n)) = held.x[n];
  }
};

// This lane's part of the softmax over mixtures, of logarithms to base 2.
DEVICE float share(float z) {
  if constexpr (JP == 1) return 1.f;
  if constexpr (JP == 2) return rcp(1.f + ex2(shfl_xor(z, 1) - z));
  if constexpr (JP == 4) {
    float x = shfl_xor(z, 1), y = shfl_xor(z, 2), w = shfl_xor(z, 3);
    return rcp((1.f + ex2(x - z)) + (ex2(y - z) + ex2(w - z)));
  } else {
    float sum, most = z;
#pragma unroll
    for (int m = 1; m < JP; m *= 2) most = max_nan(most, shfl_xor(most, m));
    float mine = ex2(z - most);
    sum = mine;
#pragma unroll
    for (int m = 1; m < JP; m *= 2) sum += shfl_xor(sum, m);
    return mine * rcp(sum);
  }
}
DEVICE float over_mixtures(float x) {
  if constexpr (JP == 4) {
    float y = shfl_xor(x, 1), z = shfl_xor(x, 2), w = shfl_xor(x, 3);
    return (x + y) + (z + w);
  }
#pragma unroll
  for (int m = 1; m < JP; m *= 2) x += shfl_xor(x, m);
  return x;
}
// The same with fewer instructions and a longer latency, for results that are not needed soon.
DEVICE float sum_mixtures(float x) {
#pragma unroll
  for (int m = 1; m < JP; m *= 2) x += shfl_xor(x, m);
  return x;
}
// With four mixtures, of four tokens the sum of the one whose number is this lane's mixture: fewer shuffles than one by one.
DEVICE float sum_of_four(const float (&x)[4], const Place& p) {
  const bool odd = p.j & 1, late = p.j & 2;
  float y = (odd ? x[1] : x[0]) + shfl_xor(odd ? x[0] : x[1], 1), z = (odd ? x[3] : x[2]) + shfl_xor(odd ? x[2] : x[3], 1);
  return (late ? z : y) + shfl_xor(late ? y : z, 2);
}
// Logits to base 2, kept finite.
DEVICE float log_prior(float logit, const Place& p) {
  float z = max_nan(logit * LOG2E, LEAST);
  return DEAD && !p.alive ? NEVER : z;
}

constexpr bool K_PADDED = KP != K;
// Errors are carried times this, so that log2 of their likelihood is minus their square.
constexpr float SCALE = 0.84932180f, UNSCALE = 1.17741002f;

// The softmax over mixtures of a tile of logits [token, J] rows for all 16 tokens, into a tile [token, column] of floats.
// A lane has all mixtures of two output dims, so that it needs an exponential per column and few shuffles.
constexpr int DB = DPW >= 8 ? DPW / 8 : 1, JT = 4 / DB;  // blocks of 8 output dims in a warp, tiles that share one
DEVICE void softmax_tile(float (&x)[JT], float (&y)[JT]) {  // of logarithms to base 2
  float most0 = NEVER, most1 = NEVER, sum0 = 0.f, sum1 = 0.f;
#pragma unroll
  for (int i = 0; i < JT; i++) most0 = max_nan(most0, x[i]), most1 = max_nan(most1, y[i]);
#pragma unroll
  for (int m = DPW / 2; m > 0 && m < 4; m *= 2)
    most0 = max_nan(most0, shfl_xor(most0, m)), most1 = max_nan(most1, shfl_xor(most1, m));
#pragma unroll
  for (int i = 0; i < JT; i++) {
    x[i] = ex2(x[i] - most0), y[i] = ex2(y[i] - most1);
    sum0 += x[i], sum1 += y[i];
  }
#pragma unroll
  for (int m = DPW / 2; m > 0 && m < 4; m *= 2) sum0 += shfl_xor(sum0, m), sum1 += shfl_xor(sum1, m);
  sum0 = rcp(sum0), sum1 = rcp(sum1);
#pragma unroll
  for (int i = 0; i < JT; i++) x[i] *= sum0, y[i] *= sum1;
}
DEVICE void logits_of(float (&x)[JT], float (&y)[JT], const char* logits, int t, int b, const Place& p) {
  const int d = (b * 8 + p.quad * 2) % DPW;
#pragma unroll
  for (int i = 0; i < JT; i++) {
    int j = ((i * DB + b) * 8 + p.quad * 2) / DPW;
    x[i] = y[i] = NEVER;
    if (j < J && (V >= DPW || d < V)) {
      load2((const TB*)(logits + t * BY_TOKEN + j * B_ROW) + p.warp * DPW + d, x[i], y[i]);
      x[i] = max_nan(x[i] * LOG2E, LEAST), y[i] = max_nan(y[i] * LOG2E, LEAST);
    }
  }
}
DEVICE void prior_of(float (&x)[JT], float (&y)[JT], const char* logits, int t, int b, const Place& p) {
  logits_of(x, y, logits, t, b, p);
  softmax_tile(x, y);
}
// The same for all 16 tokens, into a tile [token, column].
DEVICE void put_prior(float* tile, const char* logits, const Place& p) {
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    float x[DB][JT], y[DB][JT];  // all loads before any store: a load does not overtake a store that may alias it
#pragma unroll
    for (int b = 0; b < DB; b++) prior_of(x[b], y[b], logits, p.row + h * 8, b, p);
#pragma unroll
    for (int b = 0; b < DB; b++)
#pragma unroll
      for (int i = 0; i < JT; i++)
        *(float2_*)&tile[(p.row + h * 8) * U_ROW + (i * DB + b) * 8 + p.quad * 2] = {x[b][i], y[b][i]};
  }
  sync_warp();
}
// The same for a lane's column; `tile` is scratch.
DEVICE void load_prior(float (&pi)[C], const char* logits, float* tile, const Place& p) {
  if constexpr (J == 1) {
#pragma unroll
    for (int t = 0; t < C; t++) pi[t] = 1.f;
    return;
  }
  put_prior(tile, logits, p);
#pragma unroll
  for (int t = 0; t < C; t++) pi[t] = DEAD && !p.alive ? 0.f : tile[t * U_ROW + p.column];
  sync_warp();
}
// Sum over the lanes that have the other mixtures of this lane's output dims in such a tile.
DEVICE float over_tile(float x) {
#pragma unroll
  for (int m = DPW / 2; m > 0 && m < 4; m *= 2) x += shfl_xor(x, m);
  return x;
}

constexpr int group_of(int tile) { return BY_KEY ? (tile * 8 / DPW < J ? tile * 8 / DPW : J - 1) : 0; }
