"""Checks of the arguments of generation, and the context in which a model generates."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

SEEDS = 2**64  # number of valid seeds, from 0
_GPU = threading.RLock()  # graphs, their buffers and captures are used by one thread at a time


def taking_turns(model: Any) -> AbstractContextManager[Any]:
    """Return a context that holds a lock if the model is on a GPU."""
    return _GPU if model.device.type == "cuda" else nullcontext()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put the model in eval mode and, on a GPU, hold a lock; restore the mode of every module on exit.

    A model that is already in eval mode is not modified.
    """
    with taking_turns(model):
        modules = [module for module in model.modules() if module.training]
        if modules:
            model.eval()
        try:
            yield
        finally:
            for module in modules:
                module.training = True


def check_model(model: Any) -> None:
    """Raise ValueError unless this is a model with a decode step."""
    from swila.models import SwiLAForCausalLM

    if not isinstance(model, SwiLAForCausalLM):
        advice = ""
        if hasattr(model, "_orig_mod"):
            advice = "; pass the model itself, and compile=True"
        elif hasattr(model, "get_base_model"):  # PEFT's
            advice = "; pass model.get_base_model(), which includes the adapters, or model.merge_and_unload()"
        raise ValueError(f"model must be a SwiLAForCausalLM, got {type(model).__name__}{advice}")


def check_state(state: Any) -> None:
    """Raise ValueError unless this is None or a :class:`GenerationState`."""
    from swila.generation.state import GenerationState

    if state is not None and not isinstance(state, GenerationState):
        raise ValueError(f"state must be a GenerationState, got {type(state).__name__}")


def as_count(name: str, value: Any, least: int) -> int:
    """Return an argument as an integer; raise ValueError if it is not an integer or below ``least``."""
    if (count := _as_integer(value)) is None:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if count < least:
        raise ValueError(f"{name} must be {'0 or more' if least == 0 else f'at least {least}'}, got {count}")
    return count


def as_seed(value: Any) -> int:
    """Return a seed as an integer; raise ValueError if torch's generators do not accept it."""
    seed = _as_integer(value)
    if seed is None or not 0 <= seed < SEEDS:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {value!r}")
    return seed


def _as_integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
