"""Training: the loop of the experiments, its directories, metrics and auxiliary losses."""

from swila.layers import collect_auxiliary_loss as collect_auxiliary_loss
from swila.layers import collect_routing_diagnostics as collect_routing_diagnostics
from swila.training.config import TrainingConfig as TrainingConfig
from swila.training.interrupts import Interrupts as Interrupts
from swila.training.interrupts import interrupts_as_flag as interrupts_as_flag
from swila.training.interrupts import terminate as terminate
from swila.training.objective import LegalPrediction as LegalPrediction
from swila.training.objective import Objective as Objective
from swila.training.objective import Regression as Regression
from swila.training.objective import TokenPrediction as TokenPrediction
from swila.training.run_directory import RunDirectory as RunDirectory
from swila.training.trainer import Progress as Progress
from swila.training.trainer import Trainer as Trainer
