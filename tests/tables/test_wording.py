"""The words of verdicts, and the effort that a bold yes needs."""

import pytest
from claims import PAPER_RATES
from tools.tables.effort import Effort, as_much, below, effort, less_tried
from tools.tables.softmax_regression import balanced
from tools.tables.wording import listed, not_decided, span, standing, yes


def test_words():
    assert yes() == yes([]) == "**yes**"
    assert yes(["one seed"]) == "yes, with one seed"
    assert not_decided(["a", "b", "c"]) == "not decided, with a, b and c"
    assert listed(["a"]) == "a"
    assert span([0.69, 0.651, 0.7], ".2f") == "0.65–0.70"
    assert span([0.651, 0.649], ".2f") == "0.65"


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ([0.9, 0.8], [0.7, 0.6], "above"),
        ([0.9, 0.7], [0.7, 0.6], "overlap"),
        ([0.9, 0.65], [0.7, 0.6], "overlap"),
        ([0.5, 0.4], [0.7, 0.6], "not above"),
        ([0.9], [0.7, 0.6], "higher, one seed"),
        ([0.9, 0.8], [0.7], "higher, one seed"),
        ([0.9], [0.1], "higher, one seed"),
        ([0.6], [0.7], "not above"),
        ([0.7], [0.7], "not above"),
    ],
)
def test_single_seeds_are_not_apart(ours, theirs, found):
    assert standing({"scores": ours}, {"scores": theirs}) == found


@pytest.mark.parametrize(
    ("size", "so"),
    [("H2J2", True), ("H4J2", True), ("H4J8", True), ("H8J4", True), ("H2J16", False), ("H16J2", False),
     ("H2J8", False), ("H1J2", False), ("H2J1", False), ("H1J1", False), ("H8J1", False)],
)  # fmt: skip
def test_what_is_balanced(size, so):
    assert balanced(size) == so


def test_effort_counts_what_is_over():
    run = {"lr": 1e-3, "planned_steps": 100, "steps_per_epoch": 10, "best": 0.5}
    found = effort([run, run | {"lr": 1e-2}, run, run | {"best": None}, {"lr": 5.0}, run | {"planned_steps": 70}])
    assert found == Effort({1e-3: 3, 1e-2: 1}, 7.0)
    assert found.runs == 4
    assert effort([]) == Effort({}, 0.0)


def test_as_much_is_learning_rates_seeds_and_epochs():
    ours = Effort({1e-3: 2, 1e-2: 1}, 10)
    assert as_much(Effort({1e-3: 2, 1e-2: 1}, 10), ours)
    assert as_much(Effort({1e-3: 3, 1e-2: 1, 1e-1: 1}, 50), ours)
    fewer = [Effort({1e-3: 1, 1e-2: 1}, 10), Effort({1e-3: 5}, 10), Effort({1e-3: 2, 1e-2: 1}, 9)]
    assert not any(as_much(theirs, ours) for theirs in fewer)
    assert less_tried("A", ours, [ours]) == []
    assert less_tried("A", ours, [ours, *fewer[:2]]) == [
        "3 runs of 2 learning rates for A and 2 to 5 of 1 to 2 for the others"
    ]
    assert less_tried("A", ours, fewer[2:], "B") == ["10 epochs for A and 9 for B"]


def test_what_is_less_than_the_papers():
    paper = Effort(dict.fromkeys(PAPER_RATES, 3), 50)
    assert below([paper, Effort({**paper.seeds, 1.0: 3}, 60)], PAPER_RATES, 3, 50) == []
    assert below([paper, Effort({1e-3: 1}, 10)], PAPER_RATES, 3, 50) == [
        "1 to 4 of the paper's 4 learning rates",
        "1 to 3 of the paper's 3 seeds",
        "10 to 50 of the paper's 50 epochs",
    ]
    assert below([Effort({**paper.seeds, 1e-2: 1}, 50)], PAPER_RATES, 3, 50) == ["1 of the paper's 3 seeds"]
