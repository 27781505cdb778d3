"""Fields of a recipe by dotted name: changed from text, printed, and as JSON.

How a value is written depends on the type of its field:

===========  ==========================================================================================
int          ``8``, ``28_610``; ``1e3`` and ``8.0`` are errors
float        ``3e-4``, ``1``; must be finite
bool         ``true``, ``yes``, ``on`` or ``1``; ``false``, ``no``, ``off`` or ``0``; in any case
None         ``none`` or ``null``, where the field may be None
str          as it is
list, tuple  ``[3, 7, 11]`` or ``3,7,11``; a list of names where one name is allowed needs the brackets
dict         JSON; or ``NAME.KEY=VALUE`` for one of its values, which is JSON, ``none``, or else a string
===========  ==========================================================================================

A number in a dict stays a number of its kind: an integer is not replaced by ``1.5``.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import types
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from swila.pretraining.recipe import Recipe

WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
NONE = ("none", "null")


def change(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with some fields changed, after :meth:`Recipe.check`.

    >>> change(recipe, ["optimizer.lr=3e-4", "model.mixer_options.swila.num_heads=4", "execution.shard_size=none"])

    Args:
        recipe: The recipe; it is not modified.
        settings: Texts ``NAME=VALUE``, applied in turn. The docstring of the module says how values are written.
    """
    for text in settings:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not name or not value:
            raise ValueError(f"set must be NAME=VALUE, such as optimizer.lr=3e-4, got {text!r}")
        recipe = _changed(recipe, name.split("."), value, name)
    recipe.check()
    return recipe


def setting_names(recipe: Recipe) -> list[str]:
    """Return the dotted names of all fields, those in dicts included."""
    return [name for name, _ in _flat(recipe)]


def describe(recipe: Recipe) -> str:
    """Return the recipe as text: a line ``NAME = VALUE`` for each field, in the form that :func:`change` reads."""
    lines = [f"{name} = {_as_text(value)}" for name, value in _flat(recipe)]
    width = max(line.index(" = ") for line in lines)
    return "\n".join(f"{name:{width}} = {value}" for name, _, value in (line.partition(" = ") for line in lines))


def to_json(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a dict of what JSON knows; :func:`from_json` is the inverse."""
    return json.loads(json.dumps(asdict(recipe), allow_nan=False))


def from_json(found: dict[str, Any]) -> Recipe:
    """Return the recipe of a dict by :func:`to_json`; raise ValueError if a field is unknown, missing or invalid."""
    recipe = _from_json(found, Recipe, "")
    recipe.check()
    return recipe


def _changed(part: Any, path: list[str], text: str, name: str) -> Any:
    """Return a dataclass with the field at ``path`` changed; ``name`` is the whole name, for errors."""
    known, (first, *rest) = _types(type(part)), path
    prefix = name.removesuffix(".".join(path))
    if first not in known:
        raise _unknown(name, (prefix + each for each in known))
    kind = known[first]
    if is_dataclass(kind):
        if not rest:
            inner = ", ".join(f"{name}.{each}" for each in _types(kind))
            raise ValueError(f"set: {name} is a group of fields; change one of {inner}")
        return replace(part, **{first: _changed(getattr(part, first), rest, text, name)})
    if not rest:
        return replace(part, **{first: _from_text(text, kind, f"set: {name}")})
    if get_origin(kind) is not dict:
        raise ValueError(f"set: {prefix}{first} has no fields of its own, got {name!r}")
    return replace(part, **{first: _changed_dict(getattr(part, first), rest, text, name)})


def _changed_dict(found: dict[str, Any], path: list[str], text: str, name: str) -> dict[str, Any]:
    found = copy.deepcopy(found)
    inner = found
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"set: {key!r} in {name!r} is a value, {inner!r}, and has no fields of its own")
    before, value = inner.get(path[-1]), _any_from_text(text)
    if type(before) in (int, float) and value is not None:
        value = _from_text(text, type(before), f"set: {name}")
    inner[path[-1]] = value
    return found


def _unknown(name: str, known: Iterable[str]) -> ValueError:
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    return ValueError(
        f"set: {name!r} is not a field of a recipe; {f'did you mean {close[0]!r}? ' if close else ''}"
        f"there are {', '.join(known)}"
    )


def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, the ones that accept fewer texts first."""
    if get_origin(kind) not in (Union, types.UnionType):
        return (kind,)
    order = (Literal, types.NoneType, bool, int, float, tuple, list, str)
    return tuple(sorted(get_args(kind), key=lambda each: order.index(get_origin(each) or each)))


def _in_words(kind: Any) -> str:
    words = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text", types.NoneType: "none"}
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}"
    if origin is list:
        return f"a list ({_in_words(inside[0])} each)"
    if origin is tuple:
        return f"{len(inside)} values ({_in_words(inside[0])} each)"
    if origin is dict:
        return "a dict"
    return words[kind]


