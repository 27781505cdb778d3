"""The models that experiments compare: names, looks in figures, and sequence layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swila.plots.looks import LOOKS as ALL_LOOKS
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


_MODELS = (
    Model("temporal-swila", ALL_LOOKS["temporal-swila"], "swila", {"temporal": True}),
    Model("swila", ALL_LOOKS["swila"], "swila", {"temporal": False}),
    Model("deltanet", ALL_LOOKS["deltanet"], "deltanet", {"use_output_gate": False}),
    Model("gated-deltanet", ALL_LOOKS["gated-deltanet"], "gated-deltanet", {"use_output_gate": False}),
    Model("kda", ALL_LOOKS["kda"], "kda", {"use_output_gate": False}),
    Model("dn-mom", ALL_LOOKS["dn-mom"], "mom", {"num_heads": 1}),
    Model("attention", ALL_LOOKS["attention"], "attention", {"qkv_bias": True}, has_cache=True),
    Model("fox", ALL_LOOKS["fox"], "fox", {"qkv_bias": True}, has_cache=True),
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
