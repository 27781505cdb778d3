// Gradients of queries, keys and decays with a decay by key dim, all chunks at once, from du, dS and dW of backward.cu. A warp
// works on 32 key dims of one mixture: first the products over the state's columns, then one key dim per lane.
#include "state.cuh"

constexpr int TASKS = KS / 2;                     // warps per mixture
constexpr int UNITS = V / DPW < 1 ? 1 : V / DPW;  // of 32 columns in a head
constexpr int STEPS = DPW / 8;                    // of 8 columns that a mixture has in a unit
constexpr int PAIRS = V / 16;                     // of such steps in a head: a stage of what is fetched has one
static_assert(NW == J * TASKS, "one warp per 32 key dims of a mixture");

// A stage: of every warp W and dW [plane][step], of every mixture c, du and dS [plane][step][8 columns, 16 tokens].
constexpr int WARP_PART = NS * 2 * 512, COLUMNS_PART = NS * 2 * 256;
constexpr int STAGE_COLUMNS = NW * 2 * WARP_PART, STAGE_BYTES = STAGE_COLUMNS + J * 3 * COLUMNS_PART;
// In its place, later: of every warp X_q, X_k, X_e [32 key dims, 16 tokens], of every mixture dA and dP, of every key dim Σ W dW.
constexpr int X_FLOATS = 32 * C, GRAM_ROW = 20, GRAM_FLOATS = C * GRAM_ROW;
constexpr int GRAMS = NW * 3 * X_FLOATS * 4, ACROSS = GRAMS + J * 2 * GRAM_FLOATS * 4, LATER_BYTES = ACROSS + NT * 4;
constexpr int RAW_Q = C * X_ROW, RAW_D = 2 * C * X_ROW, RAW_BYTES = RAW_D + C * J * D_ROW;
// As many blocks per multiprocessor as registers and shared memory allow, so that some compute while others wait for memory.
constexpr int SMALLEST = RAW_BYTES + 1024 + (2 * STAGE_BYTES > LATER_BYTES ? 2 * STAGE_BYTES : LATER_BYTES);
constexpr int BY_REGISTERS = (NS == 1 ? 512 : 256) / NT, BY_SHARED = SHARED_LIMIT / SMALLEST;
constexpr int MOST = BY_REGISTERS < BY_SHARED ? BY_REGISTERS : BY_SHARED, BLOCKS = MOST < 1 ? 1 : MOST;
constexpr int FIT = ((SHARED_LIMIT + 1024) / BLOCKS - 1024 - RAW_BYTES) / STAGE_BYTES;
constexpr int STAGES = FIT >= PAIRS ? PAIRS : FIT < 1 ? 1 : FIT, AHEAD = STAGES == PAIRS || STAGES == 1 ? STAGES : STAGES - 1;
constexpr int RAW_AT = STAGES * STAGE_BYTES > LATER_BYTES ? STAGES * STAGE_BYTES : LATER_BYTES;
NEEDS(RAW_AT + RAW_BYTES, NT)

struct Arguments {
  const TX *q, *k;
  const TD* decay;
  const INDEX* bounds;
  const uint4_ *kept_c, *chunk_du, *chunk_ds, *chunk_W, *chunk_dW;
  TX *dq, *dk;
  TD* ddecay;
  i64 N, T, H;
};

// Matrices of 8 rows in shared memory whose 16-byte pieces are moved, so that neither writes nor reads of them meet in a bank.
DEVICE int state_piece(int i) { return (i & ~7) | ((i & 7) ^ (i >> 3)); }  // rows of 4 pieces
DEVICE int column_piece(int i) { return i ^ (i >> 3); }                    // rows of 2 pieces
// Where four tokens of a key dim are in a tile [32 key dims, 16 tokens].
DEVICE int four_tokens(int place, int four) { return place * C + (four ^ ((place & 2) | ((place >> 2) & 1))) * 4; }
// The products take key dims in the order in which a lane's 16 bytes of the state have them.
DEVICE int dim_of(int place) { return (place >> 1 & 3) * 8 + (place >> 3) * 2 + (place & 1); }

