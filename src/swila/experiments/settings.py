"""Settings of a preset that can be replaced by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from swila.experiments.by_name import by_name

P = TypeVar("P", bound=Any)


def parse(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``["noise=false", "clip=1.0"]`` into names and values. A value is JSON, or else a string."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise ValueError(f"set must be NAME=VALUE, got {text!r}")
        try:
            found[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            found[name.strip()] = value.strip()
    return found


def apply(preset: P, settings: Mapping[str, Any], known: Mapping[str, type]) -> tuple[P, str]:
    """Return a preset with some settings replaced, and the differences as part of a run's name.

    Args:
        preset: A dataclass with a field ``training``, which is a dataclass too.
        settings: Names of fields of either, and their values. Only ``clip`` may be None.
        known: Names of the fields that can be replaced, and their types.
    """
    differences = []
    for name in known:
        if name not in settings:
            continue
        training = preset.training
        owner = preset if hasattr(preset, name) else training
        value, usual = settings[name], getattr(owner, name)
        if known[name] is float and type(value) is int:
            value = float(value)
        if type(value) is not known[name] and not (value is None and name == "clip"):
            raise ValueError(f"set: {name} must be of type {known[name].__name__}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"set: {name} must be a finite number, got {value}")
        if value == usual:
            continue
        differences.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={json.dumps(value)}")
        change: dict[str, Any] = {name: value}
        if owner is training:
            change = {"training": replace(training, **change)}
        preset = replace(preset, **change)
    for name in settings:
        by_name("set: a setting", name, known)
    return preset, re.sub(r"[^\w=.,+-]", "", ",".join(differences))  # as part of a directory's name
