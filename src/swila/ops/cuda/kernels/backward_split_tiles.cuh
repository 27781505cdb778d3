// Shared memory of the backward in which some warps recover the states and others run the adjoint. Both roles have tiles of keys,
// queries and what is in tiles of the same place in both; the inputs of one role follow.
#pragma once

constexpr bool LANE_MIX = false;  // a mix that is blended over time has a file of its own, backward_mix.cuh
constexpr int STAGE_K = 0, STAGE_Q = STAGE_K + C * X_ROW, STAGE_O = STAGE_Q + C * X_ROW, STAGE_LK = STAGE_O + C * V_ROW;
constexpr int STAGE_GK = STAGE_LK + C * LK_TOKEN, STAGE_OWN = STAGE_GK + KEY_GATE * C * B_ROW;
constexpr int STAGE_V = STAGE_OWN, STAGE_LQ = STAGE_V + C * V_ROW, STAGE_GQ = STAGE_LQ + C * BY_TOKEN;  // of the states
constexpr int STAGE_BETA = STAGE_OWN;                                                                // of the adjoint
constexpr int STATE_STAGE = STAGE_GQ + QUERY_GATE * C * B_ROW, ADJOINT_STAGE = STAGE_BETA + C * J * B_ROW;
// What the states give to the adjoint: for each warp errors, responsibilities, priors, dS and the state as operands.
constexpr bool WITH_PRIOR = KEY_GATE || !NORMALIZE;
constexpr int GIVEN_ERROR = 0, GIVEN_R = GIVEN_ERROR + C * U_ROW * 4, GIVEN_PRIOR = GIVEN_R + C * U_ROW * 4;
constexpr int GIVEN_DS = GIVEN_PRIOR + WITH_PRIOR * C * U_ROW * 4, GIVEN_W = GIVEN_DS + PAIR_PLANE;
// Before the state is there, its memory holds what the tokens read, where the mix is blended over time.
constexpr int READS = QUERY_GATE * C * U_ROW * 4, GIVEN_WARP = GIVEN_W + (KT * 512 > READS ? KT * 512 : READS);
// For all warps the Gram matrices: the transpose of P, A of late readers and early writers, and the diagonal blocks of A.
constexpr int GIVEN_P = NW * GIVEN_WARP, GIVEN_CROSS = GIVEN_P + 512, GIVEN_A = GIVEN_CROSS + 128, GIVEN_BYTES = GIVEN_A + 2 * 64 * 4;
// Tiles of a warp: exchange between layouts, and operands; later, in the same memory, its part of dq or dk.
constexpr int SUM_BYTES = C * SUM_ROW * 4;
constexpr int WARP_U = 0, WARP_DU = 8 * U_ROW * 4, ADJOINT_EXCHANGE = WARP_DU + PAIR_PLANE;
constexpr int WARP_MIX = 0, WARP_MIX_PRIOR = WARP_MIX + (C + 1) * U_ROW * 4, STATE_EXCHANGE = WARP_MIX_PRIOR + C * U_ROW * 4;
constexpr int STATE_WARP = QUERY_GATE && STATE_EXCHANGE > SUM_BYTES ? STATE_EXCHANGE : SUM_BYTES;
constexpr int ADJOINT_WARP = ADJOINT_EXCHANGE > SUM_BYTES ? ADJOINT_EXCHANGE : SUM_BYTES;
constexpr int AT_ADJOINT_STAGE = 2 * STATE_STAGE, AT_STATE_WARPS = AT_ADJOINT_STAGE + 2 * ADJOINT_STAGE;
constexpr int AT_ADJOINT_WARPS = AT_STATE_WARPS + NW * STATE_WARP, AT_GIVEN = AT_ADJOINT_WARPS + NW * ADJOINT_WARP;
constexpr int GIVENS = AT_GIVEN + 2 * GIVEN_BYTES <= SHARED_LIMIT ? 2 : 1;  // how far the states may be ahead
constexpr bool W_SHARED = false;
constexpr int GRAM_STEPS = KS;  // of the products that are unrolled
constexpr int ALL_THREADS = 2 * NT;
NEEDS(AT_GIVEN + GIVENS * GIVEN_BYTES, ALL_THREADS)