DEVICE A16 load_operand(const char* matrices, int plane) {
  A16 a;
#pragma unroll
  for (int s = 0; s < NS; s++) ldmatrix_t(a.x[s], matrices + s * plane);
  return a;
}
DEVICE void load_operands(B16 (&b)[2], const char* matrices, int plane) {
#pragma unroll
  for (int s = 0; s < NS; s++) {
    u32 d[4];
    ldmatrix_t(d, matrices + s * plane);
    b[0].x[s][0] = d[0], b[0].x[s][1] = d[1], b[1].x[s][0] = d[2], b[1].x[s][1] = d[3];
  }
}

KERNEL void __launch_bounds__(NT, BLOCKS) swila_backward_keys(const Arguments a) {
  SHARED(shared);
  const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
  const int j = warp / TASKS, kk = warp % TASKS;
  const u32 heads = (u32)a.H, head = blockIdx.x % heads, item = blockIdx.x / heads;  // item: the chunk's row of what is kept
  i64 t0;
  int valid;
  if (a.bounds) {
    Span span;
    const i64 chunk = chunk_of(a.bounds, item, a.N, a.T, span);
    if (chunk < 0) return;
    t0 = span.begin + chunk * C;
    valid = span.end - t0 < C ? (int)(span.end - t0) : C;
  } else {
    const u32 per = (u32)((a.T + C - 1) / C), n = item / per;
    const i64 begin = (i64)(item - n * per) * C;
    t0 = n * a.T + begin;
    valid = a.T - begin < C ? (int)(a.T - begin) : C;
  }
  const i64 token = t0 * a.H + head;

  const i64 unit = (i64)blockIdx.x * UNITS;
  const i64 state_from = ((unit * NS * 4 + j * STEPS) * TASKS + kk) * 512 + lane * 16;
  const char *w_from = (const char*)a.chunk_W + state_from, *dw_from = (const char*)a.chunk_dW + state_from;
  const i64 columns_from = unit * NS * 1024 + j * STEPS * 256 + (lane >> 4) * (STEPS == 1 ? NS * 1024 : 256) + (lane & 15) * 16;
  // Of c, du and dS the warps of a mixture share the work: the first has c, the second dS, and du goes to either or a third.
  const char *c_from = (const char*)a.kept_c + columns_from, *du_from = (const char*)a.chunk_du + columns_from;
  const char *ds_from = (const char*)a.chunk_ds + columns_from, *outer_from = kk == 0 ? c_from : ds_from;
  char* state_to = shared + warp * 2 * WARP_PART + state_piece(lane) * 16;
  char* columns_to = shared + STAGE_COLUMNS + j * 3 * COLUMNS_PART + (lane >> 4) * 256 + column_piece(lane & 15) * 16;
  auto fetch = [&](int pair) {
    const int slot = pair % STAGES * STAGE_BYTES;
#pragma unroll
    for (int s = 0; s < NS; s++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int step = 2 * pair + e, from = ((step / STEPS * NS + s) * 4 + step % STEPS) * TASKS * 512;
        char* to = state_to + slot + (s * 2 + e) * 512;
        copy_async(to, w_from + from, true), copy_async(to + WARP_PART, dw_from + from, true);
      }
      const int from = (2 * pair / STEPS * NS + s) * 1024 + 2 * pair % STEPS * 256;
      char* to = columns_to + slot + s * 512;
      if constexpr (TASKS == 1) {
        copy_async(to, c_from + from, true), copy_async(to + COLUMNS_PART, du_from + from, true);
        copy_async(to + 2 * COLUMNS_PART, ds_from + from, true);
      } else {
        if (TASKS == 2 || kk < 2) copy_async(to + (kk == 0 ? 0 : 2 * COLUMNS_PART), outer_from + from, true);
        if (kk == (TASKS == 2 ? (pair + s) % 2 : 2)) copy_async(to + COLUMNS_PART, du_from + from, true);
      }
    }
  };
  {
    const Pieces<1, K * (int)sizeof(TX), X_ROW> keys(a.H * K * sizeof(TX), 0);
    const Pieces<J, K * (int)sizeof(TD), D_ROW> decays(a.H * J * K * sizeof(TD), K * sizeof(TD));
    keys.copy(shared + RAW_AT, a.k + token * K, valid);
    keys.copy(shared + RAW_AT + RAW_Q, a.q + token * K, valid);
    decays.copy(shared + RAW_AT + RAW_D, a.decay + token * J * K, valid);
  }
