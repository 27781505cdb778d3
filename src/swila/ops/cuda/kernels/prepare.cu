// Decays by key dim: decayed keys, queries and Gram matrices of every chunk, all chunks at once. A thread works on two neighbouring
// key dims of one mixture over half a chunk, a warp on the products of one mixture and level.
#include "decay.cuh"

constexpr int HALF = C / 2;
constexpr int PAIRS = J * KP / 2, SHARES = (2 * PAIRS + NT - 1) / NT;  // of a thread
// A level splits the tokens in two: rows of late keys, of late queries and of early keys, eight each. Two levels at a time
// lie where the keys and queries of the whole chunk will.
constexpr int LEVEL_PLANE = 3 * HALF * OPERAND_ROW, LEVEL_TILE = NS * LEVEL_PLANE, LEVEL_BYTES = J * LEVEL_TILE;
static_assert(2 * LEVEL_BYTES == 3 * J * GROUP_TILE, "levels take the place of keys and queries");
NEEDS(KEY_DECAY_BYTES + J * KP * 4, NT)

struct Arguments {
  const TX *q, *k;
  const TD* decay;
  const INDEX* bounds;
  uint4_* prepared;
  i64 N, T, H;
};

// Two neighbours in their own dtype: fewer registers, and all loads can be in flight at once.
template <class T> struct Two {
  u32 x[sizeof(T) / 2];
};
template <class T> DEVICE Two<T> load_two(const T* p) {
  Two<T> w;
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) / 2; i++) w.x[i] = ((const u32*)p)[i];
  return w;
}
template <class T> DEVICE float2_ floats(const Two<T>& w) {
  float2_ y;
  if constexpr (sizeof(T) == 2) {
    unpack(T{}, w.x[0], y.x[0], y.x[1]);
  } else {
    y.x[0] = as_float(w.x[0]), y.x[1] = as_float(w.x[sizeof(T) / 4]);
  }
  return y;
}
DEVICE void put_two(char* to, int plane_bytes, float x, float y) {
  Pair w = pack(x, y);
#pragma unroll
  for (int s = 0; s < NS; s++) *(u32*)(to + s * plane_bytes) = w.x[s];
}

DEVICE void put_gram(char* to, float x) {
  Pair y = pack(x, 0.f);
#pragma unroll
  for (int s = 0; s < NS; s++) *(u16*)(to + s * GRAM_PLANE) = (u16)y.x[s];
}

struct Share {
  ChannelOf<HALF> channel[2];
  Two<TX> k[HALF], q[HALF];

  // `token` is the first of this half, `valid` how many there are.
  DEVICE void load(const Arguments& a, i64 token, int valid, int j, int dim) {
    if (K_PADDED && dim >= K) valid = 0;
    const TX *key = a.k + token * K + dim, *query = a.q + token * K + dim;
    const TD* decay = a.decay + (token * J + j) * K + dim;
    Two<TD> log_decay[HALF];
#pragma unroll
    for (int t = 0; t < HALF; t++) {
      k[t] = {}, q[t] = {}, log_decay[t] = {};
      if (t < valid) k[t] = load_two(key), q[t] = load_two(query), log_decay[t] = load_two(decay);
      key += a.H * K, query += a.H * K, decay += a.H * J * K;
    }
    float alpha[2][HALF];
#pragma unroll
    for (int t = 0; t < HALF; t++) {
      const float2_ x = floats(log_decay[t]);
      alpha[0][t] = ex2(LOG2E * x.x[0]), alpha[1][t] = ex2(LOG2E * x.x[1]);
    }
    channel[0].load(alpha[0]), channel[1].load(alpha[1]);
  }
  DEVICE void widen(int level) { channel[0].widen(level), channel[1].widen(level); }
  // This half's rows of a level; `tile` is where its dims are in the first of them.
  template <int LEVEL> DEVICE void put_level(char* tile, int half) const {
    auto put = [&](int t, int row, bool late) {
      const float2_ x = floats(k[t]), y = floats(q[t]);
      char* to = tile + row * OPERAND_ROW;
      if (late) {
        put_two(to, LEVEL_PLANE, x.x[0] * channel[0].read(t, LEVEL), x.x[1] * channel[1].read(t, LEVEL));
        put_two(to + HALF * OPERAND_ROW, LEVEL_PLANE, y.x[0] * channel[0].pre[t], y.x[1] * channel[1].pre[t]);
      } else {
        put_two(to + 2 * HALF * OPERAND_ROW, LEVEL_PLANE, x.x[0] * channel[0].suf[t], x.x[1] * channel[1].suf[t]);
      }
    };
    if constexpr (LEVEL < 3) {
      tile += half * (HALF / 2) * OPERAND_ROW;
#pragma unroll
      for (int t = 0; t < HALF; t++) put(t, (t >> (LEVEL + 1) << LEVEL) + t % (1 << LEVEL), is_late(t, LEVEL));
    } else if (half) {
#pragma unroll
      for (int t = 0; t < HALF; t++) put(t, t, true);
    } else {
#pragma unroll
      for (int t = 0; t < HALF; t++) put(t, t, false);
    }
  }
  // `other` is the decay over the other half.
  DEVICE void put_chunk(const KeyDecay& d, int j, int dim, int half, float2_ other) {
    float before[2] = {1.f, 1.f};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (half) {
        before[i] = other.x[i];
#pragma unroll
        for (int t = 0; t < HALF; t++) channel[i].pre[t] *= other.x[i];
      } else {
#pragma unroll
        for (int t = 0; t < HALF; t++) channel[i].suf[t] *= other.x[i];
      }
    }
    const int at = j * GROUP_TILE + half * HALF * OPERAND_ROW + dim * 2;
#pragma unroll
    for (int t = 0; t < HALF; t++) {
      const float2_ x = floats(k[t]), y = floats(q[t]);
      float read[2];
#pragma unroll
      for (int i = 0; i < 2; i++) read[i] = POST && t == 0 ? before[i] : channel[i].read(t, 3);
      put_two(d.keys_u + at + t * OPERAND_ROW, OPERAND_TILE, x.x[0] * read[0], x.x[1] * read[1]);
      put_two(d.queries + at + t * OPERAND_ROW, OPERAND_TILE, y.x[0] * channel[0].pre[t], y.x[1] * channel[1].pre[t]);
      put_two(d.keys_end + at + t * OPERAND_ROW, OPERAND_TILE, x.x[0] * channel[0].suf[t], x.x[1] * channel[1].suf[t]);
    }
  }
};

