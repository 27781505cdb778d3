"""The kernels as a backend: what goes into each launch, in the order of its ``Arguments``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from swila.ops.backends import Backend
from swila.ops.call import PER_TOKEN, STATE, Inputs, Options, Problem, Results, decay_kind, empty_results
from swila.ops.cuda.compiler import GpuLauncher
from swila.ops.cuda.specialization import CHUNK, DECAYS, SEGMENT, Specialization

SIZES = (16, 32, 64, 128)
GATED = ("beta", "key_logits", "query_logits", "key_gate", "query_gate")


class Launcher(Protocol):
    """Compiles a kernel for a specialisation and launches it, one block per so many units of the grid."""

    def __call__(
        self,
        kernel: str,
        spec: Specialization,
        flags: dict[str, int],
        heads: int,
        arguments: Sequence[int | Tensor | None],
        device: int,
    ) -> None:
        """Launch ``heads`` times as many blocks as one head takes, on the current stream of the tensors' device."""

    def tiles(self, kernel: str, spec: Specialization, flags: dict[str, int], device: int) -> int:
        """How many blocks one head takes."""


def prepared(x: Inputs) -> Inputs:
    """The tensors as the kernels take them: dense, aligned, and one dtype for learning rates, logits and gates."""
    given = {name: t for name in GATED if (t := getattr(x, name)) is not None}
    if len({t.dtype for t in given.values()}) > 1:
        x = x._replace(**{name: t.float() for name, t in given.items()})
    return Inputs.of(None if t is None else _dense(t) for t in x)


