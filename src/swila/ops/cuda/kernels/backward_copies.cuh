// Copies between memory and the tiles of the backward in which every warp does all of the work on its columns.
#pragma once
#include "backward.cuh"

// Start copying the inputs of a chunk, and c without a decay, into a stage; zeros for a chunk before the first.
DEVICE void fetch_stage(const Arguments& a, const Work& w, char* s, i64 chunk, const Place& p) {
  const int valid = w.valid(chunk);
  const ChunkPieces pieces(w.H, thread_again());
  i64 row = (w.span.begin + chunk * C) * w.H + w.head, wide = row * J * V + w.vt * VB, narrow = row * V + w.vt * VB;
  if constexpr (BY_KEY) {
    fetch_prepared(s + STAGE_READY, a.prepared, chunk < 0 ? 0 : chunk_row(a.bounds, w.span, chunk, w.T) * w.H + w.head, chunk >= 0);
  } else {
    pieces.keys.copy(s + STAGE_K, a.k + row * K, valid);
    pieces.keys.copy(s + STAGE_Q, a.q + row * K, valid);
  }
  pieces.values.copy(s + STAGE_O, a.dout + narrow, valid);
  pieces.values.copy(s + STAGE_V, a.v + narrow, valid);
  pieces.rates.copy(s + STAGE_BETA, a.beta + wide, valid);
  pieces.key_logits.copy(s + STAGE_LK, a.key_logits + wide, valid);
  pieces.query_logits.copy(s + STAGE_LQ, a.query_logits + wide, valid);
  if (KEY_GATE) pieces.gates.copy(s + STAGE_GK, a.key_gate + narrow, valid);
  if (QUERY_GATE) pieces.gates.copy(s + STAGE_GQ, a.query_gate + narrow, valid);
  if constexpr (BY_COLUMN) {
    fetch_decay(pieces.decays, s + STAGE_D, a.decay, row, w.vt, valid);
  } else if constexpr (!BY_KEY) {
    const uint4_* c = a.kept_c + (chunk < 0 ? 0 : w.chunk_unit(a, chunk) * NS * 64 + p.lane);
#pragma unroll
    for (int i = 0; i < NS * 2; i++)
      copy_async(s + STAGE_C + (p.warp * NS + i / 2) * PAIR_PLANE + pair_row(i % 2 * 16 + p.lane / 2) + p.lane % 2 * 16, c + i * 32, chunk >= 0);
  }
  copy_commit();
}
// Store the gradients, which have replaced inputs in their tiles; `row` is the number of the chunk's first token and head.
DEVICE void flush_gradients(const ChunkPieces& pieces, const Arguments& a, const char* s, i64 row, int vt, int valid) {
  const i64 wide = row * J * V + vt * VB, narrow = row * V + vt * VB;
  pieces.rates.flush(a.dbeta + wide, s + STAGE_BETA, valid);
  pieces.key_logits.flush(a.dkey_logits + wide, s + STAGE_LK, valid);
  pieces.query_logits.flush(a.dquery_logits + wide, s + STAGE_LQ, valid);
  pieces.values.flush(a.dv + narrow, s + STAGE_O, valid);
  if constexpr (DECAY == 2) pieces.decays.flush((TD*)a.ddecay + wide, s + STAGE_D, valid);
  if (KEY_GATE) pieces.gates.flush(a.dkey_gate + narrow, s + STAGE_GK, valid);
  if (QUERY_GATE) pieces.gates.flush(a.dquery_gate + narrow, s + STAGE_GQ, valid);
}
