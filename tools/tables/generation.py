"""Tables of ``swila bench generate``: time per token beside transformers' loop."""

from __future__ import annotations

from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown

HEADINGS = {"swila": "`swila.generate`", "swila, compiled": "`compile=True`", "transformers": "transformers"}


def generation_table(record: dict[str, Any]) -> str:
    """Markdown for the results: a row for each model and batch size."""
    rows = []
    for row in record["timings"]:
        times = [row["token_ms"].get(way) for way in HEADINGS]
        ours, compiled, theirs = times
        speedups = [None if theirs is None or time is None else theirs / time for time in (ours, compiled)]
        numbers = [_number(row["prefill_ms"], 0), *(_number(time, 2) for time in times)]
        rows.append((row["model"], str(row["batch"]), *numbers, *(_number(speedup, 1, "") for speedup in speedups)))
    text = record["long"]
    assert text["same"]
    return markdown(
        "l" + "r" * 7,
        ["model", "batch", "prefill ms", *(f"{name}, ms per token" for name in HEADINGS.values()), "speedup",
         "speedup, `compile=True`"],
        rows,
        f"Speedups are over transformers' `generate` on the same model. Random weights in {record['dtype']}, prompts "
        f"of {record['prompt']:,} tokens, {record['new']} new tokens, medians of {record['repeats']} repetitions. "
        f"{text['model']} read a text of {text['tokens']:,} tokens in {text['read_s']:.1f} s; its state was saved to a "
        f"file of {text['file_bytes'] / 1e6:.1f} MB, and generation resumed from the file bit for bit. "
        f"{conditions(record)}.",
    )  # fmt: skip


def speedups(record: dict[str, Any], way: str) -> list[float]:
    """Transformers' time per token over ours, for each model and batch size.

    Args:
        record: The results.
        way: ``"swila"`` or ``"swila, compiled"``.
    """
    times = [row["token_ms"] for row in record["timings"]]
    return [time["transformers"] / time[way] for time in times if way in time and "transformers" in time]


def _number(value: float | None, digits: int, missing: str = "out of memory") -> str:
    return missing if value is None else f"{value:.{digits}f}"
