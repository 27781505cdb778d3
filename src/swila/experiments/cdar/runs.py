"""The runs of CDAR."""

from __future__ import annotations

from functools import partial

from swila.experiments import recall
from swila.experiments.cdar.presets import PRESETS
from swila.experiments.loop import Objective, TokenPrediction
from swila.experiments.training_run import Kind
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR


def _objective(task: CDAR) -> Objective:
    return TokenPrediction(task.num_queries)


KIND = Kind(CDAR, SyntheticModelConfig, SyntheticModel, _objective)
make_runs = partial(recall.make_runs, KIND, PRESETS)