def _wrong(name: str, kind: Any, found: Any) -> ValueError:
    return ValueError(f"{name} must be {' or '.join(map(_in_words, _alternatives(kind)))}, got {found!r}")


def _from_text(text: str, kind: Any, name: str) -> Any:
    for each in _alternatives(kind):
        if (several := len(_alternatives(kind)) > 1) and each is str and text.startswith("["):
            continue  # a list that could not be read is not a name
        try:
            return _parse(text, each, bracketed=several)
        except ValueError:
            continue
    raise _wrong(name, kind, text)


def _parse(text: str, kind: Any, bracketed: bool) -> Any:
    """Return the value of a type that is not a union; raise ValueError if the text is none."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return inside[inside.index(text)]
    if origin in (list, tuple):
        if bracketed and str in inside and not text.startswith("["):
            raise ValueError
        if text[0] in "[(" and text[-1] != {"[": "]", "(": ")"}[text[0]]:
            raise ValueError
        items = [each.strip() for each in text.strip("[]()").split(",") if each.strip()]
        if origin is tuple and len(items) != len(inside):
            raise ValueError
        return origin(_parse(each.strip("\"'"), inside[0], bracketed) for each in items)
    if origin is dict:
        found = json.loads(text, parse_constant=_not_finite)
        if not isinstance(found, dict):
            raise ValueError
        return found
    if kind in (bool, types.NoneType):
        known: dict[str, bool | None] = dict.fromkeys(NONE) if kind is types.NoneType else {**WORDS}
        if text.lower() not in known:
            raise ValueError
        return known[text.lower()]
    value = kind(text)
    if kind is float and not math.isfinite(value):
        raise ValueError
    return value


def _any_from_text(text: str) -> Any:
    if text.lower() in NONE:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text, parse_constant=_not_finite)
    except json.JSONDecodeError:
        return text


def _not_finite(text: str) -> None:
    raise ValueError(f"set: numbers must be finite, got {text}")


def _from_json(found: Any, kind: Any, name: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_json(found, kind, name)
    for each in _alternatives(kind):
        origin, inside = get_origin(each), get_args(each)
        if origin is Literal and found in inside:
            return found
        if origin in (list, tuple) and isinstance(found, list):
            items = [_from_json(item, inside[0], f"{name}[{i}]") for i, item in enumerate(found)]
            if origin is list or len(items) == len(inside):
                return origin(items)
        if origin is dict and isinstance(found, dict):
            return found
        if each is float and type(found) is int:
            return float(found)
        if type(found) is each:
            return found
    raise _wrong(name, kind, found)


def _dataclass_from_json(found: Any, kind: type, name: str) -> Any:
    if not isinstance(found, dict):
        raise ValueError(f"{name or 'a recipe'} must be a dict of fields, got {found!r}")
    known = _types(kind)
    dotted = f"{name}." if name else ""
    for each in found:
        if each not in known:
            raise ValueError(f"{dotted}{each} is not a field of a recipe; there are {', '.join(known)}")
    for each in known:
        if each not in found:
            raise ValueError(f"{dotted}{each} is missing in the recipe")
    return kind(**{each: _from_json(value, known[each], dotted + each) for each, value in found.items()})


def _flat(part: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted names and values of a dataclass or dict."""
    items = part.items() if isinstance(part, dict) else [(each.name, getattr(part, each.name)) for each in fields(part)]
    found: list[tuple[str, Any]] = []
    for name, value in items:
        if is_dataclass(value) or (isinstance(value, dict) and value):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def _as_text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
