"""The measured facts that the README opens with."""

from __future__ import annotations

from typing import Any

from tools.tables.generation import speedups
from tools.tables.operation import total_ratios
from tools.tables.recall import SOLVED
from tools.tables.throughput import title as title_of
from tools.tables.wording import listed, span

from swila.benchmarks.throughput.contenders import BASELINE
from swila.benchmarks.throughput.training import ratio
from swila.experiments.catalogue import title

MODELS = ("swila", "temporal-swila")
VARIANTS = {"plain": "plain SwiLA", "temporal": "Temporal SwiLA", "gated": "SwiLA with a decay per key dim"}


def headline(op: dict[str, Any], training: dict[str, Any], generation: dict[str, Any], cdar: dict[str, Any]) -> str:
    """Markdown: a bullet each on kernels, training of whole models, decoding speed and recall.

    Args:
        op: Results of ``swila bench op`` on a GPU.
        training: Results of ``swila bench training``.
        generation: Results of ``swila bench generate``.
        cdar: Results of ``swila run cdar``.
    """
    return "\n".join(f"- {fact}" for fact in (_kernels(op), _training(training), _decoding(generation), _recall(cdar)))


def _kernels(record: dict[str, Any]) -> str:
    ratios = {name: span(total_ratios(record, name, "GDN"), ".2f") for name in VARIANTS}
    told = [f"{ratios[name]}× ({words})" for name, words in VARIANTS.items()]
    return (
        f"**CUDA kernels.** On an {_gpu(record)}, forward and backward of the operation take {listed(told)} the time "
        "of flash-linear-attention's Gated DeltaNet with the same state size ([all ratios](#speed))."
    )


def _training(record: dict[str, Any]) -> str:
    timed = [row for row in record["rows"] if row["status"] == "timed"]
    baseline = [row for row in timed if row["model"] == BASELINE]
    assert not any(row["compiled"] for row in baseline), "the baseline runs eagerly"
    lengths = sorted(row["length"] for row in baseline)

    def ratios(model: str, field: str) -> str:
        rows = [row for row in timed if row["model"] == model and row["compiled"]]
        assert sorted(row["length"] for row in rows) == lengths, "every length is compared"
        return span((found for row in rows if (found := ratio(record, row, field)) is not None), ".2f")

    speeds = [f"{ratios(model, 'tokens_per_second')}× ({title_of(model)})" for model in MODELS]
    peaks = [f"{ratios(model, 'peak_bytes')}×" for model in MODELS]
    return (
        f"**Training.** Models of {record['size'].upper()} parameters train at {listed(speeds)} the tokens per second "
        f"of flash-linear-attention's Gated DeltaNet model, with {listed(peaks)} its peak memory (sequences of "
        f"{lengths[0]:,} to {lengths[-1]:,} tokens, our blocks compiled, its model eager, {_gpu(record)}; "
        "[all ratios](docs/performance.md#ratios-and-goals))."
    )


def _decoding(record: dict[str, Any]) -> str:
    models = {row["model"] for row in record["timings"]}
    assert all(model.endswith("-374m") for model in models), "all models are of size 374m"
    batches = sorted({row["batch"] for row in record["timings"]})
    plain, compiled = (span(speedups(record, way), ".1f") for way in ("swila", "swila, compiled"))
    return (
        f"**Decoding.** `swila.generate` takes {plain} times less time per token than transformers' `generate` for the "
        f"same model, and {compiled} times less with `compile=True` ({len(models)} models of 374M parameters, batch "
        f"sizes {listed(map(str, batches))}, {_gpu(record)}; [table](docs/benchmarks.md#generation))."
    )


def _recall(record: dict[str, Any]) -> str:
    assert len({row["state"] for row in record["rows"]}) == 1, "models of one state size are compared"
    told = [f"{title(row['model'])} {row['solved']} of {row['runs']} seeds" for row in record["rows"]]
    return (
        "**Recall that depends on context.** A small task in which the value of a key depends on the context, solved "
        f"(accuracy above {SOLVED}) with the same state size: {', '.join(told)} ([below](#what-the-mixtures-are-for))."
    )


def _gpu(record: dict[str, Any]) -> str:
    return listed(gpu.removeprefix("NVIDIA ") for gpu in record["environment"]["gpus"])
