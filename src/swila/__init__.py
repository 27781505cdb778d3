"""SwiLA: switching linear attention for PyTorch."""

from typing import TYPE_CHECKING, Any

from swila._version import __version__ as __version__
from swila.layers import SwiLA as SwiLA
from swila.models import auto as _auto
from swila.ops import Backend as Backend
from swila.ops import RoutingStats as RoutingStats
from swila.ops import SwitchingOutput as SwitchingOutput
from swila.ops import SwitchingState as SwitchingState
from swila.ops import register_backend as register_backend
from swila.ops import set_value_checks as set_value_checks
from swila.ops import switching_delta_rule as switching_delta_rule
from swila.ops import switching_delta_rule_step as switching_delta_rule_step

if TYPE_CHECKING:
    from swila.generation import Generation as Generation
    from swila.generation import GenerationState as GenerationState
    from swila.generation import generate as generate
    from swila.generation import prefill as prefill
    from swila.models import SwiLAConfig as SwiLAConfig
    from swila.models import SwiLAForCausalLM as SwiLAForCausalLM
    from swila.models import SwiLAModel as SwiLAModel

_LAZY = {
    **dict.fromkeys(("SwiLAConfig", "SwiLAForCausalLM", "SwiLAModel"), "swila.models"),
    **dict.fromkeys(("Generation", "GenerationState", "generate", "prefill"), "swila.generation"),
}

__all__ = [
    "Backend",
    "Generation",
    "GenerationState",
    "RoutingStats",
    "SwiLA",
    "SwiLAConfig",
    "SwiLAForCausalLM",
    "SwiLAModel",
    "SwitchingOutput",
    "SwitchingState",
    "__version__",
    "generate",
    "prefill",
    "register_backend",
    "set_value_checks",
    "switching_delta_rule",
    "switching_delta_rule_step",
]

_auto.register()


def __getattr__(name: str) -> Any:
    """Import language models and generation on first access."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
