"""The runs of MQAR."""

from __future__ import annotations

from functools import partial

from swila.experiments import recall
from swila.experiments.loop import Objective, TokenPrediction
from swila.experiments.mqar.presets import PRESETS
from swila.experiments.training_run import Kind
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import MQAR


def _objective(task: MQAR) -> Objective:
    return TokenPrediction(task.num_pairs)


KIND = Kind(MQAR, SyntheticModelConfig, SyntheticModel, _objective)
make_runs = partial(recall.make_runs, KIND, PRESETS)
