// Types, conversions and warp-wide instructions. The emulator on the CPU defines its own.
#pragma once

#ifndef SWILA_EMULATOR
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define SHARED(name) extern __shared__ __align__(16) char name[]
// NVRTC has no offsetof, but this operator of its front end, which is a constant expression.
#define OFFSET_OF(type, field) __INTADDR__(&((type*)0)->field)
// Bytes of shared memory and number of threads of a block, for the host to read.
#define NEEDS(bytes, threads) extern "C" __constant__ int swila_shared_bytes = (bytes); \
  extern "C" __constant__ int swila_threads = (threads);

DEVICE float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float lg2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float rcp(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// The maximum; NaN if either is NaN, so that NaNs of the inputs reach the results.
DEVICE float max_nan(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
DEVICE float min_nan(float x, float y) { float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }

DEVICE u32 pack_bf16(float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
DEVICE u32 pack_f16(float low, float high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
DEVICE float half_to_float(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }

DEVICE float shfl_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE float shfl(float x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
// The thread's index, read again: values derived from it are then computed where they are used, not held in registers.
DEVICE u32 thread_again() { u32 i; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i)); return i; }
// Barriers among some warps of a block: warps that only announce their writes arrive, warps that need them wait.
DEVICE void announce(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
DEVICE void await(int barrier, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// d += a b, a [16, 16] by rows, b [16, 8] by columns.
DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same with a [16, 8], b [8, 8].
DEVICE void mma_k8(float (&d)[4], u32 a0, u32 a1, u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}
// Four 8 x 8 matrices of 16-bit numbers; lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void ldmatrix(u32 (&d)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_t(u32 (&d)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE u32 transposed(u32 x) {
  u32 y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
// 16 bytes from global to shared memory, zeros where not valid.
DEVICE void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#endif

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct alignas(16) uint4_ { u32 x[4]; };
struct alignas(16) float4_ { float x[4]; };
struct alignas(8) float2_ { float x[2]; };

DEVICE float to_float(bf16 x) { return as_float((u32)x.bits << 16); }
DEVICE float to_float(f16 x) { return half_to_float(x.bits); }
DEVICE float to_float(float x) { return x; }
DEVICE void store(bf16* p, float x) { p->bits = (u16)pack_bf16(x, 0.f); }
DEVICE void store(f16* p, float x) { p->bits = (u16)pack_f16(x, 0.f); }
DEVICE void store(float* p, float x) { *p = x; }
// Two neighbours at once; the index of p is even.
DEVICE void store2(bf16* p, float x, float y) { *(u32*)p = pack_bf16(x, y); }
DEVICE void store2(f16* p, float x, float y) { *(u32*)p = pack_f16(x, y); }
DEVICE void store2(float* p, float x, float y) { *(float2_*)p = {x, y}; }
// Four at once; the index of p is a multiple of four.
DEVICE void store4(bf16* p, const float4_& x) { *(u64*)p = (u64)pack_bf16(x.x[2], x.x[3]) << 32 | pack_bf16(x.x[0], x.x[1]); }
DEVICE void store4(f16* p, const float4_& x) { *(u64*)p = (u64)pack_f16(x.x[2], x.x[3]) << 32 | pack_f16(x.x[0], x.x[1]); }
DEVICE void store4(float* p, const float4_& x) { *(float4_*)p = x; }
DEVICE void load2(const bf16* p, float& x, float& y) {
  u32 w = *(const u32*)p;
  x = as_float(w << 16), y = as_float(w & 0xffff0000u);
}
DEVICE void load2(const f16* p, float& x, float& y) {
  u32 w = *(const u32*)p;
  x = half_to_float((u16)w), y = half_to_float((u16)(w >> 16));
}
DEVICE void load2(const float* p, float& x, float& y) { x = p[0], y = p[1]; }
DEVICE void unpack(bf16, u32 w, float& x, float& y) { x = as_float(w << 16), y = as_float(w & 0xffff0000u); }
DEVICE void unpack(f16, u32 w, float& x, float& y) { x = half_to_float((u16)w), y = half_to_float((u16)(w >> 16)); }
