"""Tables of docs/performance.md: training and generation of whole models, and the operation with few lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tools.tables.conditions import conditions
from tools.tables.markdown import markdown

from swila.benchmarks.baselines import OURS
from swila.benchmarks.throughput.contenders import BASELINE, BASELINES, MODELS, TF32_BASELINE, make_model
from swila.benchmarks.throughput.figures import calls, shown
from swila.benchmarks.throughput.training import ratio
from swila.models.language.presets import ARCHITECTURES

ORDER = (*BASELINES, *MODELS)
THEIRS = dict(zip(BASELINES, ("GDN, flash-linear-attention's model", "the same with TF32 products"), strict=True))
NOT_YET = "Not measured yet."
FLOAT32_PRODUCT = "simt_sgemm"  # in the names of kernels


def title(model: str) -> str:
    """Return the name of a model in tables."""
    return THEIRS.get(model) or ARCHITECTURES[model].title


def over(value: float | None, higher_is_better: bool, digits: int = 2) -> str:
    """Format a ratio to a baseline, bold where it is unfavourable; a dash without one."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    worse = float(text) < 1 if higher_is_better else float(text) > 1
    return f"**{text}**" if worse else text


def of_status(row: dict[str, Any] | None) -> str:
    """Return what a cell says instead of numbers: nothing was measured, or why not."""
    return "–" if row is None else row["status"]


def training_table(record: dict[str, Any], image: str | None = None) -> str:
    """Markdown for ``swila bench training``: throughput and peak memory of each model at each length.

    Args:
        record: The results.
        image: Path of the figure from the docs, or None for no figure.
    """
    rows = shown(record)
    lengths = sorted({(row["length"], row["batch"]) for row in rows})
    eager = [row for row in record["rows"] if row not in rows and row["status"] == "timed"]
    found = []
    for model in (model for model in ORDER if any(row["model"] == model for row in rows)):
        here = [_find(rows, model=model, length=T, batch=B) for T, B in lengths]
        found.append((title(model), *(_cells(record, row) for row in here)))
    headings = [f"T {T:,}, batch {B}" for T, B in lengths]
    text = markdown("l" + "r" * len(lengths), ["model", *headings], found, _training_note(record, rows, eager))
    alt = "Throughput and peak memory of training against the length of a sequence, for each model"
    return text if image is None else f"![{alt}]({image})\n\n{text}"


def _cells(record: dict[str, Any], row: dict[str, Any] | None) -> str:
    if row is None or row["status"] != "timed":
        return of_status(row)
    speed = f"{row['tokens_per_second'] / 1e3:.1f}k"
    peak = f"{row['peak_bytes'] / 1e9:.1f} GB"
    if row["model"] not in BASELINES:
        speeds = [ratio(record, row, "tokens_per_second", theirs) for theirs in BASELINES]
        speed += f" ({over(speeds[0], True)}{'' if speeds[1] is None else f' · {over(speeds[1], True)}'})"
        peak += f" ({over(ratio(record, row, 'peak_bytes'), False)})"
    return f"{speed}, {peak}"


def _training_note(record: dict[str, Any], rows: list[dict[str, Any]], eager: list[dict[str, Any]]) -> str:
    parted = [row for row in rows if row["status"] == "timed" and row["micro_batch"] < row["batch"]]
    with_tf32 = any(row["model"] == TF32_BASELINE and row["status"] == "timed" for row in rows)
    note = (
        "Tokens per second and peak memory, in brackets over flash-linear-attention's model"
        f"{', and over it with TF32 products' if with_tf32 else ''}; bold where ours is slower or takes more. "
        f"Models of {record['size'].upper()}, weights in {record['dtype']}, mean of {record['updates']} updates "
        f"after {record['warm_up']} others. "
    )
    if parted:
        sizes = sorted({row["micro_batch"] * row["length"] for row in parted})
        note += (
            "A whole update did not always fit, and gradients were accumulated over micro-batches of "
            f"{' or '.join(f'{size:,}' for size in sizes)} tokens"
        )
        timed = [row for row in rows if row["status"] == "timed"]
        if len({row["micro_batch"] * row["length"] for row in timed}) > 1:  # then memory is not of the same work
            models = [model for model in ORDER if any(row["model"] == model for row in timed)]
            note += f" (sequences at a time, by length: {', '.join(f'{title(m)} {_micro(timed, m)}' for m in models)})"
        note += ". "
    if any(row["kernel"] == "fla" and row["model"] not in BASELINES for row in rows):
        note += "Our GDN layers use flash-linear-attention's kernel. "
    for row in eager:
        note += (
            f"{title(row['model'])} without compilation, T {row['length']:,}: {row['tokens_per_second'] / 1e3:.1f}k. "
        )
    note += _backends_of_attention(rows)
    if len(record["dates"]) > 1:
        note += f"Measured in {len(record['dates'])} processes on the same kind of machine. "
    return f"{note}{conditions(record)}."


def _backends_of_attention(rows: list[dict[str, Any]]) -> str:
    chosen = sorted({row["attention"]["backend"] for row in rows if row.get("attention")})
    return f"Softmax attention runs on the fastest of torch's backends ({', '.join(chosen)}). " if chosen else ""


