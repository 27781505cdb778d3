"""Which kernel serves a call: the sizes and flags it is compiled for, and the shapes of what it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swila.ops.call import Inputs, Options, decay_kind

CHUNK, SEGMENT = 16, 512  # tokens per chunk; tokens between states that are kept for the backward
DECAYS = {None: 0, "key": 1, "value": 2, "head": 3}
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "float", torch.int32: "int", torch.int64: "i64"}


@dataclass(frozen=True)
class Layout:
    """How warps and registers hold a state ``[J, V, K]``; the same facts as in ``kernels/layout.cuh``."""

    K: int
    V: int
    J: int

    @property
    def key_dims(self) -> int:
        """K padded to the 32 that a pair of matrix steps takes."""
        return max(self.K, 32)

    @property
    def warps(self) -> int:
        """Warps that share one head: each has 32 columns, J rounded up to a power of two times some output dims."""
        padded = 1 << (self.J - 1).bit_length()
        return max(self.V * padded // 32, 1)


@dataclass(frozen=True)
class Specialization:
    """Everything a kernel is compiled for."""

    layout: Layout
    x_type: str
    b_type: str
    d_type: str
    decay: int
    post: bool
    normalize: bool
    key_gate: bool
    query_gate: bool
    index: str

    @classmethod
    def of(cls, x: Inputs, options: Options) -> Specialization:
        """For a call whose tensors are as the kernels take them."""
        return cls(
            Layout(x.q.shape[3], *reversed(x.beta.shape[3:])),
            TYPES[x.q.dtype],
            TYPES[x.beta.dtype],
            TYPES[x.q.dtype if x.log_decay is None else x.log_decay.dtype],
            DECAYS[None if x.log_decay is None else decay_kind(x.log_decay)],
            options.decay_order == "post" and x.log_decay is not None,
            options.normalize,
            x.key_gate is not None,
            x.query_gate is not None,
            TYPES[torch.int64 if x.cu_seqlens is None else x.cu_seqlens.dtype],
        )

    @property
    def planes(self) -> int:
        """How many bf16 numbers an operand of a matrix product is the sum of."""
        return 1 if self.x_type == "bf16" else 2

    @property
    def forward_kernel(self) -> str:
        """The kernel that runs it forward."""
        if self.x_type != "bf16" or self.decay:
            return "forward"
        return "forward_split" if 2 <= self.layout.J <= 4 else "forward_pipelined"

    @property
    def prepared_bytes(self) -> int:
        """What ``kernels/prepare.cu`` makes of one chunk and head: the ``KEY_DECAY_BYTES`` of ``kernels/decay.cuh``."""
        rows = self.planes * CHUNK * (3 * (2 * self.layout.key_dims + 16) + 2 * (2 * CHUNK + 16))
        return self.layout.J * (rows + 4 * self.layout.key_dims + 4 * 4 * 64)

    def most_warps(self, kernel: str) -> int:
        """How many warps of a kernel may share a block."""
        if kernel == "backward_keys":
            return self.layout.J * self.layout.key_dims // 32
        if kernel == "prepare":
            return 8
        if kernel == "step":
            return min(self.layout.K * self.layout.V // 128, 4)
        return min(self.layout.warps, 8)

    def blocks(self, kernel: str, warps: int) -> int:
        """How many blocks a head takes with so many warps each."""
        if kernel == "step":
            return self.layout.K * self.layout.V // (128 * warps)
        return 1 if kernel in ("backward_keys", "prepare") else self.layout.warps // warps

    def defines(self, warps: int, **flags: int) -> dict[str, str]:
        """The macros of the sources."""
        layout = self.layout
        values: dict[str, int | str] = {
            "K_DIM": layout.K, "V_DIM": layout.V, "MIXTURES": layout.J, "TX": self.x_type, "TB": self.b_type,
            "TD": self.d_type, "DECAY": self.decay, "POST": int(self.post), "NORMALIZE": int(self.normalize),
            "KEY_GATE": int(self.key_gate), "QUERY_GATE": int(self.query_gate), "INDEX": self.index, "WARPS": warps,
            "SEGMENT": SEGMENT, **flags,
        }  # fmt: skip
        return {name: str(value) for name, value in values.items()}
