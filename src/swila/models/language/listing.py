"""Size of a model, computed without allocating its weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from swila.models.language.configuration import SwiLAConfig
from swila.models.language.modeling import SwiLAForCausalLM


class Description(NamedTuple):
    """Size of a model.

    Attributes:
        parameters: Number of trainable scalars.
        state_bytes: Bytes of recurrent state in float32, for any length of text.
        cache_bytes: Bytes of keys and values per token in bfloat16.
    """

    parameters: int
    state_bytes: int
    cache_bytes: int


def describe(name: str) -> Description:
    """Return the size of a preset."""
    return describe_config(SwiLAConfig.preset(name))


def describe_config(config: SwiLAConfig) -> Description:
    """Return the size of the model with this configuration."""
    with torch.device("meta"):
        model = SwiLAForCausalLM(config)
    state, with_a_token = (model.model.state_size(length) for length in (0, 1))
    return Description(model.num_parameters(), 4 * state, 2 * (with_a_token - state))
