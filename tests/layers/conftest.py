"""The layers are tested on the device under test as a whole: whatever a test makes is there."""

import pytest
import torch


@pytest.fixture(autouse=True)
def on_the_device(device):
    if device != "cpu":
        torch.set_default_device(device)
    yield
    torch.set_default_device(None)