def _dense(t: Tensor) -> Tensor:
    t = t.detach().contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def saved_like(x: Inputs, options: Options) -> list[Tensor]:
    """What every token wrote, the state every :data:`SEGMENT` tokens, and the mixes where they are carried.

    In the order of the kernels' registers. In packed sequences, whose bounds fall anywhere, rows are numbered by their
    first token and their sequence.
    """
    spec = Specialization.of(x, options)
    layout = spec.layout
    (B, T, H), N = x.q.shape[:3], x.num_sequences
    chunks, segments = (B * -(-T // n) if x.cu_seqlens is None else T // n + N for n in (CHUNK, SEGMENT))
    kept = [
        x.q.new_empty((segments, H, layout.warps, 32 * layout.key_dims), dtype=torch.float32),
        x.q.new_empty((chunks, H, layout.warps, spec.planes, 32, CHUNK), dtype=torch.bfloat16),
    ]
    if spec.key_gate or spec.query_gate:
        kept.append(x.q.new_empty((chunks, H, layout.warps, 2, 32), dtype=torch.float32))
    return kept


class Kernels:
    """Forward and backward by a launcher: a GPU's, or one that emulates it."""

    def __init__(self, launch: Launcher) -> None:
        self.launch = launch

    def forward(self, x: Inputs, options: Options, save: bool) -> tuple[Results, list[Tensor]]:
        """One kernel; with ``save`` it also writes states at segment bounds."""
        results, kept = empty_results(x, options), saved_like(x, options) if save else []
        x = prepared(x)
        spec, device = Specialization.of(x, options), _index(x)
        B, T, H, _ = x.q.shape
        J, V = x.beta.shape[3:]
        N = x.num_sequences
        sums = x.q.new_empty((4, N, H, J, V), dtype=torch.float32) if options.routing_stats else None
        ready = self.prepare(x, spec, device)
        arguments = [*_inputs(x, ready), results.output, *results.final, sums, *_three(kept), N, T, H]
        self.launch(spec.forward_kernel, spec, {"STATS": int(options.routing_stats)}, N * H, arguments, device)
        if sums is not None:
            _means(results, sums, B * T)
        return results, kept

    def prepare(self, x: Inputs, spec: Specialization, device: int) -> Tensor | None:
        """Decays by key dim, keys and queries of every chunk, as its products use them; None without such decays."""
        if spec.decay != DECAYS["key"]:
            return None
        (B, T, H), N = x.q.shape[:3], x.num_sequences
        chunks = B * -(-T // CHUNK) if x.cu_seqlens is None else T // CHUNK + N
        ready = x.q.new_empty((chunks, H, spec.prepared_bytes // 2), dtype=torch.bfloat16)
        arguments = [x.q, x.k, x.log_decay, x.cu_seqlens, ready, N, T, H]
        self.launch("prepare", spec, {"STATS": 0}, chunks * H, arguments, device)
        return ready

    def backward(self, x: Inputs, options: Options, kept: list[Tensor], grads: Results) -> dict[str, Tensor]:
        """The chunks of each sequence in reverse; with a decay also states before it and gradients of keys after it."""
        given, x = x, prepared(x)
        spec, device = Specialization.of(x, options), _index(x)
        B, T, H, K = x.q.shape
        J, V = x.beta.shape[3:]
        N = x.num_sequences

        def new(*shape: int) -> Tensor:
            return x.q.new_empty(shape, dtype=torch.float32)

        ready = self.prepare(x, spec, device)
        by_key = x.log_decay is not None and decay_kind(x.log_decay) == "key"
        chunk_W = chunk_du = chunk_ds = chunk_dW = ddecay = None
        out = {name: torch.empty_like(t) for name in PER_TOKEN if (t := getattr(x, name)) is not None}
        if x.log_decay is not None:
            chunk_W = x.q.new_empty((*kept[1].shape[:3], 32 * spec.layout.key_dims * spec.planes), dtype=torch.bfloat16)
            segments = B * -(-T // SEGMENT) if x.cu_seqlens is None else N + T // SEGMENT
            states = [x.k, x.log_decay, ready, x.W, x.cu_seqlens, *kept[:2], chunk_W, N, T, H]
            self.launch("states", spec, {"STATS": 0}, segments * H, states, device)
            ddecay = out["log_decay"] if decay_kind(x.log_decay) != "head" else new(B, T, H, J, V, 1)
        if by_key:
            assert chunk_W is not None
            chunk_du, chunk_ds, chunk_dW = (torch.empty_like(t) for t in (kept[1], kept[1], chunk_W))
        flags = {"STATS": int(any(grad is not None for grad in grads.routing))}
        tiles = self.launch.tiles("backward", spec, flags, device)
        state = {name: torch.empty_like(t) for name in STATE if (t := getattr(x, name)) is not None}
        dout = torch.zeros_like(x.v) if grads.output is None else _dense(grads.output)
        dfinal = [None if g is None else _dense(g) for g in grads.final]
        parts = new(2, tiles, B, T, H, K) if tiles > 1 and not by_key else None
        arguments = [
            x.q, x.k, x.v, x.beta, x.key_logits, x.query_logits, x.key_gate, x.query_gate, x.cu_seqlens, dout, *dfinal,
            _spread(grads, x), *_three(kept), x.log_decay, ready, chunk_W, chunk_du, chunk_ds, chunk_dW, out["q"],
            out["k"], parts, out["v"], *(out.get(name) for name in GATED), ddecay,
            *(state.get(name) for name in STATE), N, T, H,
        ]  # fmt: skip
        self.launch("backward", spec, flags, N * H, arguments, device)
        if parts is not None:
            out["q"], out["k"] = parts.sum(1)
        if by_key:
            per_chunk = [
                x.q, x.k, x.log_decay, x.cu_seqlens, kept[1], chunk_du, chunk_ds, chunk_W, chunk_dW, out["q"], out["k"],
                out["log_decay"], N, T, H,
            ]  # fmt: skip
            self.launch("backward_keys", spec, {"STATS": 0}, kept[1].shape[0] * H, per_chunk, device)
        elif ddecay is not None and ddecay is not out["log_decay"]:
            out["log_decay"] = ddecay.sum(4, keepdim=True)
        return {name: grad.to(getattr(given, name).dtype) for name, grad in (out | state).items()}

    def step(self, x: Inputs, options: Options, inplace: bool = False) -> Results:
        """One token, without gradients; ``inplace`` writes the new state over the old one."""
        results = Results(x.v.new_empty(x.v.shape))  # dense, whatever the strides of v
        if inplace:
            results = results._replace(W=x.W, r=x.r, rho=x.rho)
        elif options.return_state:
            results = empty_results(x, options)
        x = prepared(x)
        spec, device = Specialization.of(x, options), _index(x)
        N, H = x.q.shape[0], x.q.shape[2]
        arguments = [*_step_inputs(x), results.output, *results.final]
        self.launch("step", spec, {"STATS": 0}, N * H, arguments, device)
        return results if options.return_state else Results(results.output)


def _three(kept: list[Tensor]) -> list[Tensor | None]:
    return [*kept, *[None] * (3 - len(kept))]


def _index(x: Inputs) -> int:
    return -1 if x.q.device.index is None else x.q.device.index


def _inputs(x: Inputs, ready: Tensor | None) -> list[Tensor | None]:
    return [
        x.q, x.k, x.v, x.beta, x.key_logits, x.query_logits, x.key_gate, x.query_gate, x.log_decay, ready, x.W, x.r,
        x.rho, x.cu_seqlens,
    ]  # fmt: skip


def _step_inputs(x: Inputs) -> list[Tensor | None]:
    tokens = _inputs(x, None)
    return [*tokens[:9], *tokens[10:13]]


def _means(results: Results, sums: Tensor, tokens: int) -> None:
    usage_k, entropy_k, usage_q, entropy_q = sums.sum(1) / tokens
    for mean, value in zip(results.routing, (usage_k, entropy_k.sum(1), usage_q, entropy_q.sum(1)), strict=True):
        assert mean is not None
        mean.copy_(value)


def _spread(grads: Results, x: Inputs) -> Tensor | None:
    """Gradients of the statistics as one ``[4, H, J, V]``, per token; None where nothing depends on them."""
    if all(grad is None for grad in grads.routing):
        return None
    like = x.q.new_zeros(x.beta.shape[2:], dtype=torch.float32)
    parts = [like if g is None else g if g.ndim == 3 else g[:, None].expand_as(like) for g in grads.routing]
    return torch.stack(parts) / (x.q.shape[0] * x.q.shape[1])


def operand_bits(dtype: torch.dtype) -> int:
    """The precision of the operands of matrix products: bf16, or the sum of two of them."""
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
    """Which size or form the kernels do not have, whatever the device."""
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
    saved_like=saved_like,
    step=_kernels.step,
    step_inplace=partial(_kernels.step, inplace=True),
    step_has_gradients=False,
    unusable=_unusable,
    refuses=_refuses,
    operand_bits=operand_bits,
)