// The products of late keys and of late queries with early keys, where they are of neighbouring blocks, into A and P.
template <int LEVEL> DEVICE void gram_level(const KeyDecay& d, const char* tile, int j, int lane) {
  float m[4] = {};
#pragma unroll
  for (int kk = 0; kk < KS / 2; kk++) {
    B16 early[2];
#pragma unroll
    for (int s = 0; s < NS; s++) {
      u32 w[4];
      ldmatrix(w, tile + s * LEVEL_PLANE + (2 * HALF + (lane & 7)) * OPERAND_ROW + (kk * 32 + (lane >> 3) * 8) * 2);
#pragma unroll
      for (int i = 0; i < 4; i++) early[i / 2].x[s][i % 2] = w[i];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) product(m, load_rows(tile, LEVEL_PLANE, OPERAND_ROW, kk * 32 + i * 16, lane), early[i]);
  }
  constexpr int SIZE = 1 << LEVEL;
  auto early_token = [](int i) { return (i >> LEVEL << (LEVEL + 1)) + i % SIZE; };
  const int row = lane >> 2, column = LEVEL > 0 ? (lane & 3) * 2 : row;
  if (LEVEL > 0 ? row >> LEVEL != column >> LEVEL : row >> 1 != (lane & 3)) return;
  const int t = early_token(row) + SIZE, s = early_token(column);
  char *a = d.A + j * GRAM_TILE + t * GRAM_ROW + s * 2, *p = d.P + j * GRAM_TILE + t * GRAM_ROW + s * 2;
  float* by_writer = d.blocks + j * BLOCKS_STRIDE + t / 8 * 64 + s % 8 * 8 + t % 8;
  float* by_reader = d.blocks + (J + j) * BLOCKS_STRIDE + t / 8 * 64 + t % 8 * 8 + s % 8;
  if constexpr (LEVEL > 0) {
    put_two(a, GRAM_PLANE, m[0], m[1]), put_two(p, GRAM_PLANE, m[2], m[3]);
    if constexpr (LEVEL < 3) by_writer[0] = m[0], by_writer[8] = m[1], *(float2_*)by_reader = {m[0], m[1]};
  } else {
    const float x = row & 1 ? m[1] : m[0], y = row & 1 ? m[3] : m[2];
    put_gram(a, x), put_gram(p, y);
    *by_writer = *by_reader = x;
  }
}
template <int LEVEL> DEVICE void gram_levels(const KeyDecay& d, const char* levels, const Place& p) {
  for (int task = p.warp; task < 2 * J; task += NW) {
    const char* tile = levels + task * LEVEL_TILE;
    if (task < J) gram_level<LEVEL>(d, tile, task, p.lane);
    else gram_level<LEVEL + 1>(d, tile, task - J, p.lane);
  }
}

