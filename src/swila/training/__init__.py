"""What every training run needs, whatever it trains.

The run directory and its files, metrics, interrupts, optimizer, learning rate, precision, the protocol of a batch
source, and the auxiliary losses of the layers. Imports neither tasks nor experiments.
"""

from swila.layers import collect_auxiliary_loss as collect_auxiliary_loss
from swila.layers import collect_routing_diagnostics as collect_routing_diagnostics
from swila.training.batches import BatchSource as BatchSource
from swila.training.interrupts import Interrupts as Interrupts
from swila.training.interrupts import interrupts_as_flag as interrupts_as_flag
from swila.training.interrupts import terminate as terminate
from swila.training.metrics import MetricsWriter as MetricsWriter
from swila.training.optimizer import make_optimizer as make_optimizer
from swila.training.progress import Progress as Progress
from swila.training.result import Failure as Failure
from swila.training.result import Outcome as Outcome
from swila.training.result import RunResult as RunResult
from swila.training.run_directory import RunDirectory as RunDirectory
from swila.training.schedule import LearningRate as LearningRate
from swila.training.status import read_status as read_status
