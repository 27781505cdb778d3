"""``tools/fla_warm_up.py``: every configuration of a kernel is compiled, by one process if there are enough."""

import math
from functools import cached_property

import pytest
from tools import fla_warm_up as warm_up


class Tuner:
    """As much of triton's ``Autotuner`` as tuning needs."""

    def __init__(self, count):
        self.configs = [f"configuration {i}" for i in range(count)]
        self.ran = []

    @cached_property
    def do_bench(self):
        raise AssertionError("nothing is to be timed")

    def _bench(self, *args, config, **meta):
        return self.do_bench(lambda: self.ran.append(config), quantiles=(0.5, 0.2, 0.8))


@pytest.mark.parametrize("count", [2, 7])
def test_parts_cover_all_configurations(count):
    ran, parts = [], 3
    for part in range(parts):
        tuner = Tuner(count)
        bench = warm_up.compiling_a_part(Tuner._bench, part, parts)
        times = {config: bench(tuner, config=config)[0] for config in tuner.configs}
        assert {config for config, time in times.items() if math.isfinite(time)} == set(tuner.ran)
        assert tuner.ran, "the tuner would launch a configuration that this part has not compiled"
        ran += tuner.ran
    assert sorted(ran if count >= parts else set(ran)) == Tuner(count).configs
