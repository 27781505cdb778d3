"""SwiLA: switching linear attention for PyTorch."""

from swila._version import __version__ as __version__
from swila.layers import SwiLA as SwiLA
from swila.ops import Backend as Backend
from swila.ops import RoutingStats as RoutingStats
from swila.ops import SwitchingOutput as SwitchingOutput
from swila.ops import SwitchingState as SwitchingState
from swila.ops import register_backend as register_backend
from swila.ops import set_value_checks as set_value_checks
from swila.ops import switching_delta_rule as switching_delta_rule
from swila.ops import switching_delta_rule_step as switching_delta_rule_step
