"""Options that several commands share, and errors in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    import torch

    from swila.testing import Shape, Variant

Tuned = Annotated[
    Path | None,
    typer.Option(help="File of tuned configurations of flash-linear-attention's kernels: read, and added to."),
]
DTYPES = ("float64", "float32", "bfloat16", "float16")


def fail(message: str) -> NoReturn:
    """Exit with one line on standard error and status 2."""
    print(f"swila: {message}", file=sys.stderr)
    raise SystemExit(2)


def needs_transformers() -> None:
    """Exit with a message unless a supported version of transformers is installed."""
    from swila.models.auto import why_unusable

    if reason := why_unusable():
        fail(f"this command needs transformers: {reason}. Try: pip install 'swila[hf]'")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors that a user can cause in one line, without a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error))


def parse_device(text: str) -> str:
    """Check that a device exists on this machine and return its name."""
    import torch

    reason = None
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
        if device.type == "meta":
            reason = "its tensors hold no numbers"
    except (RuntimeError, AssertionError) as error:  # only the first sentence of the message helps users
        reason = str(error).partition("\n")[0].partition("Expected one of")[0].partition(". ")[0].strip()
        reason = reason or "torch has no device of this name"
    if reason is not None:
        raise ValueError(f"device {text!r} cannot be used here (cpu, cuda and cuda:1 are devices): {reason}")
    return text


def parse_dtype(text: str) -> torch.dtype:
    """Return a dtype by its name in torch."""
    import torch

    text = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}.get(text, text)
    if text not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {text!r}")
    return getattr(torch, text)


def parse_variant(text: str) -> Variant:
    """Return a variant of the recurrence by its name."""
    from swila.testing import VARIANTS

    if text not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {text!r}")
    return VARIANTS[text]


def parse_shape(text: str) -> Shape:
    """Parse sizes such as ``B4 T1024 H4 K64 V64 J4``, in any order; sizes that are not given have defaults."""
    from swila.testing import Shape

    sizes = re.findall(r"([A-Za-z]+)(\d+)", text)
    rest = re.sub(r"([A-Za-z]+)(\d+)", "", text).strip(" ,x")
    if rest or not sizes or any(name not in Shape.__dataclass_fields__ or int(size) < 1 for name, size in sizes):
        raise ValueError(f"shape must be sizes such as 'B4 T1024 H4 K64 V64 J4', got {text!r}")
    return Shape(**{name: int(size) for name, size in sizes})


def parse_seeds(text: str | None) -> list[int] | None:
    """Parse seeds: ``"3"`` is the three seeds 0 to 2, ``"0,4,7"`` a list of seeds."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if (
        not parts
        or not all(part.isascii() and part.isdigit() for part in parts)
        or ("," not in text and int(parts[0]) < 1)
    ):
        raise ValueError(f"seeds must be a number of seeds (3) or a list of them (0,4,7), got {text!r}")
    return list(range(int(parts[0]))) if "," not in text else sorted({int(part) for part in parts})
