// One kernel as a shared library: `run` launches it block by block. With RACES as a program, whose argument is a file: grid, number of
// fields, and of each field whether it is a tensor, then its value, or the number of bytes and these.
#include "device.h"
#include SOURCE

extern "C" int shared_bytes() { return swila_shared_bytes; }
extern "C" int threads() { return swila_threads; }
extern "C" void run(const i64* arguments, i64 grid, int order) {
  Arguments a;
  memcpy(&a, arguments, sizeof a);
  for (i64 i = 0; i < grid; i++) {
    shared_memory = (char*)aligned_alloc(16, swila_shared_bytes / 16 * 16 + 16);
    for (int w = 0; w < swila_shared_bytes / 4; w++) ((u32*)shared_memory)[w] = 0x7fc00000;  // NaN
    run_block(swila_threads, (unsigned)i, order, [&] { KERNEL_NAME(a); });
    if (REUSE) free(shared_memory);
  }
}

#ifdef RACES
static i64 number(FILE* file) {
  i64 x;
  if (fread(&x, sizeof x, 1, file) != 1) abort();
  return x;
}
int main(int count, char** words) {
  FILE* file = fopen(words[1], "rb");
  const i64 grid = number(file), fields = number(file);
  if (fields * sizeof(i64) != sizeof(Arguments)) abort();
  std::vector<i64> arguments;
  for (i64 i = 0; i < fields; i++) {
    const i64 tensor = number(file), value = number(file);
    arguments.push_back(value);
    if (!tensor) continue;
    void* memory = aligned_alloc(16, value / 16 * 16 + 16);
    if (value && fread(memory, 1, value, file) != (size_t)value) abort();
    arguments.back() = (i64)memory;
  }
  run(arguments.data(), grid, atoi(words[2]));
}
#endif
