"""A recipe's model without memory for its weights, for what only needs shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swila.pretraining.initialization import make_on_meta

if TYPE_CHECKING:
    from swila.pretraining.recipe import Recipe


def skeleton(recipe: Recipe) -> Any:
    """Return the :class:`swila.SwiLAForCausalLM` of a recipe on the meta device, in training mode."""
    return make_on_meta(recipe.model.config(recipe.data.length)).train()
