// One output dim per lane, with all of its mixtures: what warps without matrix products use, for two to four mixtures.
#pragma once
#include "layout.cuh"

struct Vector { alignas(4 * JP) float x[JP]; };  // of the mixtures of one output dim
// Where that of token t and output dim d lies in a tile of them; eight tokens of a few dims fall into different banks.
DEVICE int vector_at(int t, int d) { return (t * VB + (d ^ (t & 1))) * JP * 4; }
// The lane that has column (j, d) of a warp, in the order of what is kept.
DEVICE int kept_lane(int j, int d) { return (d & 7) * 4 + (d >> 3) * JP + j; }
DEVICE void load_logits(float (&z)[J], const char* tile, int token, int t, int d) {
#pragma unroll
  for (int j = 0; j < J; j++) z[j] = max_nan(LOG2E * to_float(*((const TB*)(tile + t * token + j * B_ROW) + d)), LEAST);
}
DEVICE float largest(const float (&z)[J]) {
  float most = max_nan(z[0], z[1]);
  if (J == 3) most = max_nan(most, z[J - 1]);
  if (J == 4) most = max_nan(most, max_nan(z[J - 2], z[J - 1]));
  return most;
}

// Of shares 2^(z_j) / sum, from their sum, Σ_j 2^(z_j) z_j and the inverse sum: log Σ_j exp z_j - Σ_j r_j z_j.
DEVICE float softmax_entropy(float sum, float product, float inverse) { return LN2 * (lg2(sum) - product * inverse); }
// Of logarithms to base 2, the shares that are still to be multiplied by what is returned: their inverse sum. With statistics, also
// their entropy.
DEVICE float unscaled_softmax(float (&z)[J], float& entropy) {
  const float most = largest(z);
  float sum, product = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) {
    const float x = z[j] - most;
    z[j] = ex2(x);
    sum = j ? sum + z[j] : z[j];
    if (STATS) product += z[j] * x;
  }
  const float inverse = rcp(sum);
  if (STATS) entropy = softmax_entropy(sum, product, inverse);
  return inverse;
}
// Of numbers that are not logarithms.
DEVICE float entropy_of(const float (&x)[J]) {
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < J; j++) sum -= x[j] * LN2 * lg2(max_nan(x[j], TINY));
  return sum;
}
