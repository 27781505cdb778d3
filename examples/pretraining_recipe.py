"""Two recipes of one's own for swila pretrain: a hybrid of Temporal SwiLA and attention on whole documents.

swila recipes examples/pretraining_recipe.py                # the recipe in full
swila pretrain examples/pretraining_recipe.py --data tokens --out runs/my-hybrid
swila pretrain examples/pretraining_recipe.py:longer --data tokens --out runs/my-hybrid-longer
"""

from dataclasses import replace

from swila.pretraining.recipe import DataRecipe, ModelRecipe, OptimizerRecipe, Recipe
from swila.pretraining.recipes import get_recipe
from swila.pretraining.settings import change


def recipe() -> Recipe:
    """Return a small hybrid for a CPU; every field that is not named here is that of temporal-swila-tiny."""
    model = ModelRecipe(
        hidden_size=128,
        num_hidden_layers=4,
        intermediate_size=368,
        mixer=["swila", "swila", "swila", "attention"],
        mixer_options={
            "swila": {"num_heads": 2, "head_dim": 32, "num_mixtures": 4, "temporal": True, "balance_marginal": 0.01},
            "attention": {"num_heads": 2},
        },
        vocab_size=None,  # that of the data
    )
    return replace(
        get_recipe("temporal-swila-tiny"),
        name="my-hybrid",
        summary="Temporal SwiLA with attention at every fourth layer",
        model=model,
        data=DataRecipe(length=256, batch_size=8, packing="documents"),
        optimizer=OptimizerRecipe(lr=3e-3, weight_decay=0.1),
    )


def longer() -> Recipe:
    """Return the same with five times the updates; the fields have the names of --set."""
    return change(recipe(), ["name=my-hybrid-longer", "schedule.steps=1000", "schedule.warmup_steps=100"])
