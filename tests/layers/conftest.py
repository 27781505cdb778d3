"""The layers are tested on the device under test as a whole: whatever a test makes is there."""

import pytest
import torch
from mixers import MIXERS, build


@pytest.fixture(autouse=True)
def _everything_on_the_device(on_the_device):
    pass


@pytest.fixture(params=MIXERS)
def layer(request):
    """Each layer in turn."""
    torch.manual_seed(1)
    return build(request.param).eval()
