// Roles, shared memory and barriers of the forward in which warps have different work.
#pragma once
#define ALL_BY_TOKEN
#include "forward.cuh"
#include "vectors.cuh"

static_assert(DECAY == 0 && RAW && (JP == 2 || JP == 4) && V >= DPW, "bf16 without decay, 2 to 4 mixtures");
constexpr int STAGES = 3;  // the current chunk, the next one, and one being fetched
constexpr int SOLVERS = (VB + 31) / 32, MIXERS = SOLVERS;  // warps that substitute, and that mix
// One more warp provides inputs and Gram matrices, and where a single one multiplies also rates and priors. Eight that multiply provide
// themselves: with a 13th warp a thread has 128 registers, without it 168.
constexpr int PROVIDERS = NW < 8;
constexpr bool RATES_PROVIDED = NW == 1;
constexpr int ALL_THREADS = NT + 32 * (SOLVERS + MIXERS + PROVIDERS), WITH_PROVIDER = NT + 32 * PROVIDERS;
constexpr int WITH_SOLVERS = NT + 32 * SOLVERS, WITH_MIXERS = NT + 32 * MIXERS, ALL_BUT_MIXERS = WITH_PROVIDER + 32 * SOLVERS;
constexpr int SHARE_USERS = (RATES_PROVIDED ? 32 : NT) + 32 * MIXERS;
constexpr bool SHARES_GIVEN = STATS && KEY_GATE, OWN_STATS = STATS && !SHARES_GIVEN;  // of the substituting warps
constexpr int WIDE = C * VB * JP * 4;                     // float [token, output dim, mixture]: errors, rates, priors
constexpr int GATE_ROW = VB + 8, GATES = KEY_GATE * C * GATE_ROW * 4;
constexpr int WRITTEN = NW * PAIR_PLANE;                  // c, a tile per warp
// Where the loops of all warps together would not fit into the 32 KB of a multiprocessor's instruction cache, the substitution is in two parts
// by the same code, at the price of what is computed in vain, and the query mix has fewer tokens at a time. Eight multiplying warps share what
// they fetch, and two parts were slower beside them.
constexpr bool SHORT_MIX = KEY_GATE || STATS || NW == 8;
constexpr int PARTS = NW < 8 && (KEY_GATE || STATS || NW == 4) ? 2 : 1, PART = C / PARTS;
constexpr int GRAMS = 2 * 32 * 16 + C * C * 4 + (C - PART) * 4;  // of a chunk: operands P and X as registers, A as floats, padding
constexpr int MIX = C * VB * JP * 4;
constexpr int EARLY_BYTES = STAGE_BYTES - STAGE_EARLY, GIVEN = 2 * WIDE + GATES;  // rates, priors and gates of a chunk
constexpr int AT_EARLY = STAGES * STAGE_EARLY, AT_U = AT_EARLY + 2 * EARLY_BYTES, AT_C = AT_U + WIDE;
constexpr int AT_GRAMS = AT_C + WRITTEN, AT_MIX = AT_GRAMS + 2 * GRAMS, AT_GIVEN = AT_MIX + MIX;
constexpr int RATE = 0, PRIOR = WIDE, STAY = 2 * WIDE;
NEEDS(AT_GIVEN + 2 * GIVEN, ALL_THREADS)

// Among which warps: PREDICTED and WRITTEN_ALL, those that multiply and substitute, at the latter also the one that provides; AMONG_PRODUCTS,
// those that multiply and provide; MIXED and MIX_USED, those that multiply and mix; SHARES, those that substitute and mix; SHARES_USED,
// those that mix and make rates. The last two have a number for odd chunks as well: who announces may be a chunk ahead of who waits.
enum { PREDICTED = 1, WRITTEN_ALL, AMONG_PRODUCTS, MIXED, MIX_USED, SHARES, SHARES_USED = SHARES + 2 };

// The warps of a block, by what they do: multiply, substitute, mix, provide; each role has its numbers from these on. A warp's number modulo
// four is the scheduler that issues its instructions. Those with most to do, and for which the others wait, come first, to the scheduler
// with the least to do. Where eight multiply, all schedulers have three warps, and the order of roles is as good.
enum { SOLVER = NW, MIXER = SOLVER + SOLVERS, PROVIDER = MIXER + MIXERS, ALL_WARPS = ALL_THREADS / 32 };
static_assert(ALL_WARPS <= 16, "numbers of warps have four bits");
constexpr u64 assigned_warps() {
  int instructions[4] = {}, warps[4] = {};
  u64 numbers = 0;
  auto assign = [&](int first, int count, int each) {
    for (int role = first; role < first + count; role++) {
      int to = -1, room_there = 0;
      for (int s = 0; s < 4; s++) {
        const int room = (ALL_WARPS - s + 3) / 4;
        const bool less = to < 0 || instructions[s] < instructions[to] || (instructions[s] == instructions[to] && room < room_there);
        if (warps[s] < room && less) to = s, room_there = room;
      }
      numbers |= (u64)role << 4 * (to + 4 * warps[to]);
      instructions[to] += each, warps[to]++;
    }
  };
  assign(SOLVER, SOLVERS, 1100), assign(MIXER, MIXERS, 650), assign(0, NW, 500), assign(PROVIDER, PROVIDERS, 400);
  return numbers;
}

struct Work {
  Span span;
  i64 head, unit, warp_units, first_unit;  // warps of a head are numbered from first_unit
  int vt, chunks;
};

// The output dim of a lane, where lanes have one each.
struct OutputDim {
  bool alive;
  int dim, warp, column;  // of the block; which multiplying warp has it, and where
  i64 at;                 // of its first mixture, in what a head has
  DEVICE OutputDim(const Work& w, int d)
      : alive(d < VB), dim(alive ? d : 0), warp(dim / DPW), column(dim % DPW), at(w.unit * J * V + w.vt * VB + dim) {}
};
