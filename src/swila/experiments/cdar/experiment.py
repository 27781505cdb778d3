"""The CDAR experiment."""

from __future__ import annotations

from swila.experiments.cdar.figures import draw
from swila.experiments.cdar.presets import PRESETS
from swila.experiments.cdar.runs import KIND, make_runs
from swila.experiments.experiment import Experiment
from swila.experiments.recall.runs import MODELS
from swila.experiments.recall.summary import RecallRow, summarize
from swila.experiments.recall.table import CAPTION, COLUMNS

CDAR = Experiment[RecallRow](
    name="cdar",
    title="CDAR",
    kind=KIND,
    presets=PRESETS,
    models=MODELS,
    make_runs=make_runs,
    summarize=summarize,
    references=lambda preset: {"plateau": preset.task.plateau},
    columns=COLUMNS,
    caption=lambda record: f"{CAPTION}; {record['plateau']:.2f} is knowing the values but not the context",
    draw=draw,
)
