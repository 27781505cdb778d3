"""Bytes that a block keeps for its backward pass on a GPU, found by tracing it without one.

A compiled block keeps what the partitioner of ``torch.compile`` decides: :func:`kept_bytes` traces the block, has the
same partitioner divide the graph into forward and backward, and reads the sizes of the tensors that pass between them.
Without compilation they are the tensors that autograd saves. Nothing is computed and no weights are allocated.

The tensors that the operation keeps are those of its CUDA kernels, and norms and feed-forward layers keep those of the
fused kernels, unless ``use_fused(False)`` says otherwise. Softmax attention keeps q, k, v, the output and the
logarithm of the normaliser, on a CPU as on a GPU. Kernels of flash-linear-attention are replaced by ours, which keep
about as much.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from swila.layers.attention import ForgettingAttention
from swila.ops.backends import register_backend, unregister_backend
from swila.ops.cuda.backend import BACKEND, unsupported
from swila.ops.fused.choice import use_fused, wanted
from swila.training.compilation import compiling

if TYPE_CHECKING:
    from swila.models.language.configuration import SwiLAConfig

ROWS = 2  # traced sequences: sizes of 1 are special to the compiler


def kept_bytes(config: SwiLAConfig, layer: int, length: int, dtype: torch.dtype, compiled: bool = True) -> float:
    """Return the bytes that a block keeps for the backward pass of one sequence, without its input and its weights.

    Args:
        config: Configuration of the model.
        layer: Index of the block.
        length: Number of tokens of the sequence.
        dtype: Dtype of weights and activations in the block.
        compiled: Whether the block is compiled.
    """
    with _kernels_of_a_gpu():
        total = (_compiled_bytes if compiled else _eager_bytes)(config, layer, length, dtype)
    return total / ROWS


def _compiled_bytes(config: SwiLAConfig, layer: int, length: int, dtype: torch.dtype) -> int:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found: list[int] = []

    def partition(graph: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        forward, _ = min_cut_rematerialization_partition(
            graph, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
        outputs = forward.graph.find_nodes(op="output")[0].args[0]
        kept = [node for node in outputs[num_fwd_outputs:] if node is not None and node.op != "placeholder"]
        values = [node.meta["val"] for node in kept]
        found.append(_bytes_of(value for value in values if isinstance(value, Tensor)))
        raise _Traced

    backend = aot_autograd(
        fw_compiler=lambda graph, _: graph.forward, partition_fn=partition, decompositions=select_decomp_table()
    )
    with torch.device("meta"):
        block = _block(config, layer)
    block = block.to(dtype).to_empty(device="cpu")
    x = torch.empty(ROWS, length, config.hidden_size, dtype=dtype, requires_grad=True)
    with compiling(), torch._dynamo.config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.compile(block, backend=backend, fullgraph=True, dynamic=False)(x)
        except BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _Traced):
                raise
    return found[0]


def _eager_bytes(config: SwiLAConfig, layer: int, length: int, dtype: torch.dtype) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kept: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode(), _FusedNorms():
            block = _block(config, layer)
            x = torch.empty(ROWS, length, config.hidden_size, requires_grad=True)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                block(x)
    finally:
        torch.set_default_dtype(before)
    return _bytes_of(kept, without=[x, *block.parameters()])


class _Traced(Exception):
    """Ends a compilation after the graph has been divided: the block need not run."""


class _FusedNorms(TorchFunctionMode):
    """Makes RMSNorm keep its input and one scale per row, as on a GPU; on a CPU it keeps copies in float32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.rms_norm:
            return _FusedNorm.apply(args[0], kwargs["weight"])
        return function(*args, **(kwargs or {}))


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)


@contextmanager
def _kernels_of_a_gpu() -> Iterator[None]:
    """Within this context, traced calls are served by the CUDA kernels and the fused kernels where there are some."""
    name = "traced-as-cuda"
    register_backend(replace(BACKEND, name=name, unusable=lambda: None, refuses=unsupported))
    try:
        with use_fused(wanted()):
            yield
    finally:
        unregister_backend(name)


def _block(config: SwiLAConfig, layer: int) -> nn.Module:
    from swila.models.language.block import SwiLABlock

    block = SwiLABlock(config, layer).train()
    mixer: Any = block.mixer
    forgets = isinstance(block.mixer, ForgettingAttention)
    if getattr(mixer, "backend", None) in ("fla", "cuda"):
        mixer.backend = "auto"
        if forgets:
            mixer.bias = lambda kept, queries: None  # its kernel keeps no matrix of biases
    return block


def _bytes_of(tensors: Iterable[Tensor], without: Iterable[Tensor] = ()) -> int:
    """Return the bytes of the storages of tensors; views of one storage count once."""
    left_out = {t.untyped_storage()._cdata for t in without}
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in left_out)
