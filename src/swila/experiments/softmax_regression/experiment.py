"""The softmax regression experiment."""

from __future__ import annotations

from swila.experiments.cells import count, spread
from swila.experiments.experiment import Column, Experiment
from swila.experiments.softmax_regression.figures import draw
from swila.experiments.softmax_regression.presets import PRESETS
from swila.experiments.softmax_regression.runs import KIND, MODELS, make_runs
from swila.experiments.softmax_regression.summary import RegressionRow, summarize

SOFTMAX_REGRESSION = Experiment[RegressionRow](
    name="softmax-regression",
    title="Approximating softmax attention",
    kind=KIND,
    presets=PRESETS,
    models=MODELS,
    make_runs=make_runs,
    summarize=summarize,
    columns=(
        Column("heads, mixtures", lambda row: row["size"] + (" *" if row["best_of_budget"] else "")),
        Column("state", lambda row: count(row["state"])),
        Column("parameters", lambda row: count(row["parameters"])),
        Column("test R²", lambda row: spread(row["scores"])),
        Column("lr", lambda row: f"{row['lr']:g}" if row["lr"] else ""),
    ),
    caption=lambda record: "mean over seeds (lowest–highest); * is the best SwiLA of its state size",
    draw=draw,
    keeps_curves=False,
)
