"""The switching delta rule as an operation on tensors: its interface, its backends, and the choice among them."""

from swila.ops.api import switching_delta_rule as switching_delta_rule
from swila.ops.api import switching_delta_rule_step as switching_delta_rule_step
from swila.ops.backends import Backend as Backend
from swila.ops.backends import register_backend as register_backend
from swila.ops.types import RoutingStats as RoutingStats
from swila.ops.types import SwitchingOutput as SwitchingOutput
from swila.ops.types import SwitchingState as SwitchingState
from swila.ops.validation import set_value_checks as set_value_checks
