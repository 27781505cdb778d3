"""What a kernel is compiled for: sizes, dtypes and flags of a call, and the numbers of chunks and segments it has."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from swila.ops.call import Inputs, Options, decay_kind

CHUNK, SEGMENT = 16, 512  # tokens per chunk; tokens between states that are kept for the backward
DECAYS = {None: 0, "key": 1, "value": 2, "head": 3}
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "float", torch.int32: "int", torch.int64: "i64"}


class Specialization(NamedTuple):
    """Everything a kernel is compiled for, apart from its number of warps; the macros of ``kernels/layout.cuh``."""

    K: int
    V: int
    J: int
    x_type: str
    """C++ type of q, k and v."""
    b_type: str
    """C++ type of learning rates, logits and gates."""
    d_type: str
    """C++ type of the decay."""
    decay: int
    """Kind of decay, a value of :data:`DECAYS`."""
    post: bool
    """Whether the decay follows the update."""
    normalize: bool
    key_gate: bool
    query_gate: bool
    index_type: str
    """C++ type of the bounds of packed sequences."""
    beta_logits: bool = False
    """Whether the backward returns the gradient of the logits of beta, which is their sigmoid, in place of beta's."""

    @classmethod
    def of(cls, x: Inputs, options: Options) -> Specialization:
        """Return the specialisation for a call; its learning rates, logits and gates share a dtype."""
        J, V = x.beta.shape[3:]
        decay, bounds = x.log_decay, x.cu_seqlens
        return _specialization(
            (int(x.q.shape[3]), int(V), int(J)),
            (x.q.dtype, x.beta.dtype, None if decay is None else decay.dtype),
            None if decay is None else decay_kind(decay),
            options.decay_order == "post",
            options.normalize,
            x.key_gate is not None,
            x.query_gate is not None,
            torch.int64 if bounds is None else bounds.dtype,
        )

    @property
    def planes(self) -> int:
        """Number of bf16 numbers whose sum is an operand of a matrix product."""
        return 1 if self.x_type == "bf16" else 2

    @property
    def key_dims(self) -> int:
        """K, padded to the 32 that a pair of matrix products takes."""
        return max(self.K, 32)

    @property
    def warps(self) -> int:
        """Number of warps that hold the state of one head: 32 columns each, with J padded to a power of two."""
        return max(self.V * (1 << (self.J - 1).bit_length()) // 32, 1)

    @property
    def prepared_bytes(self) -> int:
        """Bytes that ``prepare.cu`` writes for one chunk and head: ``KEY_DECAY_BYTES`` of ``kernels/decay.cuh``."""
        rows = self.planes * CHUNK * (3 * (2 * self.key_dims + 16) + 2 * (2 * CHUNK + 16))
        return self.J * (rows + 4 * self.key_dims + 4 * 4 * 64)

    def defines(self, warps: int, **flags: int) -> dict[str, str]:
        """Return the macros of the sources."""
        values: dict[str, int | str] = {
            "K_DIM": self.K, "V_DIM": self.V, "MIXTURES": self.J, "TX": self.x_type, "TB": self.b_type,
            "TD": self.d_type, "DECAY": self.decay, "POST": int(self.post), "NORMALIZE": int(self.normalize),
            "KEY_GATE": int(self.key_gate), "QUERY_GATE": int(self.query_gate), "BETA_LOGITS": int(self.beta_logits),
            "INDEX": self.index_type, "WARPS": warps, "SEGMENT": SEGMENT, **flags,
        }  # fmt: skip
        return {name: str(value) for name, value in values.items()}


@lru_cache(1024)
def _specialization(
    sizes: tuple[int, int, int],
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    decay: str | None,
    post: bool,
    normalize: bool,
    key_gate: bool,
    query_gate: bool,
    index: torch.dtype,
) -> Specialization:
    x_type, b_type, d_type = (TYPES[dtype or dtypes[0]] for dtype in dtypes)
    return Specialization(
        *sizes, x_type, b_type, d_type, DECAYS[decay], post and decay is not None, normalize, key_gate, query_gate,
        TYPES[index],
    )  # fmt: skip


def num_chunks(x: Inputs) -> int:
    """Return the number of rows with one chunk each, see :func:`_num_rows`."""
    return _num_rows(x, CHUNK)


def num_segments(x: Inputs) -> int:
    """Return the number of rows with one segment each, see :func:`_num_rows`."""
    return _num_rows(x, SEGMENT)


def _num_rows(x: Inputs, tokens: int) -> int:
    """Return the number of rows, one for each block of ``tokens`` tokens of a sequence.

    In packed sequences, whose bounds fall anywhere, rows are numbered by their first token and their sequence, and some
    stay empty.
    """
    B, T = x.q.shape[:2]
    return B * -(-T // tokens) if x.cu_seqlens is None else T // tokens + x.num_sequences
