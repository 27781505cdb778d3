"""A recipe's model without memory for its weights, for what only needs shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from swila.models.language.modeling import SwiLAForCausalLM
    from swila.pretraining.recipe import Recipe


def skeleton(recipe: Recipe) -> SwiLAForCausalLM:
    """Return the model of a recipe on the meta device, in training mode."""
    from swila.models.language.modeling import SwiLAForCausalLM

    with torch.device("meta"):
        return SwiLAForCausalLM(recipe.model.config(recipe.data.length)).train()
