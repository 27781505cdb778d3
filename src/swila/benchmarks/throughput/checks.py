"""Checks of a model before it is timed: its gradients, and the kernels of its recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swila.benchmarks.baselines import baseline_errors, baseline_refused
from swila.benchmarks.op import verdict
from swila.benchmarks.throughput.contenders import (
    BASELINES,
    config_of,
    kernel_of,
    loss_of,
    make_model,
    our_weights,
    products_of,
)
from swila.layers.delta_net import DeltaRuleMixer
from swila.layers.recurrent import RecurrentMixer
from swila.layers.swila import SwiLA
from swila.models import SwiLAForCausalLM
from swila.ops.backends import Backend, all_backends, why_not
from swila.ops.fused.choice import use_fused
from swila.testing import VARIANTS, Shape, make_call, problem_of
from swila.training.compilation import compiling

DEPTH = 4  # a hybrid has softmax attention in the last of four layers
TOKENS = (2, 200)  # a few chunks, and a part of one
SLACK = 2.0, 0.01  # an error may be this many times that of plain torch in the same dtype, plus this much


def compile_blocks(model: Any, fullgraph: bool = True) -> None:
    """Compile the blocks of a model for calls of fixed shape.

    Blocks of ours on flash-linear-attention's kernels stay eager: the compiler cannot trace these, and the parts around
    them failed in torch 2.11. Their other pieces are fused all the same.
    """
    for block in model.model.layers:
        if getattr(getattr(block, "mixer", None), "backend", None) != "fla":
            block.forward = torch.compile(block.forward, fullgraph=fullgraph, dynamic=False)


def timed_model(
    model: str, size: str, device: str, dtype: torch.dtype, compiled: bool, depth: int | None = None
) -> Any:
    """Return a model as it is timed in training: with its kernel, and compiled blocks if asked for."""
    made = make_model(model, size, device, dtype, depth, kernel_of(model))
    if compiled:
        compile_blocks(made, fullgraph=model not in BASELINES)
    return made


def why_refused(
    model: str, size: str, device: str, dtype: torch.dtype, compiled: bool
) -> tuple[str | None, dict[str, float]]:
    """Return why a model is not timed or None, and the errors that were measured.

    A version with a few layers must have the gradients of the same weights in float32, computed by plain torch without
    fused kernels, up to a small multiple of the error of plain torch in ``dtype``. The kernels of its recurrence must
    pass the check of ``swila bench op``.

    Args:
        model: One of :data:`~swila.benchmarks.throughput.contenders.MODELS`, or a baseline.
        size: Size of the preset.
        device: Device of the model.
        dtype: Dtype of the weights.
        compiled: Whether its blocks are compiled.
    """
    reason, errors = _kernels(model, size, device, dtype)
    if reason is not None:
        return reason, errors
    loss, gradients, plain = gradient_errors(model, size, device, dtype, compiled)
    errors |= {"loss": loss, "gradients": gradients, "gradients of plain torch": plain}
    times, more = SLACK
    if not gradients <= times * plain + more or not loss <= 0.01:
        told = f"loss off by {loss:.1e}, gradients by {gradients:.1e}, those of plain torch by {plain:.1e}"
        return f"wrong: {told}", errors
    return None, errors


def gradient_errors(
    model: str, size: str, device: str, dtype: torch.dtype, compiled: bool
) -> tuple[float, float, float]:
    """Return relative errors against float32: of loss and gradients, and of plain torch's gradients in ``dtype``."""
    timed = timed_model(model, size, device, dtype, compiled, DEPTH)
    weights = {name: w.detach().clone() for name, w in timed.state_dict().items()}
    vocabulary = timed.config.vocab_size
    tokens = torch.randint(vocabulary, TOKENS, generator=torch.Generator().manual_seed(1)).to(device)
    with products_of(model):
        found = _gradients(timed, tokens)
    if model in BASELINES:
        weights, found = our_weights(weights), (found[0], our_weights(found[1]))
    del timed
    truth, plain = (_plainly(model, size, device, kind, weights, tokens) for kind in (torch.float32, dtype))
    off = abs(found[0] / truth[0] - 1)
    return off, _relative(found[1], truth[1]), _relative(plain[1], truth[1])


def _plainly(
    model: str, size: str, device: str, dtype: torch.dtype, weights: dict[str, Tensor], tokens: Tensor
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients by plain torch."""
    plain = plain_model(model, size, device, dtype, weights, DEPTH)
    with use_fused(False):
        return _gradients(plain, tokens)


def plain_model(
    model: str, size: str, device: str, dtype: torch.dtype, weights: dict[str, Tensor], depth: int
) -> SwiLAForCausalLM:
    """Return our model with these weights on the blocked algorithm; call it with twins instead of fused kernels."""
    with torch.device(device):
        plain = SwiLAForCausalLM(config_of(model, size, depth)).to(dtype).train()
    plain.load_state_dict(weights)
    for block in plain.model.layers:
        if isinstance(block.mixer, RecurrentMixer):
            block.mixer.backend = "blocked"
    return plain


def _gradients(model: Any, tokens: Tensor) -> tuple[float, dict[str, Tensor]]:
    with compiling():
        loss = loss_of(model, tokens)
        loss.backward()
    return loss.item(), {name: p.grad.float() for name, p in model.named_parameters()}


def _relative(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    difference = sum((found[name] - truth[name]).square().sum().item() for name in truth)
    return (difference / sum(w.square().sum().item() for w in truth.values())) ** 0.5


def _kernels(model: str, size: str, device: str, dtype: torch.dtype) -> tuple[str | None, dict[str, float]]:
    """Return why the kernels of the recurrence are not timed or None, and their errors against float64."""
    with torch.device("meta"):
        mixer: Any = SwiLAForCausalLM(config_of(model, size, DEPTH)).model.layers[0].mixer
    if not isinstance(mixer, RecurrentMixer):
        return None, {}  # softmax attention
    of_gdn = isinstance(mixer, DeltaRuleMixer)
    J = mixer.num_mixtures if isinstance(mixer, SwiLA) else 1
    shape = Shape(B=1, T=200, H=mixer.num_heads, K=mixer.head_k_dim, V=mixer.head_v_dim, J=J)
    if of_gdn and kernel_of(model) == "fla":
        errors = baseline_errors("GDN", shape, device)
        reason = baseline_refused(errors)
    else:
        name = "gated-head" if of_gdn else "temporal" if isinstance(mixer, SwiLA) and mixer.temporal else "plain"
        backend = _serving(make_call(VARIANTS[name], shape, dtype=dtype, device=device))
        reason, _, _, errors = verdict(backend, shape, VARIANTS[name], dtype, device)
    return reason and f"its recurrence: {reason}", {f"recurrence, {name}": error for name, error in errors.items()}


def _serving(call: dict[str, Any]) -> Backend:
    return next(backend for backend in all_backends() if why_not(backend, problem_of(call)) is None)
