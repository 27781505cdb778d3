// Shared memory of the backward in which every warp does all of the work on its columns.
#pragma once

constexpr bool LANE_MIX = QUERY_GATE || STATS || BY_COLUMN;  // the query side is done by the lanes that own the columns
constexpr int STAGE_READY = 0, STAGE_K = KEY_DECAY_BYTES, STAGE_Q = STAGE_K + !BY_KEY * C * X_ROW;
constexpr int STAGE_O = STAGE_Q + !BY_KEY * C * X_ROW, STAGE_BETA = STAGE_O + C * V_ROW;
constexpr int STAGE_LK = STAGE_BETA + C * J * B_ROW, STAGE_LQ = STAGE_LK + C * LK_TOKEN;
constexpr int STAGE_GK = STAGE_LQ + C * BY_TOKEN, STAGE_GQ = STAGE_GK + KEY_GATE * C * B_ROW;
constexpr int STAGE_V = STAGE_GQ + QUERY_GATE * C * B_ROW, STAGE_C = STAGE_V + C * V_ROW, STAGE_D = STAGE_C;
constexpr int STAGE_BYTES = DECAY ? STAGE_D + !BY_KEY * DECAY_TILE : STAGE_C + NW * NS * PAIR_PLANE;
// Tiles of a warp: exchange between layouts, and operands; later, in the same memory, its part of dq and dk.
constexpr int WARP_U = 0, WARP_DU = WARP_U + C * U_ROW * 4, WARP_DS = WARP_DU + NS * PAIR_PLANE;
constexpr int WARP_ERROR = WARP_DS + NS * PAIR_PLANE, WARP_R = WARP_ERROR + !BY_COLUMN * C * U_ROW * 4;
constexpr int WARP_PRIOR = WARP_R + !BY_COLUMN * C * U_ROW * 4;
constexpr int EXCHANGE_BYTES = WARP_PRIOR + (!BY_COLUMN && (KEY_GATE || !NORMALIZE)) * C * U_ROW * 4, SUM_BYTES = BY_KEY ? 0 : 2 * C * SUM_ROW * 4;
constexpr int WARP_A = EXCHANGE_BYTES > SUM_BYTES ? EXCHANGE_BYTES : SUM_BYTES;
constexpr bool W_SHARED = KP > 64 && !DECAY;  // two states are too much for the registers
constexpr int GRAM_STEPS = 1;  // of the products that are unrolled
constexpr int WARP_C = WARP_A + (BY_COLUMN ? 2 * C * C : 2 * 64) * 4, WARP_W = WARP_C + BY_COLUMN * NS * PAIR_PLANE;
constexpr int WARP_BYTES = WARP_W + W_SHARED * 2 * KT * 512;
constexpr int OPERANDS = RAW || BY_KEY ? 0 : 2 * NS * OPERAND_TILE;
constexpr int FIXED_BYTES = NW * WARP_BYTES + OPERANDS;
constexpr int STAGES = FIXED_BYTES + 2 * STAGE_BYTES <= SHARED_LIMIT ? 2 : 1;
NEEDS(STAGES * STAGE_BYTES + FIXED_BYTES, NT)
