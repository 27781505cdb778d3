"""Initial weights that are the same for any number of ranks.

A model is made on the meta device, without memory, and divided among the ranks. Each module is then initialised whole,
on the CPU and from a seed of its own, and each rank keeps its part. No rank ever holds more than one whole module.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
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
    once = {name.rpartition(".")[0] for name, _ in whole.named_parameters()}  # a tied head is that of the embedding
    with torch.random.fork_rng(devices=[]):
        for name, module in whole.named_modules():
            if name not in once:
                continue
            _check_drawn(name, module)
            module.to_empty(device="cpu", recurse=False)
            torch.manual_seed(seed_of(seed, "weights", name))
            whole._init_weights(module)
            for own, value in module.named_parameters(recurse=False):
                _set(getattr(targets[name], own), value)
            module.to_empty(device="meta", recurse=False)
    if model.config.tie_word_embeddings:
        model.tie_weights()


def _check_drawn(name: str, module: nn.Module) -> None:
    """Raise ValueError for a module whose initial weights are known to its constructor alone."""
    if not isinstance(module, nn.Linear | nn.Embedding) and not callable(getattr(module, "reset_parameters", None)):
        raise ValueError(
            f"{name} ({type(module).__name__}) must have reset_parameters() that sets the initial values of its own "
            "parameters"
        )


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
