// One kernel as a shared library: `run` launches it block by block.
#include "device.h"
#include SOURCE

extern "C" int shared_bytes() { return swila_shared_bytes; }
extern "C" int threads() { return swila_threads; }
extern "C" void run(const i64* arguments, i64 grid, int order) {
  std::vector<char> memory(swila_shared_bytes + 16);
  shared_memory = (char*)(((u64)memory.data() + 15) / 16 * 16);
  Arguments a;
  memcpy(&a, arguments, sizeof a);
  for (i64 i = 0; i < grid; i++) {
    for (int w = 0; w < swila_shared_bytes / 4; w++) ((u32*)shared_memory)[w] = 0x7fc00000;  // NaN
    run_block(swila_threads, (unsigned)i, order, [&] { KERNEL_NAME(a); });
  }
}
