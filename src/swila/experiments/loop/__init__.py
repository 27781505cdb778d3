"""The in-memory training loop of the synthetic experiments.

:class:`Trainer` trains one run. It stands on :mod:`swila.training`, and adds batches from examples in memory, updates
(captured in a CUDA graph on a GPU), objectives, early stopping, selection by validation loss, and runs that take turns
in one process.
"""

from swila.experiments.loop.config import TrainingConfig as TrainingConfig
from swila.experiments.loop.objective import LegalPrediction as LegalPrediction
from swila.experiments.loop.objective import Objective as Objective
from swila.experiments.loop.objective import Regression as Regression
from swila.experiments.loop.objective import TokenPrediction as TokenPrediction
from swila.experiments.loop.trainer import Trainer as Trainer
