"""The table of host times: before and after, in this order, each under its heading."""

from tools.tables.host_time import host_time_table

from swila.environment import environment


def test_before_and_after():
    def times(scale):
        return {"plain": {"forward": 1.0 * scale, "recorded": 2.0 * scale, "backward": 3.0 * scale}}

    record = {"microseconds": {"this": times(10), "other": times(100)}, "repeats": 3, "calls": 500, "device": "cpu"}
    table = host_time_table(record | {"environment": environment(), "other_environments": []})
    assert "| plain | 100 → 10 | 200 → 20 | 300 → 30 |" in table
    assert "Medians of 3 processes" in table
    assert "50 calls" in table
