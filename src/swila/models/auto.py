"""Registration of the language models with transformers, without importing it: that takes longer than all of swila.

``AutoModelForCausalLM.from_pretrained`` must know our ``model_type`` after ``import swila``, whichever of the two is
imported first. If transformers' table of configurations is already imported, the configuration is registered at once;
otherwise right after the table is imported. The models are registered when the first configuration is made; no model
can be requested before that.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

TABLE = "transformers.models.auto.configuration_auto"
OLDEST = 5  # lowest major version of transformers


def register() -> None:
    """Register the configuration now, or when transformers' table of configurations is imported."""
    if TABLE in sys.modules:
        _register_config(sys.modules[TABLE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def register_models() -> None:
    """Register the model classes with ``AutoModel`` and ``AutoModelForCausalLM``."""
    from transformers import AutoModel, AutoModelForCausalLM

    from swila.models.language.configuration import SwiLAConfig
    from swila.models.language.modeling import SwiLAForCausalLM, SwiLAModel

    AutoModel.register(SwiLAConfig, SwiLAModel, exist_ok=True)
    AutoModelForCausalLM.register(SwiLAConfig, SwiLAForCausalLM, exist_ok=True)


def why_unusable() -> str | None:
    """Return why the installed transformers cannot be used, or None if it can."""
    from swila.environment import package_version

    version = package_version("transformers")
    if version is None:
        return "it is not installed"
    if int(version.split(".")[0]) < OLDEST:
        return f"version {OLDEST}.0 or newer is needed, and {version} is installed"
    return None


def _register_config(table: ModuleType) -> None:
    if why_unusable() is None:
        from swila.models.language.configuration import SwiLAConfig

        table.AutoConfig.register(SwiLAConfig.model_type, SwiLAConfig, exist_ok=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the table's module as usual, and wraps its loader so that the configuration is registered afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TABLE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register_config(module)
