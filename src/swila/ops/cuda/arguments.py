"""Arguments of a kernel by name: the fields of its ``struct Arguments``, read from its source.

The struct in the source is the only list of a kernel's arguments. By :func:`assertions` the compiler confirms that
name, type and offset of each field, and the size of the struct, are as they were read.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from swila.ops.cuda.specialization import TYPES, Specialization

Value = int | Tensor | None
WORD = 8  # bytes of a field: a pointer or an i64


class Field(NamedTuple):
    """A field of the struct: a pointer (``const TX*``) or an ``i64``."""

    name: str
    type: str


class Arguments:
    """The struct of one kernel.

    Args:
        kernel: Name of the kernel, for messages.
        fields: Fields in the order of the struct.
    """

    def __init__(self, kernel: str, fields: tuple[Field, ...]) -> None:
        self.kernel, self.fields = kernel, fields
        self._names = tuple(field.name for field in fields)
        self._words = ctypes.c_int64 * len(fields)
        self._pack_into = struct.Struct(f"{len(fields)}q").pack_into  # three times as fast as to fill the array

    @classmethod
    def of(cls, kernel: str, source: str) -> Arguments:
        """Read the struct from a kernel's source."""
        return cls(kernel, read_fields(source))

    def pack(self, values: Mapping[str, Value]) -> ctypes.Array:
        """Return the struct with these values; None is a null pointer.

        Raises:
            TypeError: If a field has no value, or a value no field.
        """
        try:
            found = [values[name] for name in self._names]
        except KeyError:
            found = []
        if len(found) != len(values):
            missing, unknown = [n for n in self._names if n not in values], [n for n in values if n not in self._names]
            raise TypeError(f"arguments of the {self.kernel} kernel: missing {missing}, unknown {unknown}")
        words = self._words()
        self._pack_into(words, 0, *[0 if v is None else v if isinstance(v, int) else v.data_ptr() for v in found])
        return words

    def check_types(self, spec: Specialization, values: Mapping[str, Value]) -> None:
        """Raise a TypeError if a value is not of its field's type."""
        types = {"TX": spec.x_type, "TB": spec.b_type, "TD": spec.d_type, "INDEX": spec.index_type}
        types |= {"float4_": "float", "uint4_": "bf16"}
        for name, of in self.fields:
            value = values[name]
            pointer = of.endswith("*")
            needed = of.removeprefix("const ").removesuffix("*")
            needed = types.get(needed, needed)
            if isinstance(value, Tensor):
                fits = pointer and needed in ("void", TYPES[value.dtype])
            else:
                fits = (value is None) == pointer
            if not fits:
                got = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)
                raise TypeError(f"{name} of the {self.kernel} kernel must be {needed}{'*' * pointer}, got {got}")


def read_fields(source: str) -> tuple[Field, ...]:
    """Return the fields of ``struct Arguments`` in a source; a ValueError names a declaration of any other form."""
    body = re.search(r"^struct Arguments \{\n(.*?)^\};", source, re.DOTALL | re.MULTILINE)
    if body is None:
        raise ValueError("the source has no struct Arguments")
    fields = []
    for declaration in re.sub(r"//.*", "", body[1]).split(";")[:-1]:
        parts = re.fullmatch(r"(const )?(\w+)\b(.*)", " ".join(declaration.split()))
        for declarator in parts[3].split(",") if parts else [""]:
            one = re.fullmatch(r" ?(\*?) ?(\w+)", declarator)
            if parts is None or one is None or (parts[2] == "i64") == bool(one[1]):
                raise ValueError(f"struct Arguments: expected pointers or i64, got {declaration.strip()!r}")
            fields.append(Field(one[2], f"{parts[1] or ''}{parts[2]}{one[1]}"))
    return tuple(fields)


def assertions(fields: tuple[Field, ...]) -> str:
    """Return C++ that does not compile unless the struct has exactly these fields, one word each, in this order."""
    lines = [f'static_assert(sizeof(Arguments) == {WORD * len(fields)}, "size of Arguments");']
    for i, (name, of) in enumerate(fields):
        offset = f"OFFSET_OF(Arguments, {name}) == {WORD * i}"
        lines.append(f'static_assert({offset} && same<decltype(Arguments::{name}), {of}>::value, "{name}");')
    return "\n".join(lines) + "\n"
