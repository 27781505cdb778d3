// A CUDA block on the CPU: every thread a fiber, warp-wide instructions done by all lanes meeting.
//
// Threads run one at a time until they have to wait for others, in an order that can be turned round, so that a
// missing barrier shows as a wrong number. Asynchronous copies arrive only when they are waited for.
#pragma once
#include "fibers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#define SWILA_EMULATOR
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;
#define DEVICE inline
#define KERNEL static
#define __launch_bounds__(...)
#define __restrict__
#define SHARED(name) char* name = shared_memory_()
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#define NEEDS(bytes, threads) static int swila_shared_bytes = (bytes), swila_threads = (threads);

struct Dim { unsigned x; };
struct Meeting {
  int arrived = 0, generation = 0, threads = 0;
  char order[64];  // one for each of the last generations
};
struct Warp { u64 slot[32][8]; Meeting all; };
struct Copy { void* to; const void* from; bool valid; };
struct Thread {
  Fiber fiber;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Meeting all, named[16];
  int current = 0;
  long steps = 0;  // how often a thread went on
  std::function<void()> body;
};
static Block* block;
static Dim threadIdx, blockIdx;
static char* shared_memory;
UNSEEN inline char* shared_memory_() { return shared_memory; }

UNSEEN inline void yield_() {
  leave(block->threads[block->current].fiber);
  threadIdx.x = block->current;
}
// Wait until so many threads have come; what each wrote before is seen after, if the meeting orders memory.
UNSEEN inline void meet(Meeting& at, int threads, bool orders) {
  const int mine = at.generation;
  if (orders) released(at.order + mine % 64);
  if (++at.arrived == threads) {
    at.arrived = 0, at.generation++;
  } else {
    while (at.generation == mine) yield_();
  }
  if (orders) acquired(at.order + mine % 64);
  block->steps++;
}
UNSEEN inline Warp& warp() { return block->warps[block->current / 32]; }
UNSEEN inline int lane_() { return block->current % 32; }
UNSEEN inline void sync_warp() { meet(warp().all, 32, true); }
UNSEEN inline void meet_warp() { meet(warp().all, 32, false); }  // shuffles and matrix instructions do not order memory
UNSEEN inline void sync_block() { meet(block->all, (int)block->threads.size(), true); }

// A whole warp arrives at a named barrier at once; all name the same number of threads.
UNSEEN inline Meeting& arrive(int barrier, int threads) {
  meet_warp();
  Meeting& at = block->named[barrier];
  if (at.arrived && at.threads != threads) {
    fprintf(stderr, "barrier %d: %d and %d threads\n", barrier, threads, at.threads);
    abort();
  }
  at.threads = threads;
  return at;
}
UNSEEN inline void await(int barrier, int threads) { meet(arrive(barrier, threads), threads, true); }
UNSEEN inline void announce(int barrier, int threads) {
  Meeting& at = arrive(barrier, threads);
  released(at.order + at.generation % 64);
  if (++at.arrived == threads) at.arrived = 0, at.generation++;
}

UNSEEN static void enter() {
  threadIdx.x = block->current;
  block->body();
  Fiber& fiber = block->threads[block->current].fiber;
  fiber.done = true;
  leave(fiber);
}
UNSEEN inline void run_block(int threads, unsigned index, int order, std::function<void()> body) {
  Block& b = *(block = new Block);
  b.body = body;
  b.threads.resize(threads);
  b.warps.resize(threads / 32);
  blockIdx.x = index;
  long seen = -1, stuck = 0;
  for (;;) {
    bool any = false;
    const bool late = b.steps == seen;  // nothing else can go on
    stuck = late ? stuck + 1 : 0;
    if (stuck == 10000) {
      fprintf(stderr, "threads wait for each other for ever\n");
      for (int i = 0; i < 16; i++) fprintf(stderr, "barrier %d: %d arrived in round %d\n", i, b.named[i].arrived, b.named[i].generation);
      fprintf(stderr, "block: %d arrived in round %d\n", b.all.arrived, b.all.generation);
      for (size_t i = 0; i < b.warps.size(); i++) fprintf(stderr, "warp %zu: %d arrived in round %d\n", i, b.warps[i].all.arrived, b.warps[i].all.generation);
      abort();
    }
    seen = b.steps;
    for (int i = 0; i < threads; i++) {
      const int id = order == 0 ? i : order == 1 ? threads - 1 - i : (i * 37 + 3) % threads;  // no block has 37 warps
      if (b.threads[id].fiber.done) continue;
      any = true;
      if (order > 2 && (id / 32 == order - 3) != late) continue;
      b.current = id;
      resume(b.threads[id].fiber, enter);
    }
    if (!any) break;
  }
  if (REUSE) delete block;
}