KERNEL void __launch_bounds__(NT, SHARES == 1 && NS == 1 ? 3 : 2) swila_prepare(const Arguments a) {
  SHARED(shared);
  const Place p = place();
  // 32 bits suffice for the number of blocks, and 64-bit divisions are slow.
  const u32 heads = (u32)a.H, item = blockIdx.x / heads;
  const i64 H = a.H, head = blockIdx.x % heads;
  Span span;
  i64 chunk;
  if (a.bounds) {
    chunk = chunk_of(a.bounds, item, a.N, a.T, span);
    if (chunk < 0) return;
  } else {
    const u32 per = (u32)((a.T + C - 1) / C);
    span = sequence(nullptr, item / per, a.T), chunk = item % per;
  }
  const i64 t0 = span.begin + chunk * C, token = t0 * H + head;
  const int valid = span.end - t0 < C ? (int)(span.end - t0) : C;
  const u32 tid = threadIdx.x;
  const KeyDecay d = key_decay_at(shared);
  float* late_total = (float*)(shared + KEY_DECAY_BYTES);  // over the second half

  Share shares[SHARES];
  auto each = [&](auto work) {
#pragma unroll
    for (int i = 0; i < SHARES; i++) {
      const u32 n = i * NT + tid;
      if ((i + 1) * NT <= 2 * PAIRS || n < 2 * PAIRS)
        work(shares[i], (int)(n / PAIRS), (int)(n % PAIRS / (KP / 2)), (int)(n % (KP / 2) * 2));
    }
  };
  auto level_at = [&](int level, int j, int dim) { return shared + (level & 1) * LEVEL_BYTES + j * LEVEL_TILE + dim * 2; };
  each([&](Share& x, int half, int j, int dim) { x.load(a, token + half * HALF * H, valid - half * HALF, j, dim); });
  // Zeros, for the entries of the Gram matrices that are not written.
#pragma unroll
  for (int i = 0; i < READY_GRAMS_BYTES / 16; i += NT)
    if (i + NT <= READY_GRAMS_BYTES / 16 || i + tid < READY_GRAMS_BYTES / 16)
      ((uint4_*)(shared + READY_GRAMS))[i + tid] = {};
  // The diagonal of P, which contains no decay.
  constexpr int LANES = NT / C;
  const int row = (int)(tid / LANES), part = (int)(tid % LANES);
  float diagonal = 0.f;
  if (row < valid) {
    const i64 at = (token + row * H) * K;
#pragma unroll
    for (int i = 0; i < K; i += 2 * LANES)
      if (i + 2 * LANES <= K || i + part * 2 < K) {
        const float2_ x = floats(load_two(a.q + at + i + part * 2)), y = floats(load_two(a.k + at + i + part * 2));
        diagonal += x.x[0] * y.x[0] + x.x[1] * y.x[1];
      }
  }
#pragma unroll
  for (int m = 1; m < LANES; m *= 2) diagonal += shfl_xor(diagonal, m);

  each([&](Share& x, int half, int j, int dim) {
    x.put_level<0>(level_at(0, j, dim), half);
    x.widen(0);
    x.put_level<1>(level_at(1, j, dim), half);
    x.widen(1);
  });
  sync_block();
#pragma unroll
  for (int j = part; j < J; j += LANES) put_gram(d.P + j * GRAM_TILE + row * (GRAM_ROW + 2), diagonal);
  gram_levels<0>(d, shared, p);
  sync_block();
  each([&](Share& x, int half, int j, int dim) {
    x.put_level<2>(level_at(2, j, dim), half);
    x.widen(2);
    x.put_level<3>(level_at(3, j, dim), half);
    *(float2_*)&(half ? late_total : d.total)[j * KP + dim] = {x.channel[0].pre[HALF - 1], x.channel[1].pre[HALF - 1]};
  });
  sync_block();
  gram_levels<2>(d, shared, p);
  sync_block();
  each([&](Share& x, int half, int j, int dim) {
    x.put_chunk(d, j, dim, half, *(const float2_*)&(half ? d.total : late_total)[j * KP + dim]);
    if (half) *(float2_*)&d.total[j * KP + dim] = {x.channel[0].pre[HALF - 1], x.channel[1].pre[HALF - 1]};
  });
  sync_block();
  uint4_* to = a.prepared + (i64)blockIdx.x * (KEY_DECAY_BYTES / 16) + tid;
#pragma unroll
  for (int i = 0; i < KEY_DECAY_BYTES / 16; i += NT)
    if (i + NT <= KEY_DECAY_BYTES / 16 || i + tid < KEY_DECAY_BYTES / 16) to[i] = ((const uint4_*)shared)[i + tid];
}
