"""Context-dependent associative recall (CDAR)."""

from swila.experiments.cdar.presets import PRESETS as PRESETS
from swila.experiments.cdar.runs import make_runs as make_runs
