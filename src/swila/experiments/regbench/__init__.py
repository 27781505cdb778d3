"""RegBench: learning regular languages in context."""

from swila.experiments.regbench.presets import PRESETS as PRESETS
from swila.experiments.regbench.presets import Preset as Preset
from swila.experiments.regbench.runs import MODELS as MODELS
from swila.experiments.regbench.runs import make_runs as make_runs
