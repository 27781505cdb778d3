r"""Online regression with a map that switches: a demonstration of the recurrence, with nothing trained.

A sequence contains C random linear maps. For some tokens ``v_t = M_c k_t + noise`` holds, then another map follows,
unannounced. The state sees each pair once. Before the update with ``(k_t, v_t)`` it predicts ``v_t`` as
``Σ_j r_{t-1,j} (w_{t-1,j} · k_t)``. One regressor (J = 1, the delta rule) relearns after every switch. A mixture infers
by online EM which of its regressors explains the current map, and returns to the one that already knows it.
"""

from swila.experiments.switching_regression.mixture import Trace as Trace
from swila.experiments.switching_regression.mixture import follow as follow
from swila.experiments.switching_regression.mixture import summarize as summarize
from swila.experiments.switching_regression.stream import Stream as Stream
from swila.experiments.switching_regression.stream import make_stream as make_stream
