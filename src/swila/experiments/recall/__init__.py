"""Associative recall: the shared parts of the experiments with contexts (CDAR) and without (MQAR)."""

from swila.experiments.recall.presets import Preset as Preset
from swila.experiments.recall.runs import make_runs as make_runs
from swila.experiments.recall.summary import summarize as summarize
