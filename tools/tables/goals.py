"""The table of goals in docs/performance.md: ratios that speed is judged by, before and now."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from tools.tables.markdown import markdown
from tools.tables.throughput import title

from swila.benchmarks.throughput.contenders import BASELINE, BASELINES
from swila.benchmarks.throughput.figures import shown
from swila.benchmarks.throughput.training import ratio

Record = dict[str, Any] | None


class Goal(NamedTuple):
    """A ratio with its goal.

    Attributes:
        what: What is divided by what.
        must: Value that is required.
        aim: Value that is aimed at.
        before: Value at the earlier commit, or None.
        now: Values of all cases; the worst counts. None or empty if they were not measured.
    """

    what: str
    must: float
    aim: float
    before: float | None
    now: list[float]

    @property
    def higher(self) -> bool:
        """Whether higher is better."""
        return self.aim > self.must

    def worst(self) -> float | None:
        """Return the value that counts, rounded as the table shows it."""
        return round((min if self.higher else max)(self.now), 2) if self.now else None

    def reached(self) -> str:
        """Return ``aim``, ``required``, ``**no**`` or ``not measured``."""
        found = self.worst()
        if found is None:
            return "not measured"

        def as_good_as(goal: float) -> bool:
            return found >= goal if self.higher else found <= goal

        return "aim" if as_good_as(self.aim) else "required" if as_good_as(self.must) else "**no**"


def goals_table(before: dict[str, Any], large: Record, medium: Record, generation: Record, lanes: Record) -> str:
    """Markdown for the goals, with a verdict on each.

    Args:
        before: The earlier measurements.
        large: Results of ``swila bench training`` at 1.3B, or None.
        medium: Those at 374M, 8 sequences of 4,096 tokens, or None.
        generation: Results of ``swila bench generation``, or None.
        lanes: Results of ``swila bench op --few-lanes``, or None.
    """
    goals = [*_operation(before, lanes), *_training(before, large, medium), *_generation(before, generation)]
    rows = []
    for goal in goals:
        worst, direction = goal.worst(), "≥" if goal.higher else "≤"
        now = "–" if worst is None else f"**{worst:.2f}**" if goal.reached() == "**no**" else f"{worst:.2f}"
        then = "–" if goal.before is None else f"{goal.before:.2f}"
        rows.append((goal.what, f"{direction} {goal.must:g}", f"{direction} {goal.aim:g}", then, now, goal.reached()))
    return markdown(
        "lrrrrl",
        ["ratio", "required", "aim", "before", "now", "reached"],
        rows,
        "GDN is flash-linear-attention's: its kernel for the operation, its own model for training; in generation, "
        "rows say whose. Its model multiplies in float32 where the head's weight gets its gradient; rows with TF32 "
        "products compare with the same model where torch may round these operands. Where several lengths or batches "
        "are measured, the worst counts; ratios that miss what is required are bold. "
        f"Before: commit `{before['environment']['commit'][:7]}`, where training at 1.3B was measured at "
        "T 4,096 with batch 8 only.",
    )


def _operation(before: dict[str, Any], lanes: Record) -> list[Goal]:
    earlier = {_key(each["shape"]): each for each in before["operation"]["shapes"]}
    goals = []
    for sizes, variant, what, must, aim in (
        ((8, 4096, 8), "plain", "total_ms", 0.85, 0.6),
        ((8, 4096, 8), "temporal", "total_ms", 1.05, 0.8),
        ((2, 16384, 16), "plain", "total_ms", 1.5, 1.0),
        ((1, 65536, 8), "plain", "forward_ms", 2.2, 1.5),
        ((16, 4096, 8), "plain", "forward_ms", 0.65, 0.45),
    ):
        then = earlier[sizes][variant][before["operation"]["measures"].index(what)] if sizes in earlier else None
        work = "forward" if what == "forward_ms" else "forward + backward"
        name = f"operation, B{sizes[0]} T{sizes[1]} H{sizes[2]}, {variant}: time of {work} / GDN"
        goals.append(Goal(name, must, aim, then, _kernel_ratio(lanes, sizes, variant, what)))
    return goals


def _key(shape: dict[str, int]) -> tuple[int, int, int]:
    return shape["B"], shape["T"], shape["H"]


def _kernel_ratio(lanes: Record, sizes: tuple[int, int, int], variant: str, what: str) -> list[float]:
    for found in lanes["shapes"] if lanes else ():
        times = {timing["name"]: timing.get(what) for timing in found["timings"]}
        if _key(found["shape"]) == sizes and times.get(variant) and times.get("GDN"):
            return [times[variant] / times["GDN"]]
    return []


def _training(before: dict[str, Any], large: Record, medium: Record) -> list[Goal]:
    def then(size: str, model: str, field: str) -> float:
        found = {row["model"]: row[field] for row in before["training"]["rows"] if row["size"] == size and row[field]
                 and (row["compiled"] or row["model"] == BASELINE)}  # fmt: skip
        return found[model] / found[BASELINE]

    def now(record: Record, model: str, field: str, baseline: str = BASELINE) -> list[float]:
        rows = [row for row in shown(record) if row["model"] == model] if record else []
        return [found for row in rows if (found := ratio(record or {}, row, field, baseline)) is not None]

    goals = []
    for where, size, record, wanted in (
        ("374M, T 4,096, batch 8", "374m", medium, (("swila", 1.15, 1.35), ("temporal-swila", 1.05, 1.2))),
        ("1.3B, every length", "1.3b", large, (("swila", 1.05, 1.25), ("temporal-swila", 1.0, 1.15))),
    ):
        for (model, must, aim), theirs in product(wanted, BASELINES):
            what = "GDN" if theirs == BASELINE else "GDN with TF32 products"
            past = then(size, model, "tokens_per_second") if theirs == BASELINE else None
            values = now(record, model, "tokens_per_second", theirs)
            goals.append(Goal(f"training, {where}, {title(model)}: tokens/s / {what}", must, aim, past, values))
    past = then("374m", "swila", "peak_bytes")
    name = "training, 374M, T 4,096, batch 8, SwiLA: peak memory / GDN"
    goals.append(Goal(name, 1.1, 0.9, past, now(medium, "swila", "peak_bytes")))
    eager, compiled = ([row["tokens_per_second"] for row in before["training"]["rows"] if row["size"] == "374m"
                        and row["model"] == "swila" and row["compiled"] == way] for way in (False, True))  # fmt: skip
    name = "training, 374M, SwiLA: tokens/s without compilation / compiled"
    goals.append(Goal(name, 0.85, 0.95, eager[0] / compiled[0], _eager(medium)))
    return goals


def _eager(medium: Record) -> list[float]:
    found: dict[tuple[int, int], dict[bool, float]] = {}
    for row in medium["rows"] if medium else ():
        if row["model"] == "swila" and row["status"] == "timed":
            found.setdefault((row["length"], row["batch"]), {})[row["compiled"]] = row["tokens_per_second"]
    return [ways[False] / ways[True] for ways in found.values() if len(ways) == 2]


def _generation(before: dict[str, Any], record: Record) -> list[Goal]:
    rows = [row for row in shown(record) if row["status"] == "timed"] if record else []
    speeds: dict[str, dict[int, float]] = {}
    for row in rows:
        speeds.setdefault(row["model"], {})[row["batch"]] = row["tokens_per_second"]

    def beside(other: str) -> dict[int, float]:
        mine, theirs = speeds.get("swila", {}), speeds.get(other, {})
        return {batch: mine[batch] / theirs[batch] for batch in sorted(mine) if batch in theirs}

    ours = [row for row in rows if row["model"] == "swila"]
    steps = [row["step_ms"] / row["weights_ms"] for row in ours if "weights_ms" in row]
    reads = [row["forward_ms"] / row["prompt_ms"] for row in ours if "forward_ms" in row]
    past = before["generation"]
    step = next(row["step_ms"] for row in past["rows"] if (row["model"], row["batch"]) == ("swila", 1))
    return [
        *(
            Goal(f"generation, 1.3B, every batch, SwiLA: tokens/s / {what}", 1.0, 1.2, None, list(beside(gdn).values()))
            for what, gdn in (("our GDN", "gdn"), ("flash-linear-attention's GDN model", BASELINE))
        ),
        Goal(
            "generation, 1.3B, largest batch that both run, SwiLA: tokens/s / Transformer++",
            5, 8, None, list(beside("transformer").values())[-1:],
        ),
        Goal(
            "generation, 1.3B, batch 1, SwiLA: time of a step / reading the weights once",
            2.0, 1.3, step / past["weights_ms"], steps,
        ),
        Goal("generation, 1.3B, SwiLA: speed of reading prompts / a compiled forward", 0.9, 1.0, None, reads),
    ]  # fmt: skip
