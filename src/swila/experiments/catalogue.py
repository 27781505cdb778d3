"""The models that experiments compare: names, titles, looks in figures, and sequence layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swila.plots.style import Look


@dataclass(frozen=True)
class Model:
    """A model of the comparison.

    Attributes:
        name: Name on the command line and in results files.
        look: Title, colour, marker and line style in tables and figures.
        mixer: Name of the sequence layer.
        options: Options of the layer that are the same in every experiment.
        has_cache: Whether the state is a cache of keys and values, which grows with the sequence.
    """

    name: str
    look: Look
    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_cache: bool = False


# The colours are those of Okabe and Ito; markers and line styles differ for print in grey.
_MODELS = (
    Model("temporal-swila", Look("Temporal SwiLA", "#D55E00", "D", (0, (9, 1.5))), "swila", {"temporal": True}),
    Model("swila", Look("SwiLA", "#E69F00", "o", "-"), "swila", {"temporal": False}),
    Model("deltanet", Look("DeltaNet", "#0072B2", "s", (0, (5, 1.5, 1, 1.5))), "deltanet", {"use_output_gate": False}),
    Model(
        "gated-deltanet",
        Look("Gated DeltaNet", "#56B4E9", "P", (0, (5, 1.5, 1, 1.5, 1, 1.5))),
        "gated-deltanet",
        {"use_output_gate": False},
    ),
    Model("kda", Look("KDA", "#CC79A7", "X", (0, (7, 3))), "kda", {"use_output_gate": False}),
    Model("dn-mom", Look("DN-MoM", "#009E73", "^", (0, (2.5, 1.2))), "mom", {"num_heads": 1}),
    Model(
        "attention",
        Look("softmax attention", "#555555", "v", (0, (5, 2.5))),
        "attention",
        {"qkv_bias": True},
        has_cache=True,
    ),
    Model("fox", Look("FoX", "#999999", "p", (0, (1, 1))), "fox", {"qkv_bias": True}, has_cache=True),
)
CATALOGUE = {model.name: model for model in _MODELS}
LOOKS = {model.name: model.look for model in _MODELS}


def select(*names: str) -> dict[str, Model]:
    """Models of the catalogue by name, in the order given."""
    return {name: CATALOGUE[name] for name in names}


def title(name: str) -> str:
    """The title of a model; a model that is not in the catalogue is called by its name."""
    return LOOKS[name].title if name in LOOKS else name


def has_cache(name: str) -> bool:
    """Whether the state of a model is a cache; False for a model that is not in the catalogue."""
    return name in CATALOGUE and CATALOGUE[name].has_cache