def _micro(rows: list[dict[str, Any]], model: str) -> str:
    mine = sorted((row for row in rows if row["model"] == model), key=lambda row: row["length"])
    return "/".join(str(row["micro_batch"]) for row in mine)


def generation_throughput_table(record: dict[str, Any], image: str | None = None) -> str:
    """Markdown for ``swila bench generation``: tokens per second, times and peak memory by model and batch size.

    Args:
        record: The results.
        image: Path of the figure from the docs, or None for no figure.
    """
    rows = shown(record)
    batches = sorted({row["batch"] for row in rows})
    models = [model for model in ORDER if any(row["model"] == model for row in rows)]

    def table(cell: Callable[[dict[str, Any]], str]) -> list[tuple[str, ...]]:
        return [
            (title(model), *(_or_status(_find(rows, model=model, batch=B), cell) for B in batches)) for model in models
        ]

    columns, headings = "l" + "r" * len(batches), [f"batch {B}" for B in batches]

    def speed(row: dict[str, Any]) -> str:
        gdn = _find(rows, model="gdn", batch=row["batch"])
        compared = "swila" in row["model"] and gdn is not None and gdn["status"] == "timed"
        beside = f" ({over(row['tokens_per_second'] / gdn['tokens_per_second'], True)})" if compared and gdn else ""
        return f"{row['tokens_per_second']:,.0f}{beside}"

    parts = [
        markdown(columns, ["generated tokens/s", *headings], table(speed)),
        markdown(
            columns,
            ["ms for the prompts, ms a step", *headings],
            table(lambda row: f"{row['prompt_ms']:,.0f}, {row['step_ms']:.2f}"),
        ),
        markdown(
            columns,
            ["peak GB", *headings],
            table(lambda row: f"{row['peak_bytes'] / 1e9:.1f}"),
            f"Models of {record['size'].upper()}, weights in {record['dtype']}, prompts of {record['prompt']:,} "
            f"tokens, {record['new']} tokens generated greedily; means of {calls(record)}. "
            "Throughput is over the time of the whole call, reading the prompts included; in brackets "
            "SwiLA over our GDN, bold where it is slower. Batches after the first that is out of memory are left out. "
            f"{_baseline(rows)}{_floors(rows)}{_steps_beside(rows)}{_steps_at_least(record, rows)}"
            f"{_backends_of_attention(rows)}{conditions(record)}.",
        ),
    ]
    alt = "Throughput and peak memory of generation against the batch size, for each model; a cross is out of memory"
    return "\n\n".join([*([] if image is None else [f"![{alt}]({image})"]), *parts])


def _or_status(row: dict[str, Any] | None, cell: Callable[[dict[str, Any]], str]) -> str:
    return cell(row) if row is not None and row["status"] == "timed" else of_status(row)


def _baseline(rows: list[dict[str, Any]]) -> str:
    if not any(row["model"] == BASELINE for row in rows):
        return ""
    return f"{title(BASELINE)}, generates by transformers' generate, eagerly. "


def _floors(rows: list[dict[str, Any]]) -> str:
    steps = [row for row in rows if "weights_ms" in row]
    reads = [row for row in rows if "forward_ms" in row]
    text = ""
    if steps:
        told = ", ".join(f"{title(row['model'])} {row['step_ms'] / row['weights_ms']:.1f}" for row in steps)
        text += f"A step at batch 1 over the time to read the weights once at the bandwidth of a copy: {told}. "
    if reads:
        told = ", ".join(
            f"{title(row['model'])} {over(row['forward_ms'] / row['prompt_ms'], True)} (batch {row['batch']})"
            for row in reads
        )
        text += f"Speed of reading prompts over a compiled forward without cache on the same tokens: {told}. "
    return text


def _steps_beside(rows: list[dict[str, Any]]) -> str:
    """Return how decode steps of SwiLA and Transformer++ compare at the largest batch of both, and their prompts."""
    timed = {(row["model"], row["batch"]): row for row in rows if row["status"] == "timed"}
    both = [batch for model, batch in timed if model == "swila" and ("transformer", batch) in timed]
    if not both:
        return ""
    ours, theirs = (timed[model, max(both)] for model in ("swila", "transformer"))
    return (
        f"At batch {max(both)}, a decode step of Transformer++ takes {theirs['step_ms'] / ours['step_ms']:.1f} times "
        f"as long as SwiLA's; reading the prompts is {ours['prompt_ms'] / ours['call_ms']:.0%} of SwiLA's call and "
        f"{theirs['prompt_ms'] / theirs['call_ms']:.0%} of Transformer++'s. "
    )


