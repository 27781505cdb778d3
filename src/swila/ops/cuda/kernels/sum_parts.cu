// The sums of what several blocks of a head computed of dq and dk, eight numbers per thread; parts are added in order, in float32.
#include "layout.cuh"

NEEDS(0, NT)

struct Arguments {
  const uint4_* parts;  // bf16 [2][count][size], in pieces of 8
  uint4_* sums;         // bf16 [2][size]
  i64 count, pieces;    // parts; pieces of one of them
};

KERNEL void __launch_bounds__(NT) swila_sum_parts(const Arguments a) {
  const i64 piece = (i64)blockIdx.x * NT + threadIdx.x;
  if (piece >= 2 * a.pieces) return;
  const uint4_* from = a.parts + piece / a.pieces * a.count * a.pieces + piece % a.pieces;
  float x[8] = {};
  for (int n = 0; n < (int)a.count; n++) {
    const uint4_ w = from[n * a.pieces];
#pragma unroll
    for (int i = 0; i < 4; i++) x[2 * i] += as_float(w.x[i] << 16), x[2 * i + 1] += as_float(w.x[i] & 0xffff0000u);
  }
  a.sums[piece] = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}
