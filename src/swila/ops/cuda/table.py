"""The table of kernels: what the grid of each runs over, its warps per block, and its blocks per head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swila.ops.call import Inputs
from swila.ops.cuda.specialization import Specialization, num_chunks, num_segments

SUM_WARPS = 8  # warps per block of ``sum_parts``, whose threads have 8 numbers each


def _num_sequences(x: Inputs) -> int:
    return x.num_sequences


def _state_warps(spec: Specialization) -> int:
    return min(spec.warps, 8)


def _split_warps(spec: Specialization) -> int:
    return min(spec.warps, 8 if spec.J > 2 else 4)  # a block of up to 64 output dims has 13 warps in all


def _state_blocks(spec: Specialization, warps: int) -> int:
    return spec.warps // warps


@dataclass(frozen=True)
class Kernel:
    """A kernel: function ``swila_<name>`` in ``kernels/<name>.cu``.

    Attributes:
        name: Name of the source.
        units: Number of units that the grid runs over, for each head: sequences, chunks or segments of a call.
        warps: Largest number of warps per block.
        blocks: Number of blocks per unit and head, for a number of warps per block.
        fewer_warps: Whether a block may have half as many warps, and half again, where shared memory is short.
        spreads: Whether blocks have fewer warps also where multiprocessors would otherwise be idle.
    """

    name: str
    units: Callable[[Inputs], int] = _num_sequences
    warps: Callable[[Specialization], int] = _state_warps
    blocks: Callable[[Specialization, int], int] = _state_blocks
    fewer_warps: bool = True
    spreads: bool = False

    def most_warps(self, spec: Specialization, units: int, processors: int) -> int:
        """Return the number of warps per block to start from.

        Args:
            spec: What the kernel is compiled for.
            units: Number of units of the grid, times heads.
            processors: Number of multiprocessors of the device.
        """
        warps = self.warps(spec)
        while self.spreads and warps > 1 and 2 * units * self.blocks(spec, warps) <= processors:
            warps //= 2
        return warps


def _one_block(spec: Specialization, warps: int) -> int:
    return 1


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("forward"),
        Kernel("forward_pipelined"),
        Kernel("forward_split", warps=_split_warps, spreads=True),
        Kernel("backward"),
        Kernel("backward_split", warps=lambda spec: min(spec.warps, 4), spreads=True),
        Kernel("sum_parts", warps=lambda spec: SUM_WARPS, blocks=_one_block, fewer_warps=False),
        Kernel("states", num_segments),
        Kernel("prepare", num_chunks, lambda spec: 8, _one_block),
        Kernel("backward_keys", num_chunks, lambda spec: spec.J * spec.key_dims // 32, _one_block, fewer_warps=False),
        Kernel(
            "step",
            warps=lambda spec: min(spec.K * spec.V // 128, 4),
            blocks=lambda spec, warps: spec.K * spec.V // (128 * warps),
        ),
    )
}


def forward_kernel(spec: Specialization) -> str:
    """Return the name of the forward kernel for a specialisation: bf16 without a decay has two of its own."""
    if spec.x_type != "bf16" or spec.decay:
        return "forward"
    return "forward_split" if 2 <= spec.J <= 4 else "forward_pipelined"


def backward_kernel(spec: Specialization, units: int, processors: int) -> str:
    """Return the name of the backward kernel.

    With few sequences and heads, bf16 without a decay has one of its own, whose blocks are shorter and more.

    Args:
        spec: What the kernel is compiled for.
        units: Number of sequences times heads.
        processors: Number of multiprocessors of the device.
    """
    served = spec.x_type == "bf16" and not spec.decay and 2 <= spec.J <= 4 and spec.K <= 64 and spec.warps > 1
    return "backward_split" if served and 2 * units <= processors else "backward"
