"""Softmax regression: how well a fixed-size state approximates softmax attention."""

from swila.experiments.softmax_regression.presets import PRESETS as PRESETS
from swila.experiments.softmax_regression.presets import Preset as Preset
from swila.experiments.softmax_regression.runs import configurations as configurations
from swila.experiments.softmax_regression.runs import make_runs as make_runs
from swila.experiments.softmax_regression.summary import summarize as summarize