#pragma unroll
  for (int pair = 0; pair < AHEAD; pair++) {
    fetch(pair);
    copy_commit();
  }

  // X_q = dS W, X_k = du W, X_e = c dW over the mixture's columns; dA = du c^T, dP = dS c^T; and Σ W dW: the diagonal of a
  // product. All but X_e come transposed, so that each operand is needed in one form only.
  constexpr int DP = TASKS == 1;  // dA is for the first of a mixture's warps, dP for the last
  float xq[4][4] = {}, xk[4][4] = {}, xe[4][4] = {}, grams[DP + 1][2][4] = {}, across[4][4] = {};
  {
    const int matrix = lane >> 3, r = lane & 7, low = matrix & 1, high = matrix >> 1;
    const char* w_at = shared + warp * 2 * WARP_PART + high * 512 + state_piece(r * 4 + low) * 16;
    const char* dw_at = shared + warp * 2 * WARP_PART + WARP_PART + low * 512 + state_piece(r * 4 + high) * 16;
    const char* columns = shared + STAGE_COLUMNS + j * 3 * COLUMNS_PART;
    const char* c_at = columns + high * 256 + column_piece(r * 2 + low) * 16;
    const char* du_at = columns + COLUMNS_PART + low * 256 + column_piece(r * 2 + high) * 16;
    const int w_other = (state_piece(r * 4 + low) ^ 2) * 16 - state_piece(r * 4 + low) * 16;
    const int dw_other = (state_piece(r * 4 + high) ^ 2) * 16 - state_piece(r * 4 + high) * 16;
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      const int slot = pair % STAGES * STAGE_BYTES;
      copy_wait<AHEAD - 1>();
      sync_block();
      if (STAGES > 1 && pair + AHEAD < PAIRS) fetch(pair + AHEAD);
      copy_commit();
      const A16 c = load_operand(c_at + slot, 512);
      B16 du[2], ds[2];
      load_operands(du, du_at + slot, 512), load_operands(ds, du_at + slot + COLUMNS_PART, 512);
      if (kk == 0) product(grams[0][0], c, du[0]), product(grams[0][1], c, du[1]);
      if (kk == TASKS - 1) product(grams[DP][0], c, ds[0]), product(grams[DP][1], c, ds[1]);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        const A16 w = load_operand(w_at + slot + m * w_other, 1024);
        B16 dw[2];
        load_operands(dw, dw_at + slot + m * dw_other, 1024);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          product(xq[2 * m + h], w, ds[h]), product(xk[2 * m + h], w, du[h]);
          product(xe[2 * m + h], c, dw[h]), product(across[2 * m + h], w, dw[h]);
        }
      }
      if (STAGES == 1 && pair + 1 < PAIRS) {
        sync_block();
        fetch(pair + 1);
        copy_commit();
      }
    }
  }
  sync_block();
  float *mine = (float*)shared + warp * 3 * X_FLOATS, *da_tile = (float*)(shared + GRAMS) + j * 2 * GRAM_FLOATS;
  float *dp_tile = da_tile + GRAM_FLOATS, *across_tile = (float*)(shared + ACROSS) + warp * 32;
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {  // rows: 8 key dims each, columns: tokens
      const int to = four_tokens(row, i % 2 * 2 + (quad >> 1)) + (i / 2 * 16 + e * 8) * C + (quad & 1) * 2;
      *(float2_*)&mine[to] = {xq[i][2 * e], xq[i][2 * e + 1]};
      *(float2_*)&mine[X_FLOATS + to] = {xk[i][2 * e], xk[i][2 * e + 1]};
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {  // rows: tokens
      const int to = four_tokens(quad * 2 + (e & 1), (e >> 1) * 2 + (row >> 2)) + i * 8 * C + (row & 3);
      mine[2 * X_FLOATS + to] = xe[i][e];
    }
    if (quad == row >> 1) across_tile[i * 8 + row] = row & 1 ? across[i][i % 2 * 2 + 1] : across[i][i % 2 * 2];
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int to = (h * 8 + quad * 2 + (e & 1)) * GRAM_ROW + row + (e >> 1) * 8;
      if (kk == 0) da_tile[to] = grams[0][h][e];
      if (kk == TASKS - 1) dp_tile[to] = grams[DP][h][e];
    }
  sync_block();

  // One key dim per lane. Gradients take the place of X_q, X_k and X_e.
  const int lane_dim = kk * 32 + dim_of(lane), dim = K_PADDED && lane_dim >= K ? 0 : lane_dim;
  const char *k_raw = shared + RAW_AT + dim * sizeof(TX), *d_raw = shared + RAW_AT + RAW_D + j * D_ROW + dim * sizeof(TD);
  float alpha[C], k[C], q[C], flow[C];  // flow: what passes each token's decay, as differences
