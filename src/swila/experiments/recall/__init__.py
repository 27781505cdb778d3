"""Associative recall: what the experiments with contexts (CDAR) and without (MQAR) share."""

from swila.experiments.recall.runs import Preset as Preset
from swila.experiments.recall.runs import make_runs as make_runs
from swila.experiments.recall.runs import summarize as summarize
