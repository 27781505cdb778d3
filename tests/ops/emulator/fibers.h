// Fibers, on which the threads of a block run in turns. With RACES, compiled with ThreadSanitizer, it is told which fiber runs, which
// memory barriers order, and what copies and matrix instructions touch: it then reports accesses that nothing orders.
#pragma once
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>

#include <functional>
#include <vector>

constexpr size_t STACK = 256 << 10;

#ifndef RACES
#define UNSEEN
constexpr bool REUSE = true;  // the memory of a block that has ended
inline void released(void*) {}
inline void acquired(void*) {}
inline void has_read(const void*) {}
inline void will_write(void*, size_t) {}

struct Fiber {  // jumps take less time than changes of contexts
  ucontext_t context;
  jmp_buf jump;
  bool started = false, done = false;
  std::vector<char> stack;
};
static jmp_buf back;

inline void resume(Fiber& f, void (*enter)()) {
  if (_setjmp(back)) return;
  if (f.started) _longjmp(f.jump, 1);
  f.started = true;
  f.stack.resize(STACK);
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
  makecontext(&f.context, enter, 0);
  setcontext(&f.context);
}
inline void leave(Fiber& f) {
  if (f.done || _setjmp(f.jump) == 0) _longjmp(back, 1);
}
#else
#include <sys/mman.h>
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_read2(void*);
void __tsan_write_range(void*, unsigned long);
}
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
constexpr bool REUSE = false;  // nothing orders what its threads did before what comes later
enum { UNORDERED = 1 };        // a switch of fibers orders nothing
UNSEEN inline void released(void* at) { __tsan_release(at); }
UNSEEN inline void acquired(void* at) { __tsan_acquire(at); }
UNSEEN inline void has_read(const void* at) { __tsan_read2((void*)at); }
UNSEEN inline void will_write(void* at, size_t bytes) { __tsan_write_range(at, bytes); }

struct Fiber {
  ucontext_t context;
  void* known = nullptr;
  bool done = false;
};
static ucontext_t back;
static void* known_back;

UNSEEN inline void resume(Fiber& f, void (*enter)()) {
  if (!f.known) {
    void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
    f.known = __tsan_create_fiber(0);
    known_back = __tsan_get_current_fiber();
  }
  __tsan_switch_to_fiber(f.known, UNORDERED);
  swapcontext(&back, &f.context);
}
UNSEEN inline void leave(Fiber& f) {
  __tsan_switch_to_fiber(known_back, UNORDERED);
  swapcontext(&f.context, &back);
}
#endif