#pragma unroll
  for (int t = 0; t < C; t++) {
    alpha[t] = ex2(LOG2E * to_float(*(const TD*)(d_raw + t * J * D_ROW)));
    k[t] = to_float(*(const TX*)(k_raw + t * X_ROW)), q[t] = to_float(*(const TX*)(k_raw + RAW_Q + t * X_ROW));
  }
  // What a token reads: of the state, and of keys before it as they have decayed by then. Pairs of an early and a late token
  // are split between the halves of the chunk, so that their decay is in what both have become by there.
  float pre = 1.f, through = 1.f, across_half = 0.f, keys[C], readers[C] = {};
  auto pairs = [&](const float* tile, int t, int s4) { return *(const float4_*)&tile[t * GRAM_ROW + s4 * 4]; };
#pragma unroll
  for (int four = 0; four < 4; four++) {
    float4_ *q_at = (float4_*)&mine[four_tokens(lane, four)], *k_at = (float4_*)&mine[X_FLOATS + four_tokens(lane, four)];
    float4_ dq4 = *q_at, dk4 = *k_at;
    if (four == 2) through = pre, pre = 1.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int t = four * 4 + i;
      const float before = pre;
      pre *= alpha[t];
      const float read = POST ? before : pre, k_here = read * k[t], q_here = pre * q[t];
      float dq = dq4.x[i], dk = dk4.x[i], aside = 0.f, own = 0.f;
      if (four >= 2) {
        dq *= through, dk *= through;
#pragma unroll
        for (int s4 = 0; s4 < 2; s4++) {
          const float4_ da4 = pairs(da_tile, t, s4), dp4 = pairs(dp_tile, t, s4);
#pragma unroll
          for (int x = 0; x < 4; x++) {
            const int s = s4 * 4 + x;
            dq += dp4.x[x] * keys[s], readers[s] += dp4.x[x] * q_here;
            if (POST && s == t - 1) {  // passes no decay
              aside = da4.x[x] * keys[s], across_half = da4.x[x] * k[t];
            } else {
              dk += da4.x[x] * keys[s], readers[s] += da4.x[x] * k_here;
            }
          }
        }
      }
      dq *= pre, dk *= read;
#pragma unroll
      for (int s4 = 0; s4 < 4; s4++) {
        if (s4 < four / 2 * 2 || s4 > four) continue;
        const float4_ da4 = pairs(da_tile, t, s4), dp4 = pairs(dp_tile, t, s4);
#pragma unroll
        for (int x = 0; x < 4; x++) {
          const int s = s4 * 4 + x;
          if (s == t) own = dp4.x[x];
          if (s < t) {
            if (POST && s == t - 1) aside = da4.x[x] * keys[s];
            if (POST && s < t - 1) dk += da4.x[x] * keys[s];
            keys[s] *= alpha[t];
            if (!POST) dk += da4.x[x] * keys[s];
            dq += dp4.x[x] * keys[s];
          }
        }
      }
      keys[t] = k[t];
      flow[t] = q[t] * dq;
      if (!POST) flow[t] += k[t] * dk;
      if (POST && t > 0) flow[t > 0 ? t - 1 : 0] += k[t] * dk, dk += aside;
      dq4.x[i] = dq + own * k[t], dk4.x[i] = dk + own * q[t];
    }
    *q_at = dq4, *k_at = dk4;
  }
  flow[C - 1] += pre * through * across_tile[lane];
  // What is read of it later: at the chunk's end, and by tokens after it, those collected on the way back to it.
  float after = 1.f, beside = 0.f, late[C];
