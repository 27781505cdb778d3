"""Which layers can be captured in a CUDA graph while they read packed sequences."""

from __future__ import annotations

from typing import Any

import torch

from swila.layers.decoding import RECURRENT
from swila.layers.mixer import SequenceMixer
from swila.layers.swila import SwiLA
from swila.ops.backends import choose_backend
from swila.ops.call import Problem
from swila.ops.validation import values_are_checked


def capturable(mixer: SequenceMixer, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a call without gradients on packed sequences only launches kernels.

    The shapes of its tensors follow from those of the input, the host does not read from the device, and the call
    leaves nothing behind but its results. The parts of the layer are taken to be plain modules.

    Args:
        mixer: The layer, in evaluation.
        device: Device of the input.
        dtype: Dtype of the input.
    """
    if type(mixer) not in RECURRENT or values_are_checked(device):
        return False
    layer: Any = mixer
    if isinstance(layer, SwiLA) and (layer.track_routing or layer._change is not None):
        return False
    try:
        return choose_backend(layer.backend, problem(layer, device, dtype)).capturable
    except ValueError:  # of another library, which may read on the host; or none serves, which the call will say
        return False


def problem(layer: Any, device: torch.device, dtype: torch.dtype) -> Problem:
    """Return the description of the operation's call on packed sequences, without gradients."""
    temporal = isinstance(layer, SwiLA) and layer.temporal
    return Problem(
        device=device.type, dtype=dtype, B=1, T=2, H=layer.num_heads, K=layer.head_k_dim, V=layer.head_v_dim,
        J=layer.num_mixtures if isinstance(layer, SwiLA) else 1,
        decay=layer.decay_kind if isinstance(layer, SwiLA) else layer.decays,
        decay_order=getattr(layer, "decay_order", "pre"), key_temporal=temporal, query_temporal=temporal,
        normalize=getattr(layer, "normalize", True), packed=True, routing_stats=False, needs_grad=False,
    )  # fmt: skip
