"""Multi-query associative recall (MQAR): recall without contexts."""

from swila.experiments.mqar.presets import PRESETS as PRESETS
from swila.experiments.mqar.runs import make_runs as make_runs