#pragma unroll
  for (int four = 3; four >= 0; four--) {
    float4_* k_at = (float4_*)&mine[X_FLOATS + four_tokens(lane, four)];
    float4_ dk4 = *k_at, e4 = *(const float4_*)&mine[2 * X_FLOATS + four_tokens(lane, four)];
#pragma unroll
    for (int i = 3; i >= 0; i--) {
      const int t = four * 4 + i;
      const float x = after * e4.x[i];
      after *= alpha[t];
      dk4.x[i] += readers[t] + x;
      if (POST && t < C - 1) dk4.x[i] += t == 7 ? across_half : beside;  // of the token after it, which passes no decay
      late[t] = k[t] * x;
      flow[t] -= k[t] * readers[t];
      if (t < C - 1) flow[t] += flow[t < C - 1 ? t + 1 : t];
#pragma unroll
      for (int s4 = 0; s4 < 4; s4++) {
        if (s4 < four / 2 * 2 || s4 * 4 >= t) continue;
        const float4_ da4 = pairs(da_tile, t, s4), dp4 = pairs(dp_tile, t, s4);
#pragma unroll
        for (int y = 0; y < 4; y++) {
          const int s = s4 * 4 + y;
          if (s < t) {
            float sum = readers[s] + dp4.x[y] * q[t];
            if (!POST) sum += da4.x[y] * k[t];
            readers[s] = sum * alpha[t];
            if (POST && s == t - 1) beside = da4.x[y] * k[t];
            if (POST && s < t - 1) readers[s] += da4.x[y] * k[t];
          }
        }
      }
    }
    *k_at = dk4;
  }
  float early = 0.f;
#pragma unroll
  for (int four = 0; four < 4; four++) {
    float4_ x;
#pragma unroll
    for (int i = 0; i < 4; i++) x.x[i] = flow[four * 4 + i] + early, early += late[four * 4 + i];
    *(float4_*)&mine[2 * X_FLOATS + four_tokens(lane, four)] = x;
  }
  sync_block();

  // Two neighbouring key dims of four tokens at a time to memory.
  const i64 next = a.H * K;
  const int place = (lane & 15) * 2;
  auto tokens_of = [&](const float* tile, int place, int four) { return *(const float4_*)&tile[four_tokens(place, four)]; };
  {
    const int d = kk * 32 + dim_of(place);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int four = i * 2 + (lane >> 4);
      const float* from = mine + 2 * X_FLOATS;
      const float4_ x = tokens_of(from, place, four), y = tokens_of(from, place + 1, four);
      TD* to = a.ddecay + token * J * K + four * 4 * next * J + j * K + d;
#pragma unroll
      for (int e = 0; e < 4; e++, to += next * J)
        if (four * 4 + e < valid && (!K_PADDED || d < K)) store2(to, x.x[e], y.x[e]);
    }
  }
#pragma unroll
  for (int from = 0; from < 8 * TASKS; from += 2 * NW) {  // half warps: which gradient, which tokens, which key dims
    const int i = from + 2 * warp + (lane >> 4), part = i % TASKS, four = i / TASKS % 4, which = i / TASKS / 4;
    const int d = part * 32 + dim_of(place);
    if ((8 * TASKS) % (2 * NW) && i >= 8 * TASKS) break;
    const float* x_at = (const float*)shared + part * 3 * X_FLOATS + which * X_FLOATS;
    float4_ x = tokens_of(x_at, place, four), y = tokens_of(x_at, place + 1, four);
#pragma unroll
    for (int m = 1; m < J; m++) {
      const float* tile = x_at + m * TASKS * 3 * X_FLOATS;
      const float4_ z = tokens_of(tile, place, four), w = tokens_of(tile, place + 1, four);
#pragma unroll
      for (int e = 0; e < 4; e++) x.x[e] += z.x[e], y.x[e] += w.x[e];
    }
    TX* to = (which ? a.dk : a.dq) + token * K + four * 4 * next + d;
#pragma unroll
    for (int e = 0; e < 4; e++, to += next)
      if (four * 4 + e < valid && (!K_PADDED || d < K)) store2(to, x.x[e], y.x[e]);
  }
}
