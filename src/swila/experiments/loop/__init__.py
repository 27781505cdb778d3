"""The in-memory training loop of the synthetic experiments."""

from swila.experiments.loop.config import TrainingConfig as TrainingConfig
from swila.experiments.loop.objective import LegalPrediction as LegalPrediction
from swila.experiments.loop.objective import Objective as Objective
from swila.experiments.loop.objective import Regression as Regression
from swila.experiments.loop.objective import TokenPrediction as TokenPrediction
from swila.experiments.loop.trainer import Progress as Progress
from swila.experiments.loop.trainer import Trainer as Trainer
