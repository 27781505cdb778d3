"""All experiments, by name."""

from __future__ import annotations

from typing import Any

from swila.experiments.cdar.experiment import CDAR
from swila.experiments.experiment import Experiment
from swila.experiments.mqar.experiment import MQAR
from swila.experiments.regbench.experiment import REGBENCH
from swila.experiments.softmax_regression.experiment import SOFTMAX_REGRESSION

_ALL: tuple[Experiment[Any], ...] = (SOFTMAX_REGRESSION, CDAR, MQAR, REGBENCH)
EXPERIMENTS = {each.name: each for each in _ALL}
KINDS = {each.kind.task_name: each.kind for each in _ALL}
