"""Models built from the sequence layers: language models for transformers, and small models for the experiments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swila.models.block import Block as Block
from swila.models.regression import RegressionModel as RegressionModel
from swila.models.regression import RegressionModelConfig as RegressionModelConfig
from swila.models.synthetic import SyntheticModel as SyntheticModel
from swila.models.synthetic import SyntheticModelConfig as SyntheticModelConfig

if TYPE_CHECKING:
    from swila.models.language.configuration import SwiLAConfig as SwiLAConfig
    from swila.models.language.modeling import SwiLAForCausalLM as SwiLAForCausalLM
    from swila.models.language.modeling import SwiLAModel as SwiLAModel

_LAZY = {"SwiLAConfig": "configuration", "SwiLAForCausalLM": "modeling", "SwiLAModel": "modeling"}


def __getattr__(name: str) -> Any:
    """Import the language models on first use; they need transformers."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swila.models.auto import why_unusable

    if reason := why_unusable():
        raise ImportError(f"{name} needs transformers: {reason}. Try: pip install 'swila[hf]'")
    return getattr(import_module(f"swila.models.language.{_LAZY[name]}"), name)
