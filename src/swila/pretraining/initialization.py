"""Initial weights that are the same for any number of ranks.

A model is made on the meta device, without memory, and divided among the ranks. Each module is then initialised whole,
on the CPU and from a seed of its own, and each rank keeps its part. No rank ever holds more than one whole module.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from swila.models.language.configuration import SwiLAConfig


def make_on_meta(config: SwiLAConfig) -> Any:
    """Return the model of a configuration in float32, without memory for its weights."""
    from swila.models.language.modeling import SwiLAForCausalLM

    with torch.device("meta"):
        return SwiLAForCausalLM(config).float()


@torch.no_grad()
def initialize(model: Any, seed: int, device: torch.device) -> None:
    """Allocate the weights of a model on the meta device, sharded or not, and draw their initial values.

    Args:
        model: A :class:`swila.SwiLAForCausalLM` on the meta device.
        seed: Seed of the weights.
        device: Device of the weights.
    """
    model.to_empty(device=device)
    whole = make_on_meta(model.config)
    targets = dict(model.named_modules())
    with torch.random.fork_rng(devices=[]):
        for name, module in whole.named_modules():
            if not any(True for _ in module.parameters(recurse=False)):
                continue
            module.to_empty(device="cpu", recurse=False)
            torch.manual_seed(seed_of(seed, "weights", name))
            whole._init_weights(module)
            for own, value in module.named_parameters(recurse=False):
                _set(getattr(targets[name], own), value)
            module.to_empty(device="meta", recurse=False)
    if model.config.tie_word_embeddings:
        model.tie_weights()


def _set(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole value into a parameter, or this rank's part of it into a sharded one."""
    if isinstance(parameter, DTensor):
        value = value.to(parameter.device)
        part = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(value)


def seed_of(seed: int, *purpose: str | int) -> int:
    """Return a seed for a purpose, different for each; the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
