"""Sequence layers by name."""

from __future__ import annotations

import inspect
from typing import Any

from swila.layers.attention import Attention, ForgettingAttention
from swila.layers.delta_net import DeltaNet, GatedDeltaNet, KimiDeltaAttention
from swila.layers.mixer import SequenceMixer
from swila.layers.mom import MixtureOfMemories
from swila.layers.swila import SwiLA

MIXERS: dict[str, type[SequenceMixer]] = {
    "swila": SwiLA,
    "deltanet": DeltaNet,
    "gated-deltanet": GatedDeltaNet,
    "kda": KimiDeltaAttention,
    "mom": MixtureOfMemories,
    "attention": Attention,
    "fox": ForgettingAttention,
}


def register_mixer(name: str, mixer: type[SequenceMixer]) -> None:
    """Register a layer under a name, for use in models and experiments."""
    if not (isinstance(mixer, type) and issubclass(mixer, SequenceMixer)):
        raise ValueError(f"mixer must be a subclass of SequenceMixer, got {mixer!r}")
    for method in ("mix", "state_size"):
        wanted = list(inspect.signature(getattr(SequenceMixer, method)).parameters)
        found = list(inspect.signature(getattr(mixer, method)).parameters)
        if len(found) < len(wanted):
            raise ValueError(f"{method} must take ({', '.join(wanted)}), got ({', '.join(found)})")
    if name in MIXERS and MIXERS[name] is not mixer:
        raise ValueError(f"name must be new, got {name!r}, which is {MIXERS[name].__name__}")
    MIXERS[name] = mixer


def make_mixer(name: str, hidden_size: int, **options: Any) -> SequenceMixer:
    """Make a layer by its name.

    Args:
        name: Key of :data:`MIXERS`.
        hidden_size: Width of the input and output.
        **options: Options of the layer's class. An unknown option raises ValueError.
    """
    if name not in MIXERS:
        raise ValueError(f"mixer must be one of {', '.join(MIXERS)}, got {name!r}")
    accepted = [parameter for parameter in inspect.signature(MIXERS[name]).parameters if parameter != "hidden_size"]
    for option in options:
        if option not in accepted:
            raise ValueError(f"{option!r} is not an option of the mixer {name!r}; it has {', '.join(accepted)}")
    return MIXERS[name](hidden_size, **options)
