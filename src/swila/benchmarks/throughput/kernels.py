"""Where the time of an update goes: the kernels of a profile by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch

REST = "everything else, elementwise"
# kinds of kernels by a pattern of their names; the first that matches counts
KINDS = {
    "recurrence": r"^swila_|chunk_|gated_delta|prepare_wy|recompute_w_u|solve_tril|merge_\d+x\d+",
    "attention": r"flash|fmha|sdpa|attention",
    "loss of the head": r"cross_entropy|softmax|nll_loss|logsumexp",
    "optimizer and clipping": r"FusedOptimizer|FusedAdam|multi_tensor_apply|[Ll]p_?[Nn]orm",
    "matrix products": r"nvjet|gemm|cutlass|splitKreduce|xmma|cublas",
    "elementwise, compiled": r"^triton_",
    "fused kernels in Triton": r"^\w+$",  # names of torch's own kernels are C++ types, with spaces and colons
}


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel)), REST)


def by_kind(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the summed time of each kind, longest first, from pairs of a kernel's name and its time."""
    spent: dict[str, float] = {}
    for kernel, time in times:
        spent[kind_of(kernel)] = spent.get(kind_of(kernel), 0.0) + time
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def profiled(work: Callable[[], object], longest: int = 25) -> dict[str, dict[str, float]]:
    """Return the milliseconds of some work on a GPU: ``kinds`` of kernels, and the ``longest`` kernels by name."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    times = [(event.key, event.self_device_time_total / 1e3) for event in profiler.key_averages()]
    times = sorted((each for each in times if each[1] > 0), key=lambda each: -each[1])
    return {"kinds": by_kind(times), "longest": {name[:120]: time for name, time in times[:longest]}}
