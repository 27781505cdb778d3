"""Throughput and GPU hours of a recipe, as an estimate from assumed utilisations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from swila.pretraining.flops import recipe_flops
from swila.pretraining.gpus import get_gpu

if TYPE_CHECKING:
    from swila.models.language.configuration import SwiLAConfig
    from swila.pretraining.recipe import Recipe


class Utilisation(NamedTuple):
    """Model FLOPs utilisation of an architecture at two widths of the residual stream."""

    at_1024: float
    at_2048: float


# Of training on one H200 in bfloat16 with compiled blocks, T 4096, batch 8: tokens/s · FLOPs per token / 989 TFLOP/s.
# At width 1024 that of swila pretrain (results/pretraining-cuda.json). At width 2048 that of a bare loop with bfloat16
# weights: SwiLA 55.6k tokens/s, Temporal SwiLA 53.1k, Transformer++ 45.7k; GDN's is assumed to grow as SwiLA's.
MFU = {
    "swila": Utilisation(0.267, 0.444),
    "temporal-swila": Utilisation(0.243, 0.425),
    "gated-swila": Utilisation(0.243, 0.425),  # as Temporal SwiLA
    "gated-deltanet": Utilisation(0.201, 0.334),
    "deltanet": Utilisation(0.201, 0.334),  # as GDN
    "kda": Utilisation(0.201, 0.334),  # as GDN
    "mom": Utilisation(0.201, 0.334),  # as GDN
    "attention": Utilisation(0.300, 0.416),
    "fox": Utilisation(0.300, 0.416),  # as attention
}
OTHER = Utilisation(0.201, 0.334)  # mixers of users: the lowest of each
HIGHEST = 0.5  # no measurement above
FLOAT32 = 1 / 15  # peak of float32 relative to bfloat16, without TensorFloat-32


def assumed_mfu(recipe: Recipe) -> float:
    """Return the utilisation that estimates assume for a recipe.

    The time of matrix products grows with the square of the width and that of everything else with the width. So
    ``1 / MFU = a + b / width``, through the two values of :data:`MFU`. For a hybrid it is the mean over the layers.
    """
    config = recipe.model.config(recipe.data.length)
    inverse = [_inverse_mfu(MFU.get(kind, OTHER), config.hidden_size) for kind in _kinds(config)]
    return min(len(inverse) / sum(inverse), HIGHEST)


def tokens_per_second(recipe: Recipe, gpu: str = "H100", gpus: int = 1) -> float:
    """Return the estimated throughput of all GPUs together, without waiting for communication.

    Args:
        recipe: The recipe.
        gpu: Name of the GPU, a key of :data:`swila.pretraining.gpus.GPUS`.
        gpus: Number of GPUs.
    """
    speed = get_gpu(gpu).peak * (1.0 if recipe.precision == "bfloat16" else FLOAT32)
    computed = recipe_flops(recipe).training * (1 + recomputed(recipe) / 3)
    return gpus * speed * assumed_mfu(recipe) / computed


def gpu_hours(recipe: Recipe, gpu: str = "H100") -> float:
    """Return the estimated hours of one GPU for the tokens of a recipe.

    Args:
        recipe: The recipe.
        gpu: Name of the GPU, a key of :data:`swila.pretraining.gpus.GPUS`.
    """
    return recipe.tokens / tokens_per_second(recipe, gpu) / 3600


def recomputed(recipe: Recipe) -> float:
    """Return the fraction of blocks whose forward pass is computed again in the backward pass."""
    layers = recipe.model.num_hidden_layers
    return sum(recipe.execution.recomputes(i) for i in range(layers)) / layers


def _inverse_mfu(given: Utilisation, width: int) -> float:
    small, large = 1 / given.at_1024, 1 / given.at_2048
    return large + (small - large) * (2048 / width - 1)


def _kinds(config: SwiLAConfig) -> list[str]:
    """Return a key of :data:`MFU` for each layer, or the name of a mixer that is not in it."""
    return [_kind(name, config.options_of(name)) for name in config.layer_mixers]


def _kind(mixer: str, options: dict[str, Any]) -> str:
    if mixer != "swila":
        return mixer
    if options.get("decay"):
        return "gated-swila"
    return "temporal-swila" if options.get("temporal") else "swila"