// As on a GPU, numbers below the smallest normal one become zero.
inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0.f * x : x; }
inline float ex2(float x) { return flushed(exp2f(flushed(x))); }
inline float lg2(float x) { return log2f(flushed(x)); }
inline float rcp(float x) { return flushed(1.f / flushed(x)); }
inline float max_nan(float x, float y) { return x != x ? x : y != y ? y : x > y ? x : y; }
inline float min_nan(float x, float y) { return x != x ? x : y != y ? y : x < y ? x : y; }
inline u32 thread_again() { return threadIdx.x; }
inline float as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
inline u16 to_bf16_(float x) {
  u32 b;
  memcpy(&b, &x, 4);
  if (x != x) return 0x7fff;
  return (u16)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
inline u32 pack_bf16(float low, float high) { return to_bf16_(low) | (u32)to_bf16_(high) << 16; }
inline u16 to_f16_(float x) { _Float16 h = (_Float16)x; u16 b; memcpy(&b, &h, 2); return b; }
inline u32 pack_f16(float low, float high) { return to_f16_(low) | (u32)to_f16_(high) << 16; }
inline float half_to_float(u16 b) { _Float16 h; memcpy(&h, &b, 2); return (float)h; }
inline float bf_(u32 w, int high) {
  u32 b = high ? (w & 0xffff0000u) : w << 16;
  float f;
  memcpy(&f, &b, 4);
  return f;
}

UNSEEN inline float shfl(float x, int from) {
  Warp& w = warp();
  u32 b;
  memcpy(&b, &x, 4);
  w.slot[lane_()][0] = b;
  meet_warp();
  b = (u32)w.slot[from & 31][0];
  meet_warp();
  memcpy(&x, &b, 4);
  return x;
}
UNSEEN inline float shfl_xor(float x, int mask) { return shfl(x, lane_() ^ mask); }

UNSEEN inline void mma_(float (&d)[4], const u32* a, const u32* b, int halves) {
  Warp& w = warp();
  int l = lane_(), row = l / 4, column = l % 4 * 2;
  for (int i = 0; i < 2 * halves; i++) w.slot[l][i] = a[i];
  for (int i = 0; i < halves; i++) w.slot[l][4 + i] = b[i];
  meet_warp();
  for (int i = 0; i < 4; i++) {
    int m = row + (i / 2) * 8, n = column + i % 2;
    float sum = 0;
    for (int k = 0; k < 8 * halves; k++) {
      float x = bf_((u32)w.slot[(m % 8) * 4 + (k % 8) / 2][(k / 8) * 2 + m / 8], k % 2);
      float y = bf_((u32)w.slot[n * 4 + (k % 8) / 2][4 + k / 8], k % 2);
      sum += x * y;
    }
    d[i] += sum;
  }
  meet_warp();
}
UNSEEN inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  u32 b[2] = {b0, b1};
  mma_(d, a, b, 2);
}
UNSEEN inline void mma_k8(float (&d)[4], u32 a0, u32 a1, u32 b) {
  u32 a[2] = {a0, a1};
  mma_(d, a, &b, 1);
}
UNSEEN inline void ldmatrix_(u32 (&d)[4], const void* row, bool transpose) {
  Warp& w = warp();
  int l = lane_();
  if ((u64)row % 16) { fprintf(stderr, "ldmatrix: row not aligned\n"); abort(); }
  w.slot[l][0] = (u64)row;
  meet_warp();
  for (int m = 0; m < 4; m++) {
    u32 e[2];
    for (int i = 0; i < 2; i++) {
      int r = transpose ? l % 4 * 2 + i : l / 4, c = transpose ? l / 4 : l % 4 * 2 + i;
      const u16* from = (const u16*)w.slot[m * 8 + r][0] + c;
      has_read(from);
      e[i] = *from;
    }
    d[m] = e[0] | e[1] << 16;
  }
  meet_warp();
}
UNSEEN inline void ldmatrix(u32 (&d)[4], const void* row) { ldmatrix_(d, row, false); }
UNSEEN inline void ldmatrix_t(u32 (&d)[4], const void* row) { ldmatrix_(d, row, true); }
UNSEEN inline u32 transposed(u32 x) {
  Warp& w = warp();
  int l = lane_();
  w.slot[l][0] = x;
  meet_warp();
  u32 e[2];
  for (int i = 0; i < 2; i++) {
    int r = l % 4 * 2 + i, c = l / 4;
    e[i] = (u32)(w.slot[r * 4 + c / 2][0] >> (c % 2 * 16)) & 0xffff;
  }
  meet_warp();
  return e[0] | e[1] << 16;
}
UNSEEN inline void copy_async(void* to, const void* from, bool valid) {
  if ((u64)to % 16 || (valid && (u64)from % 16)) { fprintf(stderr, "copy_async: not aligned\n"); abort(); }
  will_write(to, 16);
  block->threads[block->current].open.push_back({to, from, valid});
}
UNSEEN inline void copy_commit() {
  Thread& f = block->threads[block->current];
  f.groups.push_back(f.open);
  f.open.clear();
}
template <int N> UNSEEN inline void copy_wait() {
  Thread& f = block->threads[block->current];
  while ((int)f.groups.size() > N) {
    for (Copy& c : f.groups.front())
      if (c.valid) memcpy(c.to, c.from, 16); else memset(c.to, 0, 16);
    f.groups.pop_front();
  }
}
