"""The compiled token loop as a backend: tensors become arrays, threads share the (sequence, head) pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from swila.ops.backends import Backend
from swila.ops.call import PER_TOKEN, STATE, Inputs, Options, Problem, Results, decay_kind, empty_results, kept_rows
from swila.ops.validation import sequence_bounds

CHUNK = 32
KINDS = {None: 0, "key": 1, "value": 2, "head": 3}


class Job:
    """A call in the form of the kernels: flat arrays ``[B T, H, ...]``, with dummies for missing inputs."""

    def __init__(self, x: Inputs, options: Options) -> None:
        import numpy as np

        B, T, H, _ = x.q.shape
        self.x, self.H, self.tokens = x, H, B * T
        self.bounds = np.array(sequence_bounds(x))
        kept = (np.diff(self.bounds) - 1) // CHUNK
        self.kept_rows = np.cumsum(kept) - kept
        six = tuple(self.flat(t) for t in x[:6])
        gates = tuple(self.flat(self.or_dummy(t, x.v[:1, :1])) for t in (x.key_gate, x.query_gate))
        decay = self.flat(self.or_dummy(x.log_decay, x.beta[:1, :1, ..., None]))
        kind = KINDS[None if x.log_decay is None else decay_kind(x.log_decay)]
        flags = options.decay_order == "post", options.normalize, x.key_gate is not None, x.query_gate is not None
        self.given = six, gates, decay, kind, flags
        self.scalar = np.float64 if x.compute_dtype == torch.float64 else np.float32
        self.tiny = self.scalar(torch.finfo(x.compute_dtype).tiny)

    def flat(self, t: Tensor) -> Any:
        """An array in the compute dtype; shares the memory of the tensor if possible."""
        return t.detach().flatten(0, 1).to(self.x.compute_dtype).contiguous().numpy()

    @staticmethod
    def or_dummy(t: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if t is None else t

    def new(self, *shape: int) -> Tensor:
        """Zeros in the compute dtype."""
        return self.x.q.new_zeros(shape, dtype=self.x.compute_dtype)

    def run(self, kernel: Callable, *arguments: Any) -> None:
        """Run a kernel over all (sequence, head) pairs with as many threads as torch uses; kernels release the GIL."""
        import numpy as np

        units = np.arange((len(self.bounds) - 1) * self.H)
        threads = max(min(torch.get_num_threads(), len(units)), 1)
        common = self.bounds, self.kept_rows, CHUNK, *self.given
        with _word_if_compiling(kernel), ThreadPoolExecutor(threads) as pool:
            work = [pool.submit(kernel, units[i::threads], *common, *arguments) for i in range(threads)]
            for part in work:
                part.result()


def forward(x: Inputs, options: Options, save: bool) -> tuple[Results, list[Tensor]]:
    """Process the tokens in order; with ``save``, save the state every :data:`CHUNK` tokens."""
    from swila.ops.numba.kernels import forward as kernel

    job, results = Job(x, options), empty_results(x, options)
    kept, state = saved_like(x, options) if save else [], _initial_state(x)
    H, J, V = x.beta.shape[2:]
    output = job.new(job.tokens, H, V)
    units = x.num_sequences * H
    sums = [job.new(*shape) for shape in ((units, J, V), (units, V)) * 2]
    half = job.scalar(0.5)
    job.run(
        kernel, _arrays(state), output.numpy(), _arrays(kept or state), save, _arrays(sums), options.routing_stats,
        half, job.tiny,
    )  # fmt: skip
    results.output.copy_(output.view_as(results.output))
    for final, part in zip(results.final, _as_given(state), strict=True):
        if final is not None:
            final.copy_(part)
    for mean, total in zip(results.routing, sums, strict=True):
        if mean is not None:
            mean.copy_(total.unflatten(0, (-1, H)).sum(0) / job.tokens)
    return results, kept


def backward(x: Inputs, options: Options, kept: list[Tensor], grads: Results) -> dict[str, Tensor]:
    """Process the tokens in reverse order; each chunk is recomputed from the state saved at its start."""
    from swila.ops.numba.kernels import backward as kernel

    job, state = Job(x, options), _initial_state(x)
    H, J, V = x.beta.shape[2:]
    after = _initial_state(x._replace(W=grads.W, r=grads.r, rho=grads.rho), zeros=True)
    do = job.flat(Job.or_dummy(grads.output, x.v))
    given = {name: job.new(job.tokens, *t.shape[2:]) for name in PER_TOKEN if (t := getattr(x, name)) is not None}
    dummy = job.new(1, H, V)
    dx = _arrays([given[name] for name in PER_TOKEN[:6]])
    dgates = _arrays([given.get("key_gate", dummy), given.get("query_gate", dummy)])
    ddecay = given.get("log_decay", job.new(1, H, 1, 1, 1)).numpy()
    shapes = ((H, J, V), (H, V)) * 2
    drouting = [
        job.new(*shape) if g is None else g.contiguous() for g, shape in zip(grads.routing, shapes, strict=True)
    ]
    with_stats = any(grad is not None for grad in grads.routing)
    steepest = job.scalar(torch.finfo(x.compute_dtype).max ** 0.75)
    job.run(
        kernel, _arrays(state), _arrays(kept), do, _arrays(after), dx, dgates, ddecay, _arrays(drouting),
        job.scalar(1 / job.tokens), with_stats, job.scalar(0.5), job.tiny, steepest,
    )  # fmt: skip
    gradients = {name: grad.view_as(getattr(x, name)).to(getattr(x, name).dtype) for name, grad in given.items()}
    for name, part in zip(STATE, _as_given(after), strict=True):
        if getattr(x, name) is not None:
            gradients[name] = part
    return gradients


def saved_like(x: Inputs, options: Options) -> list[Tensor]:
    """States at the start of every chunk except the first of a sequence, in the layout of the kernels."""
    rows, (H, J, V), K = kept_rows(x, CHUNK), x.beta.shape[2:], x.q.shape[3]
    shapes = (rows, H, J, K, V), (rows, H, J, V), (rows, H, J, V)
    return [x.q.new_empty(shape, dtype=x.compute_dtype) for shape in shapes]


def _initial_state(x: Inputs, zeros: bool = False) -> list[Tensor]:
    """New buffers ``W [N, H, J, K, V]`` and ``r, rho [N, H, J, V]``, which the kernels update in place."""
    N, H, (J, V), K = x.num_sequences, x.q.shape[2], x.beta.shape[3:], x.q.shape[3]
    new = [x.q.new_zeros(shape, dtype=x.compute_dtype) for shape in ((N, H, J, K, V), (N, H, J, V), (N, H, J, V))]
    for part, value in zip(new, (None if x.W is None else x.W.mT, x.r, x.rho), strict=True):
        if value is not None:
            part.copy_(value)
        elif part is not new[0] and not zeros:
            part.fill_(1 / J)
    return new


def _as_given(state: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return state[0].mT, state[1], state[2]


def _arrays(tensors: list[Tensor]) -> tuple:
    return tuple(t.detach().numpy() for t in tensors)


_said: list[bool] = []


@contextmanager
def _word_if_compiling(kernel: Any) -> Iterator[None]:
    """Log a message once if numba compiles the kernel, which it does not if its cache on disk has it."""
    if _said:
        yield
        return
    from numba.core import event

    class Say(event.Listener):
        def on_start(self, event: Any) -> None:
            if event.data["dispatcher"] is kernel and not _said:
                _said.append(True)
                logging.getLogger("swila").warning("compiling swila's numba kernels; this takes about 20 seconds once")

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Say()):
        yield


@cache
def _unusable() -> str | None:
    return None if find_spec("numba") else "numba is not installed: pip install 'swila[cpu]'"


def _refuses(problem: Problem) -> str | None:
    return None if problem.device == "cpu" else f"it runs on the CPU, the tensors are on {problem.device}"


BACKEND = Backend(
    name="numba",
    summary="the token loop compiled for the CPU, hand-written backward",
    forward=forward,
    backward=backward,
    saved_like=saved_like,
    unusable=_unusable,
    refuses=_refuses,
)
