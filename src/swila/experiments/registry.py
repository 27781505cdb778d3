"""The experiments by name, and how their results are shown."""

from __future__ import annotations

from dataclasses import replace

from swila.experiments import cdar, mqar
from swila.experiments.cdar import figures as cdar_figures
from swila.experiments.experiment import Column, Experiment, spread
from swila.experiments.recall import figures as recall_figures
from swila.experiments.recall import runs as recall
from swila.experiments.regbench import figures as regbench_figures
from swila.experiments.regbench import runs as regbench
from swila.experiments.softmax_regression import figures as softmax_regression_figures
from swila.experiments.softmax_regression import runs as softmax_regression


def _count(name: str) -> Column:
    return Column(name, lambda row: f"{row[name]:,}")


def _fraction(name: str) -> Column:
    return Column(name, lambda row: "" if row[name] is None else f"{row[name]:.3f}")


def _of_seeds(heading: str) -> Column:
    return Column(heading, lambda row: spread(row["scores"]))


CDAR = Experiment(
    name="cdar",
    title="CDAR",
    presets=cdar.PRESETS,
    models=recall.MODELS,
    summarize=recall.summarize,
    facts=lambda preset: {"plateau": preset.task.plateau},
    columns=(
        Column("width", lambda row: str(row["hidden_size"])),
        Column("layers", lambda row: str(row["layers"])),
        Column("set", lambda row: row["variant"]),
        Column("steps", lambda row: row["length"]),
        _count("state"),
        _count("parameters"),
        _fraction("best"),
        _fraction("mean"),
        Column("solved", lambda row: f"{row['solved']}/{row['runs']}"),
    ),
    caption=lambda record: (
        "test accuracy, best and mean over learning rates and seeds; "
        f"{record['plateau']:.2f} is knowing the values but not the context"
    ),
    draw=cdar_figures.draw,
)

MQAR = replace(
    CDAR,
    name="mqar",
    title="MQAR",
    presets=mqar.PRESETS,
    facts=lambda preset: {},
    caption=lambda record: "test accuracy, best and mean over learning rates and seeds",
    draw=recall_figures.draw,
)

SOFTMAX_REGRESSION = Experiment(
    name="softmax-regression",
    title="Approximating softmax attention",
    presets=softmax_regression.PRESETS,
    models=softmax_regression.MODELS,
    summarize=softmax_regression.summarize,
    facts=lambda preset: {},
    columns=(
        Column("heads, mixtures", lambda row: row["size"] + (" *" if row["best_of_budget"] else "")),
        _count("state"),
        _count("parameters"),
        _of_seeds("test R²"),
        Column("lr", lambda row: f"{row['lr']:g}" if row["lr"] else ""),
    ),
    caption=lambda record: "mean over seeds (lowest–highest); * is the best SwiLA of its state size",
    draw=softmax_regression_figures.draw,
)

REGBENCH = Experiment(
    name="regbench",
    title="RegBench",
    presets=regbench.PRESETS,
    models=regbench.MODELS,
    summarize=regbench.summarize,
    facts=regbench.yardsticks,
    columns=(
        Column("automata", lambda row: f"{row['train_examples']:,}"),
        _count("parameters"),
        _of_seeds("test accuracy"),
        Column("TV", lambda row: f"{row['test']['tv']:.3f}" if row["test"] else ""),
        Column("best epoch", lambda row: ", ".join(f"{epoch:.0f}" for epoch in row["best_epochs"])),
    ),
    caption=lambda record: (
        "share of legal symbols, mean over seeds (lowest–highest); n-grams of the same strings: "
        + ", ".join(f"{name} {found['accuracy']:.3f}" for name, found in record["yardsticks"].items())
    ),
    draw=regbench_figures.draw,
)

EXPERIMENTS = {each.name: each for each in (SOFTMAX_REGRESSION, CDAR, MQAR, REGBENCH)}
