"""The RegBench experiment."""

from __future__ import annotations

from swila.experiments.cells import count, fraction, spread
from swila.experiments.experiment import Column, Experiment
from swila.experiments.regbench.figures import draw
from swila.experiments.regbench.presets import PRESETS
from swila.experiments.regbench.runs import KIND, MODELS, make_runs
from swila.experiments.regbench.summary import RegBenchRow, summarize, yardsticks

REGBENCH = Experiment[RegBenchRow](
    name="regbench",
    title="RegBench",
    kind=KIND,
    presets=PRESETS,
    models=MODELS,
    make_runs=make_runs,
    summarize=summarize,
    references=lambda preset: {"yardsticks": yardsticks(preset)},
    columns=(
        Column("automata", lambda row: count(row["train_examples"])),
        Column("parameters", lambda row: count(row["parameters"])),
        Column("test accuracy", lambda row: spread(row["scores"])),
        Column("TV", lambda row: fraction(row["test"].get("tv"))),
        Column("best epoch", lambda row: ", ".join(f"{epoch:.0f}" for epoch in row["best_epochs"])),
    ),
    caption=lambda record: (
        "share of legal symbols, mean over seeds (lowest–highest); n-grams of the same strings: "
        + ", ".join(f"{name} {found['accuracy']:.3f}" for name, found in record["yardsticks"].items())
    ),
    draw=draw,
)
