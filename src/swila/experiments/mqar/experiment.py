"""The MQAR experiment."""

from __future__ import annotations

from swila.experiments.experiment import Experiment
from swila.experiments.mqar.figures import draw
from swila.experiments.mqar.presets import PRESETS
from swila.experiments.mqar.runs import KIND, make_runs
from swila.experiments.recall.runs import MODELS
from swila.experiments.recall.summary import RecallRow, summarize
from swila.experiments.recall.table import CAPTION, COLUMNS

MQAR = Experiment[RecallRow](
    name="mqar",
    title="MQAR",
    kind=KIND,
    presets=PRESETS,
    models=MODELS,
    make_runs=make_runs,
    summarize=summarize,
    columns=COLUMNS,
    caption=lambda record: CAPTION,
    draw=draw,
)
