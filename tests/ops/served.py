"""Which backends take tensors of the CPU; on a machine with a GPU others are usable too."""

from swila.ops.backends import all_backends, why_not
from swila.testing import make_call, problem_of


def on_cpu():
    """Their names, fastest first."""
    return [backend.name for backend in all_backends() if why_not(backend, problem_of(make_call())) is None]
