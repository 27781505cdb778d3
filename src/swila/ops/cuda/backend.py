"""The kernels as a backend: what each call allocates, and the arguments of each launch by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from swila.ops.backends import Backend
from swila.ops.call import PER_TOKEN, STATE, Inputs, Options, Problem, Results, empty_results
from swila.ops.cuda.arguments import Value
from swila.ops.cuda.compiler import GpuLauncher
from swila.ops.cuda.specialization import CHUNK, DECAYS, Specialization, num_chunks, num_segments
from swila.ops.cuda.table import KERNELS, SUM_WARPS, backward_kernel, forward_kernel

SIZES = (16, 32, 64, 128)
SAME_DTYPE = ("beta", "key_logits", "query_logits", "key_gate", "query_gate")  # the kernels' type TB


class Launcher(Protocol):
    """Compiles a kernel for a specialisation and launches it."""

    def __call__(
        self, kernel: str, spec: Specialization, stats: bool, units: int, arguments: Mapping[str, Value], device: int
    ) -> None:
        """Launch a kernel on the current stream of a device.

        Args:
            kernel: Name of the kernel in the table.
            spec: What the kernel is compiled for.
            stats: Whether it computes the routing statistics, or their gradients.
            units: Number of units of the grid, times heads; each takes :meth:`blocks` blocks.
            arguments: Values of the fields of the kernel's ``struct Arguments``.
            device: Index of the device, -1 for the CPU.
        """

    def blocks(self, kernel: str, spec: Specialization, stats: bool, units: int, device: int) -> int:
        """Return the number of blocks per unit and head, of a launch with this number of units times heads."""

    def processors(self, device: int) -> int:
        """Return the number of multiprocessors of a device."""


def prepared(x: Inputs) -> Inputs:
    """Return the tensors as the kernels take them: dense, aligned, and with one dtype for all of :data:`SAME_DTYPE`.

    Inputs that need no change are returned as they are.
    """
    dtype = x.beta.dtype
    if any(t is not None and t.dtype != dtype for t in (x.key_logits, x.query_logits, x.key_gate, x.query_gate)):
        x = x._replace(**{name: t.float() for name in SAME_DTYPE if (t := getattr(x, name)) is not None})
    if all(t is None or (t.is_contiguous() and t.data_ptr() % 16 == 0) for t in x):
        return x
    return Inputs.of(None if t is None else _dense(t) for t in x)


def _dense(t: Tensor) -> Tensor:
    """Return the tensor, or a copy of it if it is not contiguous or not aligned to 16 bytes."""
    if t.is_contiguous():
        return t if t.data_ptr() % 16 == 0 else t.detach().clone()
    return t.detach().contiguous()


def saved_like(x: Inputs, options: Options) -> list[Tensor]:
    """Return empty tensors of the shapes that the forward keeps for the backward.

    They are the states at the ends of segments, what every token wrote (c) and, with a temporal gate, r and rho at the
    start of every chunk and r in its middle, all in the order of the kernels' registers.
    """
    return _kept_like(x, Specialization.of(x, options))


def _kept_like(x: Inputs, spec: Specialization) -> list[Tensor]:
    H, chunks = x.q.shape[2], num_chunks(x)
    kept = [
        x.q.new_empty((num_segments(x), H, spec.warps, 32 * spec.key_dims), dtype=torch.float32),
        x.q.new_empty((chunks, H, spec.warps, spec.planes, 32, CHUNK), dtype=torch.bfloat16),
    ]
    if spec.key_gate or spec.query_gate:
        kept.append(x.q.new_empty((chunks, H, spec.warps, 3, 32), dtype=torch.float32))
    return kept


class Kernels:
    """Forward, backward and step by a launcher: that of the GPU, or one that emulates it."""

    def __init__(self, launch: Launcher) -> None:
        self.launch = launch

    def _run(self, kernel: str, x: Inputs, spec: Specialization, stats: bool, arguments: Mapping[str, Value]) -> None:
        units = KERNELS[kernel].units(x) * x.q.shape[2]
        self.launch(kernel, spec, stats, units, arguments, _index(x))

    def forward(self, x: Inputs, options: Options, save: bool) -> tuple[Results, list[Tensor]]:
        """Run the forward; with ``save`` also return what the backward needs."""
        x = prepared(x)
        spec, stats = Specialization.of(x, options), options.routing_stats
        results, kept = empty_results(x, options), _kept_like(x, spec) if save else []
        kept_W, kept_c, kept_mix = _three(kept)
        B, T, H, _ = x.q.shape
        N = x.num_sequences
        sums = x.q.new_empty((4, N, H, spec.J, spec.V), dtype=torch.float32) if stats else None
        arguments = _token_inputs(x) | {
            "prepared": self._prepare(x, spec), "W": x.W, "r": x.r, "rho": x.rho, "bounds": x.cu_seqlens,
            "out": results.output, "W_out": results.W, "r_out": results.r, "rho_out": results.rho, "stats": sums,
            "kept_W": kept_W, "kept_c": kept_c, "kept_mix": kept_mix, "N": N, "T": T, "H": H,
        }  # fmt: skip
        self._run(forward_kernel(spec), x, spec, stats, arguments)
        if sums is not None:
            _means(results, sums, B * T)
        return results, kept

    def _prepare(self, x: Inputs, spec: Specialization) -> Tensor | None:
        """Return the decayed keys and queries of every chunk as operands; None without a decay per key dim."""
        if spec.decay != DECAYS["key"]:
            return None
        T, H = x.q.shape[1:3]
        ready = x.q.new_empty((num_chunks(x), H, spec.prepared_bytes // 2), dtype=torch.bfloat16)
        arguments = {
            "q": x.q, "k": x.k, "decay": x.log_decay, "bounds": x.cu_seqlens, "prepared": ready, "N": x.num_sequences,
            "T": T, "H": H,
        }  # fmt: skip
        self._run("prepare", x, spec, False, arguments)
        return ready

    def _states(self, x: Inputs, spec: Specialization, ready: Tensor | None, kept: list[Tensor]) -> Tensor | None:
        """Return the state at the start of every chunk as operands; None without a decay."""
        if x.log_decay is None:
            return None
        T, H = x.q.shape[1:3]
        shape = (*kept[1].shape[:3], 32 * spec.key_dims * spec.planes)
        chunk_W = x.q.new_empty(shape, dtype=torch.bfloat16)
        arguments = {
            "k": x.k, "decay": x.log_decay, "prepared": ready, "W": x.W, "bounds": x.cu_seqlens, "kept_W": kept[0],
            "kept_c": kept[1], "chunk_W": chunk_W, "N": x.num_sequences, "T": T, "H": H,
        }  # fmt: skip
        self._run("states", x, spec, False, arguments)
        return chunk_W

    def backward(
        self, x: Inputs, options: Options, kept: list[Tensor], grads: Results, beta_logits: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradients of all floating inputs, by name.

        With ``beta_logits``, ``beta`` is the sigmoid of its logits, and their gradient takes the place of its own.
        """
        given, x = x, prepared(x)
        spec = Specialization.of(x, options)
        by_key, by_head = spec.decay == DECAYS["key"], spec.decay == DECAYS["head"]
        B, T, H, K = x.q.shape
        N = x.num_sequences
        ready = self._prepare(x, spec)
        chunk_W = self._states(x, spec, ready, kept)
        out = {name: torch.empty_like(t) for name in PER_TOKEN if (t := getattr(x, name)) is not None}
        state = {name: torch.empty_like(t) for name in STATE if (t := getattr(x, name)) is not None}
        ddecay = out.get("log_decay")
        if by_head:  # parts, one for each output dim
            ddecay = x.q.new_empty((B, T, H, spec.J, spec.V, 1), dtype=torch.float32)
        kernel = backward_kernel(spec, N * H, self.launch.processors(_index(x)))
        adjoint = spec._replace(beta_logits=beta_logits)  # of the main kernel; those before and after do not differ
        chunk_du = chunk_ds = chunk_dW = parts = None
        stats = any(grad is not None for grad in grads.routing)
        if by_key:
            assert chunk_W is not None
            chunk_du, chunk_ds, chunk_dW = (torch.empty_like(t) for t in (kept[1], kept[1], chunk_W))
        elif (blocks := self.launch.blocks(kernel, adjoint, stats, N * H, _index(x))) > 1:
            exact = torch.bfloat16 if spec.x_type == "bf16" else torch.float32  # PARTIAL of the kernel
            parts = x.q.new_empty((2, blocks, B, T, H, K), dtype=exact)
        kept_W, kept_c, kept_mix = _three(kept)
        dW_out, dr_out, drho_out = (None if g is None else _dense(g) for g in grads.final)
        shared = {"bounds": x.cu_seqlens, "decay": x.log_decay, "N": N, "T": T, "H": H}
        arguments = _token_inputs(x) | shared | {
            "dout": torch.zeros_like(x.v) if grads.output is None else _dense(grads.output),
            "dW_out": dW_out, "dr_out": dr_out, "drho_out": drho_out, "dstats": _stats_gradients(grads, x),
            "kept_W": kept_W, "kept_c": kept_c, "kept_mix": kept_mix, "prepared": ready,
            "chunk_W": chunk_W, "chunk_du": chunk_du, "chunk_ds": chunk_ds, "chunk_dW": chunk_dW,
            "dq": out["q"], "dk": out["k"], "partial": parts, "dv": out["v"], "dbeta": out["beta"],
            "dkey_logits": out["key_logits"], "dquery_logits": out["query_logits"],
            "dkey_gate": out.get("key_gate"), "dquery_gate": out.get("query_gate"), "ddecay": ddecay,
            "dW_in": state.get("W"), "dr_in": state.get("r"), "drho_in": state.get("rho"),
        }  # fmt: skip
        self._run(kernel, x, adjoint, stats, arguments)
        if parts is not None:
            out["q"], out["k"] = self._sum(parts, x, spec)
        if by_key:
            arguments = shared | {
                "q": x.q, "k": x.k, "kept_c": kept_c, "chunk_du": chunk_du, "chunk_ds": chunk_ds, "chunk_W": chunk_W,
                "chunk_dW": chunk_dW, "dq": out["q"], "dk": out["k"], "ddecay": out["log_decay"],
            }  # fmt: skip
            self._run("backward_keys", x, spec, False, arguments)
        if by_head:
            assert ddecay is not None
            out["log_decay"] = ddecay.sum(4, keepdim=True)
        out |= state
        return {name: grad.to(getattr(given, name).dtype) for name, grad in out.items()}

    def _sum(self, parts: Tensor, x: Inputs, spec: Specialization) -> Tensor:
        """Return the sums over dim 1 of ``parts [2, blocks, B, T, H, K]``."""
        if parts.dtype != torch.bfloat16:
            return parts.sum(1)
        sums = x.q.new_empty((2, *x.q.shape), dtype=parts.dtype)
        pieces = x.q.numel() // 8
        arguments: dict[str, Value] = {"parts": parts, "sums": sums, "count": parts.shape[1], "pieces": pieces}
        self.launch("sum_parts", spec, False, -(-2 * pieces // (32 * SUM_WARPS)), arguments, _index(x))
        return sums

    def step(self, x: Inputs, options: Options, alive: Tensor | None = None, inplace: bool = False) -> Results:
        """Run one token, without gradients; ``inplace`` writes the new state of the alive rows over the old one."""
        results = Results(x.v.new_empty(x.v.shape))  # dense, whatever the strides of v
        if inplace:
            results = results._replace(W=x.W, r=x.r, rho=x.rho)
        elif options.return_state:
            results = empty_results(x, options)
        x = prepared(x)
        arguments = _token_inputs(x) | {
            "W": x.W, "r": x.r, "rho": x.rho, "out": results.output, "W_out": results.W, "r_out": results.r,
            "rho_out": results.rho, "alive": 0 if alive is None else alive.data_ptr(), "H": x.q.shape[2],
        }  # fmt: skip
        self._run("step", x, Specialization.of(x, options), False, arguments)
        return results if options.return_state else Results(results.output)


def _three(kept: list[Tensor]) -> list[Tensor | None]:
    return [*kept, *[None] * (3 - len(kept))]


def _index(x: Inputs) -> int:
    index = x.q.device.index
    return -1 if index is None else index


def _token_inputs(x: Inputs) -> dict[str, Value]:
    return {
        "q": x.q, "k": x.k, "v": x.v, "beta": x.beta, "key_logits": x.key_logits, "query_logits": x.query_logits,
        "key_gate": x.key_gate, "query_gate": x.query_gate, "decay": x.log_decay,
    }  # fmt: skip


def _means(results: Results, sums: Tensor, tokens: int) -> None:
    """Write the means of the statistics over all tokens into the results."""
    usage_k, entropy_k, usage_q, entropy_q = sums.sum(1) / tokens
    for mean, value in zip(results.routing, (usage_k, entropy_k.sum(1), usage_q, entropy_q.sum(1)), strict=True):
        assert mean is not None
        mean.copy_(value)


def _stats_gradients(grads: Results, x: Inputs) -> Tensor | None:
    """Return the gradients of the statistics as one ``[4, H, J, V]``, per token; None where nothing depends on them."""
    if all(grad is None for grad in grads.routing):
        return None
    like = x.q.new_zeros(x.beta.shape[2:], dtype=torch.float32)
    parts = [like if g is None else g if g.ndim == 3 else g[:, None].expand_as(like) for g in grads.routing]
    return torch.stack(parts) / (x.q.shape[0] * x.q.shape[1])


def operand_bits(dtype: torch.dtype) -> int:
    """Return the precision of the operands of matrix products in bits: that of bf16, or of a sum of two of them."""
    return 8 if dtype == torch.bfloat16 else 16


@cache
def _unusable() -> str | None:
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "it needs an NVIDIA GPU"
    if torch.cuda.get_device_capability() < (8, 0):
        return "it needs an NVIDIA GPU of compute capability 8.0 or newer"
    if not find_spec("cuda") or not find_spec("cuda.core"):
        return "cuda-core is not installed: pip install 'swila[cuda]'"
    return None


def _refuses(problem: Problem) -> str | None:
    if problem.device != "cuda":
        return f"it runs on an NVIDIA GPU, the tensors are on {problem.device}"
    return unsupported(problem)


def unsupported(problem: Problem) -> str | None:
    """Return why no kernel serves a problem, whatever its device, or None."""
    if problem.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its inputs are bfloat16, float16 or float32, got {problem.dtype}"
    for name in ("K", "V"):
        if getattr(problem, name) not in SIZES:
            return f"{name} must be one of {', '.join(map(str, SIZES))}, got {getattr(problem, name)}"
    if problem.J > 16:
        return f"it has up to 16 mixtures, got J = {problem.J}"
    if problem.decay == "key" and problem.J > 4:
        return f"with a decay per key dim it has up to 4 mixtures, got J = {problem.J}"
    if problem.decay == "key" and problem.K == 128 and problem.J > 2 and operand_bits(problem.dtype) > 8:
        return f"with a decay per key dim and K = 128 in {problem.dtype} it has up to 2 mixtures, got J = {problem.J}"
    return None


_kernels = Kernels(GpuLauncher())
BACKEND = Backend(
    name="cuda",
    summary="the exact blocked algorithm in CUDA C++, compiled at first use",
    forward=_kernels.forward,
    backward=_kernels.backward,
    backward_of_logits=partial(_kernels.backward, beta_logits=True),
    saved_like=saved_like,
    step=_kernels.step,
    step_inplace=partial(_kernels.step, inplace=True),
    step_takes_alive=True,
    step_has_gradients=False,
    capturable=True,
    unusable=_unusable,
    refuses=_refuses,
    operand_bits=operand_bits,
)
