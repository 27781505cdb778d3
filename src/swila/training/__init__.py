"""What every training run needs: its directory, metrics, interrupts, and the auxiliary losses of its layers."""

from swila.layers import collect_auxiliary_loss as collect_auxiliary_loss
from swila.layers import collect_routing_diagnostics as collect_routing_diagnostics
from swila.training.interrupts import Interrupts as Interrupts
from swila.training.interrupts import interrupts_as_flag as interrupts_as_flag
from swila.training.interrupts import terminate as terminate
from swila.training.run_directory import RunDirectory as RunDirectory
