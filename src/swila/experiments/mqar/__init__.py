"""Multi-query associative recall (MQAR): CDAR without contexts."""

from swila.experiments.mqar.presets import PRESETS as PRESETS
from swila.experiments.mqar.presets import make_runs as make_runs
