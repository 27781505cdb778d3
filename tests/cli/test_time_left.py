"""The time left of a sweep: of each run, and of all."""

import random

import pytest
from rich.console import Console

from swila.cli.live import Live
from swila.cli.time_left import TimeLeft, in_words
from swila.experiments.cdar.runs import make_runs
from swila.experiments.sweep import News
from swila.training import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_slow_run_beside_a_fast_one(clock):
    """In steps the two together have 220 left at 11 a second, but the slow one alone takes 100 seconds."""
    left = TimeLeft({"slow": 110, "fast": 220}, jobs=2, clock=clock)
    for name in ("slow", "fast"):
        left.begun(name)
    assert left.of("slow") is left.of_all() is None, "nothing is known yet"
    left.progressed("slow", 0)
    left.progressed("fast", 0)
    clock.now = 10.0
    left.progressed("slow", 10)
    left.progressed("fast", 100)
    assert left.of("slow") == pytest.approx(100)
    assert left.of("fast") == pytest.approx(12)
    assert left.of_all() == pytest.approx(100)
    clock.now = 15.0
    assert left.of("slow") == left.of_all() == pytest.approx(95), "time goes by without news"
    clock.now = 30.0
    assert left.of("fast") == 0, "never below zero"


def test_steps_of_earlier_commands_are_no_speed(clock):
    """Runs that are there already, or go on from a checkpoint, are not fast."""
    left = TimeLeft({"there": 1000, "resumed": 1000, "later": 500}, jobs=1, clock=clock)
    left.ended("there")
    left.progressed("resumed", 900)
    assert left.of("resumed") is left.of_all() is None
    clock.now = 5.0
    left.progressed("resumed", 910)
    assert left.of("resumed") == pytest.approx(45)
    assert left.of_all() == pytest.approx(45 + 250), "the one that waits takes 500 steps of half a second"


def test_a_run_that_ends_early_is_no_speed(clock):
    left = TimeLeft({"solved": 1000, "other": 100}, jobs=2, clock=clock)
    for step in (0, 10):
        clock.now = float(step)
        left.progressed("solved", step)
        left.progressed("other", step)
    left.ended("solved")
    assert left.of_all() == left.of("other") == pytest.approx(90)
    left.ended("other")
    assert left.of_all() == 0


def test_runs_that_wait_go_where_it_is_free_first(clock):
    left = TimeLeft(dict.fromkeys("abcde", 100), jobs=2, clock=clock)
    left.progressed("a", 0)
    left.progressed("b", 50)
    clock.now = 10.0
    left.progressed("a", 10)
    left.progressed("b", 60)
    # b is over after 40 seconds, then c: 140; a after 90, then d: 190; then e after c: 240
    assert left.of_all() == pytest.approx(240)
    left.begun("c")  # it gets ready: at the speed of the others until it has one of its own
    assert left.of("c") == pytest.approx(100)
    assert left.of_all() == pytest.approx(190), "d after b: 140, e after a: 190"


def test_all_runs_never_take_less_than_one(clock):
    """Whatever becomes of the runs of a sweep."""
    rng = random.Random(0)
    names = [f"run{i}" for i in range(12)]
    planned = {name: rng.choice([50, 400, 3000]) for name in names}
    pace = {name: rng.choice([0.01, 0.3, 2.0]) for name in names}
    left = TimeLeft(planned, jobs=3, clock=clock)
    waiting, steps, compared = list(names), {}, 0
    while waiting or steps:
        while waiting and len(steps) < 3:
            name = waiting.pop(0)
            steps[name] = rng.choice([0, planned[name] // 2])
            left.begun(name)
        clock.now += 20
        for name in list(steps):
            steps[name] = min(steps[name] + round(20 / pace[name]), planned[name])
            left.progressed(name, steps[name])
            if steps[name] == planned[name] or rng.random() < 0.02:
                left.ended(name)
                del steps[name]
        if (total := left.of_all()) is not None and steps:
            compared += 1
            assert total >= max(left.of(name) for name in steps)
    assert compared > 20


def test_the_bars_show_it(clock, monkeypatch):
    runs = make_runs("tiny", ["swila", "deltanet"], seeds=[0, 1], steps=100)
    show = Live(Console(quiet=True), runs, 2)
    monkeypatch.setattr(show.left, "_clock", clock)
    slow, fast, there, waits = (run.name for run in runs)

    def shown():
        return {task.id: task.fields["left"] for task in show.bar.tasks}

    show(News(there, result={"status": "failed", "error": "it was"}))
    for name in (slow, fast):
        show(News(name))
        show(News(name, Progress(0, 100, None)))
    assert set(shown().values()) == {"-:--:--"}
    clock.now = 40.0
    show(News(slow, Progress(1, 100, 0.5)))
    show(News(fast, Progress(40, 100, 0.5)))
    left = shown()
    assert left[show.tasks[slow]] == in_words(99 * 40) == "1:06:00"
    assert left[show.tasks[fast]] == "0:01:00"
    assert left[show.total] == "1:06:00", "the one that waits is over before"
    show(News(slow, result={"status": "failed", "error": "it was"}))
    assert shown()[show.total] == in_words((40 + 1) / 2 * 100), "the average of both speeds"
    assert waits not in show.tasks
