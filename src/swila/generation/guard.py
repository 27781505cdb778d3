"""The model while it is worked with: the right kind, in eval mode, and on a GPU nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

_GPU = threading.RLock()  # a graph cannot be captured while another thread is at work on the device


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in eval mode and, on a GPU, to ourselves; afterwards every module is as it was.

    One that is in eval mode already is not touched.
    """
    with _GPU if model.device.type == "cuda" else nullcontext():
        modules = [module for module in model.modules() if module.training]
        if modules:
            model.eval()
        try:
            yield
        finally:
            for module in modules:
                module.training = True


def check_model(model: Any) -> None:
    """Raise ValueError unless this is a model that generation can step through."""
    from swila.models import SwiLAForCausalLM

    if not isinstance(model, SwiLAForCausalLM):
        compiled = "; pass the model itself, and compile=True" if hasattr(model, "_orig_mod") else ""
        raise ValueError(f"model must be a SwiLAForCausalLM, got {type(model).__name__}{compiled}")
