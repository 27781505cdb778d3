"""The figures of a results file: S3 for training, S4 for generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swila.benchmarks.throughput.contenders import BASELINES, MODELS
from swila.plots import About, Look
from swila.plots.looks import LOOKS
from swila.plots.throughput import ThroughputLine, throughput_figure

KINDS = ("throughput-training", "throughput-generation")
_BASELINE_LOOKS = dict(
    zip(
        BASELINES,
        (Look("GDN, FLA's model", "#000000", "."), Look("GDN, FLA's model, TF32 products", "#808080", ".")),
        strict=True,
    )
)


def is_throughput(record: dict[str, Any]) -> bool:
    """Whether a record is of ``swila bench training`` or ``swila bench generation``."""
    return record.get("benchmark") in KINDS


def draw(record: dict[str, Any], out: Path) -> list[list[Path]]:
    """Draw the figure of a results file into a directory; returns the paths of its PNG and SVG, in a list."""
    if not record["rows"]:
        raise ValueError("results must have rows to be drawn, got none")
    return [_training(record, out) if record["benchmark"] == KINDS[0] else _generation(record, out)]


def calls(record: dict[str, Any]) -> str:
    """Return how many calls of generation were timed, and after how many others."""
    before = record.get("warm_up", 1)  # in files that do not say
    return f"{record['calls']} calls of swila.generate after {before} {'other' if before == 1 else 'others'}"


def shown(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that figures and tables show: of a model the compiled ones, if it has any."""
    rows = record["rows"]
    compiled = {row["model"] for row in rows if row["compiled"]}
    return [row for row in rows if row["compiled"] or row["model"] not in compiled]


def _training(record: dict[str, Any], out: Path) -> list[Path]:
    rows = shown(record)
    tokens = sorted({row["length"] * row["batch"] for row in rows})
    per_update = " or ".join(f"{n:,}" for n in tokens)
    parted = [row for row in rows if row["status"] == "timed" and row["micro_batch"] < row["batch"]]
    about = About(
        f"Training throughput and peak memory, {record['size'].upper()} models, {_machine(record)}",
        [f"complete training updates of {per_update} tokens: forward, loss, backward, clipping, AdamW"],
        [f"weights in {record['dtype']}", f"mean of {record['updates']} updates after {record['warm_up']} others"],
    )
    legend = ["peak memory includes weights, gradients and moments"]
    if parted:
        legend.append("where a whole update does not fit, its gradients are accumulated over micro-batches")
    return throughput_figure(
        _lines(rows, lambda row: row["length"]), "tokens of a sequence", about, legend, out / "throughput-training.png"
    )


def _generation(record: dict[str, Any], out: Path) -> list[Path]:
    about = About(
        f"Generation throughput and peak memory, {record['size'].upper()} models, {_machine(record)}",
        [f"prompts of {record['prompt']:,} tokens, {record['new']} tokens generated greedily"],
    )
    legend = [
        "throughput: generated tokens over the time of the whole call, reading the prompts included",
        f"mean of {calls(record)}",
        f"weights in {record['dtype']}",
    ]
    path = out / "throughput-generation.png"
    return throughput_figure(_lines(shown(record), lambda row: row["batch"]), "batch size", about, legend, path)


def _lines(rows: Sequence[dict[str, Any]], size: Callable[[dict[str, Any]], int]) -> list[ThroughputLine]:
    lines = []
    for model in sorted({row["model"] for row in rows}, key=[*MODELS, *BASELINES].index):
        mine = sorted((row for row in rows if row["model"] == model), key=size)
        timed = [row for row in mine if row["status"] == "timed"]
        points = [(size(row), row["tokens_per_second"], row["peak_bytes"]) for row in timed]
        lacking = [size(row) for row in mine if row["status"] == "out of memory"]
        look = _BASELINE_LOOKS.get(model) or LOOKS[model]
        lines.append(ThroughputLine(look, points, lacking, model in BASELINES))
    return lines


def _machine(record: dict[str, Any]) -> str:
    gpus = record["environment"]["gpus"]
    return gpus[0].removeprefix("NVIDIA ") if record["device"].startswith("cuda") and gpus else "CPU"
