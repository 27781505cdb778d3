"""The layers are tested on the device under test as a whole: whatever a test makes is there."""

import pytest


@pytest.fixture(autouse=True)
def _everything_on_the_device(on_the_device):
    pass
