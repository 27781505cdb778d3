// A CUDA block on the CPU: every thread a fiber, warp-wide instructions done by all lanes meeting.
//
// Threads run one at a time until they have to wait for others, in an order that can be turned round, so that a
// missing barrier shows as a wrong number. Asynchronous copies arrive only when they are waited for.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#define SWILA_EMULATOR
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;
#define DEVICE inline
#define KERNEL static
#define __launch_bounds__(...)
#define __restrict__
#define SHARED(name) char* name = shared_memory
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#define NEEDS(bytes, threads) static int swila_shared_bytes = (bytes), swila_threads = (threads);

struct Dim { unsigned x; };
struct Warp { u64 slot[32][8]; int arrived = 0; int generation = 0; };
struct Copy { void* to; const void* from; bool valid; };
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool started = false, done = false;
  std::vector<char> stack;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  int arrived = 0, generation = 0, current = 0;
  long steps = 0;  // how often a thread went on
  int named_arrived[16] = {}, named_generation[16] = {};
  ucontext_t main;
  jmp_buf back;
  std::function<void()> body;
};
static Block* block;
static Dim threadIdx, blockIdx;
static char* shared_memory;

inline void yield_() {
  Fiber& f = block->fibers[block->current];
  if (_setjmp(f.jump) == 0) _longjmp(block->back, 1);
  threadIdx.x = block->current;
}
inline void meet(int& arrived, int& generation, int count) {
  int mine = generation;
  if (++arrived == count) {
    arrived = 0, generation++;
  } else {
    while (generation == mine) yield_();
  }
  block->steps++;
}
inline Warp& warp() { return block->warps[block->current / 32]; }
inline int lane_() { return block->current % 32; }
inline void sync_warp() { meet(warp().arrived, warp().generation, 32); }
inline void sync_block() { meet(block->arrived, block->generation, (int)block->fibers.size()); }

inline void await(int barrier, int threads) { meet(block->named_arrived[barrier], block->named_generation[barrier], threads); }
inline void announce(int barrier, int threads) {
  if (++block->named_arrived[barrier] == threads) block->named_arrived[barrier] = 0, block->named_generation[barrier]++;
}

static void enter() {
  threadIdx.x = block->current;
  block->body();
  block->fibers[block->current].done = true;
  _longjmp(block->back, 1);
}
inline void run_block(int threads, unsigned index, int order, std::function<void()> body) {
  Block b;
  block = &b;
  b.body = body;
  b.fibers.resize(threads);
  b.warps.resize(threads / 32);
  blockIdx.x = index;
  long seen = -1;
  for (long rounds = 0;; rounds++) {
    if (rounds == 3000000) {
      fprintf(stderr, "threads wait for each other for ever\n");
      for (int i = 0; i < 16; i++) fprintf(stderr, "barrier %d: %d arrived in round %d\n", i, b.named_arrived[i], b.named_generation[i]);
      fprintf(stderr, "block: %d arrived in round %d\n", b.arrived, b.generation);
      for (size_t i = 0; i < b.warps.size(); i++) fprintf(stderr, "warp %zu: %d arrived in round %d\n", i, b.warps[i].arrived, b.warps[i].generation);
      abort();
    }
    bool any = false;
    const bool late = b.steps == seen;  // nothing else can go on
    seen = b.steps;
    for (int i = 0; i < threads; i++) {
      int id = order == 0 ? i : order == 1 ? threads - 1 - i : (i * 37 + 3) % threads  /* warps never number 37 */;
      Fiber& f = b.fibers[id];
      if (f.done) continue;
      any = true;
      if (order > 2 && (id / 32 == order - 3) != late) continue;
      b.current = id;
      if (_setjmp(b.back) == 0) {
        if (!f.started) {
          f.started = true;
          f.stack.resize(256 << 10);
          getcontext(&f.context);
          f.context.uc_stack.ss_sp = f.stack.data();
          f.context.uc_stack.ss_size = f.stack.size();
          f.context.uc_link = nullptr;
          makecontext(&f.context, enter, 0);
          setcontext(&f.context);
        } else {
          _longjmp(f.jump, 1);
        }
      }
    }
    if (!any) break;
  }
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

inline float shfl(float x, int from) {
  Warp& w = warp();
  u32 b;
  memcpy(&b, &x, 4);
  w.slot[lane_()][0] = b;
  sync_warp();
  b = (u32)w.slot[from & 31][0];
  sync_warp();
  memcpy(&x, &b, 4);
  return x;
}
inline float shfl_xor(float x, int mask) { return shfl(x, lane_() ^ mask); }

inline void mma_(float (&d)[4], const u32* a, const u32* b, int halves) {
  Warp& w = warp();
  int l = lane_(), row = l / 4, column = l % 4 * 2;
  for (int i = 0; i < 2 * halves; i++) w.slot[l][i] = a[i];
  for (int i = 0; i < halves; i++) w.slot[l][4 + i] = b[i];
  sync_warp();
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
  sync_warp();
}
inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  u32 b[2] = {b0, b1};
  mma_(d, a, b, 2);
}
inline void mma_k8(float (&d)[4], u32 a0, u32 a1, u32 b) {
  u32 a[2] = {a0, a1};
  mma_(d, a, &b, 1);
}
inline void ldmatrix_(u32 (&d)[4], const void* row, bool transpose) {
  Warp& w = warp();
  int l = lane_();
  if ((u64)row % 16) { fprintf(stderr, "ldmatrix: row not aligned\n"); abort(); }
  w.slot[l][0] = (u64)row;
  sync_warp();
  for (int m = 0; m < 4; m++) {
    u32 e[2];
    for (int i = 0; i < 2; i++) {
      int r = transpose ? l % 4 * 2 + i : l / 4, c = transpose ? l / 4 : l % 4 * 2 + i;
      e[i] = ((const u16*)w.slot[m * 8 + r][0])[c];
    }
    d[m] = e[0] | e[1] << 16;
  }
  sync_warp();
}
inline void ldmatrix(u32 (&d)[4], const void* row) { ldmatrix_(d, row, false); }
inline void ldmatrix_t(u32 (&d)[4], const void* row) { ldmatrix_(d, row, true); }
inline u32 transposed(u32 x) {
  Warp& w = warp();
  int l = lane_();
  w.slot[l][0] = x;
  sync_warp();
  u32 e[2];
  for (int i = 0; i < 2; i++) {
    int r = l % 4 * 2 + i, c = l / 4;
    e[i] = (u32)(w.slot[r * 4 + c / 2][0] >> (c % 2 * 16)) & 0xffff;
  }
  sync_warp();
  return e[0] | e[1] << 16;
}
inline void copy_async(void* to, const void* from, bool valid) {
  if ((u64)to % 16 || (valid && (u64)from % 16)) { fprintf(stderr, "copy_async: not aligned\n"); abort(); }
  block->fibers[block->current].open.push_back({to, from, valid});
}
inline void copy_commit() {
  Fiber& f = block->fibers[block->current];
  f.groups.push_back(f.open);
  f.open.clear();
}
template <int N> inline void copy_wait() {
  Fiber& f = block->fibers[block->current];
  while ((int)f.groups.size() > N) {
    for (Copy& c : f.groups.front())
      if (c.valid) memcpy(c.to, c.from, 16); else memset(c.to, 0, 16);
    f.groups.pop_front();
  }
}