def _steps_at_least(record: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return what steps take over the time to move what they must, at the largest batch of each model."""
    if "copy_bytes_per_ms" not in record:
        return ""
    largest = {row["model"]: row for row in sorted(rows, key=lambda row: row["batch"]) if row["status"] == "timed"}
    told = []
    for model in (model for model in ORDER if model in largest):
        row = largest[model]
        least = moved_bytes(model, record["size"], row["batch"], record["prompt"] + record["new"] // 2)
        times = row["step_ms"] * record["copy_bytes_per_ms"] / least
        told.append(f"{title(model)} {times:.1f} (batch {row['batch']})")
    return (
        "A step over the time to read weights and cached keys and values once, and to read and write the recurrent "
        f"state once at the bandwidth of a copy: {', '.join(told)}. "
    )


def moved_bytes(model: str, size: str, batch: int, tokens: int) -> float:
    """Return the bytes that a decode step moves at least: weights and cache in bfloat16, recurrent state in float32.

    Args:
        model: Architecture.
        size: Size of the preset.
        batch: Number of rows.
        tokens: Tokens in the cache of a row.
    """
    made = make_model("gdn" if model in BASELINES else model, size, "meta", torch.bfloat16)
    state = made.model.state_size(0)
    cached = made.model.state_size(tokens) - state
    return 2 * sum(p.numel() for p in made.parameters()) + batch * (2 * 4 * state + 2 * cached)


def lanes_table(record: dict[str, Any], before: dict[str, Any]) -> str:
    """Markdown for ``swila bench op --few-lanes``: ratios to GDN's kernel at each shape, earlier and now."""
    earlier = {_shape(each["shape"]): each for each in before["operation"]["shapes"]}
    found = []
    for measured in record["shapes"]:
        shape, timings = measured["shape"], {each["name"]: each for each in measured["timings"]}
        for name in (name for name in OURS if name in timings):
            then = earlier.get(_shape(shape), {}).get(name, [None, None])
            cells = []
            for what, old in zip(before["operation"]["measures"], then, strict=True):
                mine, theirs = timings[name].get(what), timings.get("GDN", {}).get(what)
                now = over(mine / theirs, False) if mine and theirs else "–"
                cells += [over(old, False), now, f"{mine:.2f}" if mine else "–"]
            found.append((_shape(shape), str(shape["B"] * shape["H"]), name, *cells))
    return markdown(
        "lrl" + "r" * 6,
        [
            "shape",
            "lanes",
            "SwiLA",
            "forward / GDN, before",
            "now",
            "ms",
            "forward + backward / GDN, before",
            "now",
            "ms",
        ],
        found,
        "Time over that of flash-linear-attention's GDN kernel with a state of the same size; above 1 (bold), SwiLA "
        f"takes more. Lanes are batch × heads. Before: commit `{before['environment']['commit'][:7]}`. "
        f"Medians of {record['repeats']} repetitions, in turns in one process. {conditions(record)}.",
    )


def _shape(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}{sizes[name]}" for name in "BTH")


def time_by_kind_table(record: dict[str, Any], before: dict[str, Any]) -> str:
    """Markdown for the profiles of a results file: milliseconds of an update by kind of kernel, earlier and now.

    Args:
        record: Results of ``swila bench training --profile``.
        before: The earlier measurements, of which one update was profiled.
    """
    rows = [row for row in shown(record) if "profile" in row]
    past = before["update"]
    length = past["length"] if any(row["length"] == past["length"] for row in rows) else None
    profiles = {row["model"]: row for row in rows if length in (None, row["length"])}
    names = [model for model in ORDER if model in profiles]
    if not names:
        return NOT_YET
    chosen: dict[str, float] = {}
    if past["size"] == record["size"] and past["model"] in names:
        chosen = past["kinds"]
    kinds = list(dict.fromkeys([*(kind for name in names for kind in profiles[name]["profile"]["kinds"]), *chosen]))
    found = []
    for kind in kinds:
        then = [f"{chosen[kind]:.0f}" if kind in chosen else "–"] if chosen else []
        times = (profiles[name]["profile"]["kinds"].get(kind) for name in names)
        found.append((kind, *then, *("–" if ms is None else f"{ms:.1f}" for ms in times)))
    sums = [sum(profiles[name]["profile"]["kinds"].values()) for name in names]
    slow = {name: sum(ms for kernel, ms in profiles[name]["profile"]["longest"].items() if FLOAT32_PRODUCT in kernel)
            for name in names}  # fmt: skip
    found.append(("all kernels", *([f"{past['update_ms']:.0f}"] if chosen else []), *(f"{ms:.1f}" for ms in sums)))
    commit = before["environment"]["commit"][:7]
    earlier = [f"{title(past['model'])}, before"] if chosen else []
    at = sorted({(row["length"], row["batch"]) for row in profiles.values()})
    shapes = " and ".join(f"T {T:,}, batch {B}" for T, B in at)
    note = f"Milliseconds of an update by torch's profiler, {record['size'].upper()}, {shapes}. "
    if chosen:
        note += f"Before: commit `{commit}`, T {past['length']:,}, batch {past['batch']}. {past['note']} "
    for name in (name for name in names if slow[name]):
        note += f"Of the matrix products of {title(name)}, {slow[name]:.1f} ms are in float32, without tensor cores. "
    return markdown(
        "l" + "r" * (len(names) + len(earlier)),
        ["kernels", *earlier, *map(title, names)],
        found,
        f"{note}{conditions(record)}.",
    )


def _find(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any] | None:
    return next((row for row in rows if all(row[key] == value for key, value in values.items())), None)
