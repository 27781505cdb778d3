"""The layers are tested on the device under test as a whole: whatever a test makes is there."""

import pytest
import torch

from swila.ops import backends

with torch.device("cpu"):
    torch.empty(0)  # torch notes its constructors at the first use of a default device: before they are poisoned


@pytest.fixture(autouse=True)
def on_the_device(device, monkeypatch):
    if device != "cpu":
        torch.set_default_device(device)
        monkeypatch.setattr(backends, "_say_slow", lambda *_: None)
    yield
    torch.set_default_device(None)
