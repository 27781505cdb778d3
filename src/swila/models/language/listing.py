"""Facts of a named model, without its weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from swila.models.language.configuration import SwiLAConfig
from swila.models.language.modeling import SwiLAForCausalLM


class Description(NamedTuple):
    """What a model costs.

    Attributes:
        parameters: trained scalars.
        state_bytes: of recurrent state, in float32, for any length of text.
        cache_bytes: of keys and values for each token, in bfloat16.
    """

    parameters: int
    state_bytes: int
    cache_bytes: int


def describe(name: str) -> Description:
    """The facts of a preset."""
    with torch.device("meta"):
        model = SwiLAForCausalLM(SwiLAConfig.preset(name))
    state, with_a_token = (model.model.state_size(length) for length in (0, 1))
    return Description(model.num_parameters(), 4 * state, 2 * (with_a_token - state))
