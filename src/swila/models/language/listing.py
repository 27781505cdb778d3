"""Size of a preset, computed without allocating its weights."""

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
    with torch.device("meta"):
        model = SwiLAForCausalLM(SwiLAConfig.preset(name))
    state, with_a_token = (model.model.state_size(length) for length in (0, 1))
    return Description(model.num_parameters(), 4 * state, 2 * (with_a_token - state))
