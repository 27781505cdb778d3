"""Verdicts on the paper's claims about softmax attention, from made-up results."""

import re

from claims import about, verdicts
from tools.tables.softmax_regression import balanced, regression_claims

from swila.experiments.softmax_regression.summary import summarize as summarize_regression


def regression(seeds=3, less=None, **scores):
    """A record with DeltaNet's and SwiLA's scores by configuration; ``less``: configuration -> fewer seeds."""
    usual = {"H1J1": 0.6, "H1J2": 0.7, "H2J1": 0.6, "H2J2": 0.8, "H1J4": 0.7, "H4J1": 0.6, "H4J2": 0.9, "H1J8": 0.8}
    usual |= {"H1": 0.51, "H2": 0.52, "H4": 0.54, "H8": 0.58}
    runs = {}
    for size, score in (usual | scores).items():
        heads, *mixtures = (int(number) for number in re.findall(r"\d+", size))
        model, state = ("swila", heads * mixtures[0] * 1024) if mixtures else ("deltanet", heads * 1024)
        for lr in (1e-3, 1e-2):
            for seed in range((less or {}).get(size, seeds)):
                name = f"{model}-{size}-lr{lr:g}-seed{seed}"
                own = score + 0.001 * seed - (0.1 if lr == 1e-3 else 0)
                runs[name] = {
                    "name": name, "model": model, "size": size, "state": state, "parameters": 9, "lr": lr, "seed": seed,
                    "status": "finished", "best": own, "best_step": 10, "steps_per_epoch": 10, "planned_steps": 100,
                    "test": {"r2": own}, "validation": {"loss": 1 - own}, "curve": [],
                }  # fmt: skip
    return {"task": {"dim": 32}, "runs": runs, "rows": summarize_regression(list(runs.values()))}


EVERY, TWO, PERSISTS, WITHIN, BALANCE = "At every state", "At B=2", "persists", "within a head", "balance heads"


def made_up_regression(**options):
    return regression_claims(regression(**options))


def test_regression_as_in_the_paper():
    for words, found in verdicts(made_up_regression()).items():
        assert "**yes**" in found, words
        assert "**no**" not in found


def test_at_every_budget_means_every_one():
    found = about(made_up_regression(H1=0.7), EVERY)
    assert found.startswith("**no**, not at B=1; elsewhere **yes**: ")
    assert "B=1 -0.100 (below), B=2 +0.180 (seeds apart)" in found
    assert about(made_up_regression(H1J1=0.5105), EVERY).startswith("**no**, not at B=1; elsewhere"), "seeds overlap"
    assert about(made_up_regression(H8=0.99, H4=0.99), EVERY).startswith("**no**, not at B=4, 8; elsewhere")
    all_below = about(made_up_regression(H1=0.99, H2=0.99, H4=0.99, H8=0.99), EVERY)
    assert all_below.startswith("**no**, not at B=1, 2, 4, 8: ")


def test_single_seeds_are_a_reservation():
    found = about(made_up_regression(less={"H4J2": 1, "H8": 1}), EVERY)
    assert found.startswith("yes, with one seed each at B=8, no spread known: ")
    assert "B=8 +0.320 (one seed)" in found
    assert "**yes**" not in about(made_up_regression(less={"H4J2": 1, "H8": 1}), PERSISTS)
    assert about(made_up_regression(seeds=1), TWO).startswith("yes, with one seed, no spread known")


def test_fewer_tries_for_deltanet_are_a_reservation():
    found = made_up_regression(less={"H2": 2})
    assert about(found, EVERY).startswith("yes, with other learning rates or seeds for DeltaNet at B=2: ")
    assert about(found, TWO).startswith("yes, with other learning rates or seeds for DeltaNet: ")
    assert about(found, PERSISTS).startswith("**yes**")


def test_the_margin_and_what_comes_after():
    assert about(made_up_regression(H2=0.71), TWO).startswith("**no**")
    assert about(made_up_regression(H2=0.6995), TWO).startswith("**no**"), "seeds overlap"
    assert about(made_up_regression(H8=0.99), PERSISTS).startswith("**no**, not at B=8")
    assert about(made_up_regression(H2=0.99), PERSISTS).startswith("**yes**"), "B=2 is the row above"
    assert (
        about(made_up_regression(H1J8=0.4), WITHIN).split(": ")[1].startswith("**no**, not at B=8; elsewhere **yes**")
    )


def test_a_no_needs_as_much_effort_for_swila():
    fewer = about(made_up_regression(H1J8=0.4, less={"H1J8": 2}), WITHIN).split(": ")[1]
    assert fewer.startswith("not decided at B=8, with fewer learning rates or seeds for SwiLA; elsewhere **yes**")
    both = about(made_up_regression(H1J8=0.4, H1J4=0.4, less={"H1J8": 2}), WITHIN).split(": ")[1]
    assert both.startswith("**no**, not at B=4; not decided at B=8, with fewer learning rates or seeds for SwiLA; else")
    more = about(made_up_regression(H1J8=0.4, less={"H8": 2}), WITHIN).split(": ")[1]
    assert more.startswith("**no**, not at B=8; elsewhere **yes**"), "fewer seeds of DeltaNet's at B=8 excuse nothing"


def test_balance_is_computed():
    assert about(made_up_regression(), BALANCE) == "**yes**: H2J2 at B=4, H4J2 at B=8"
    assert about(made_up_regression(H1J8=0.95), BALANCE).startswith("**no**, not at B=8: H2J2 at B=4, H1J8 at B=8")
    assert about(made_up_regression(H1J4=0.7995), BALANCE).startswith(
        "yes, with seeds that overlap with those of H1J4 at B=4"
    )
    assert about(made_up_regression(less={"H4J2": 1}), BALANCE).startswith(
        "yes, with one seed each at B=8, no spread known"
    )
    assert balanced("H2J16") is False


def test_the_best_is_chosen_by_validation():
    """Another configuration has the better test score, and is not the best for it."""
    record = regression()
    for run in record["runs"].values():
        if run["size"] == "H1J4":
            run["best"], run["test"] = 0.99, {"r2": 0.99}
    record["rows"] = summarize_regression(list(record["runs"].values()))
    assert "H2J2 at B=4" in about(regression_claims(record), BALANCE)


def test_nothing_run_is_no_claim():
    record = regression()
    record["rows"] = [row | {"mean": None, "scores": []} for row in record["rows"]]
    for words, found in verdicts(regression_claims(record)).items():
        assert found.endswith("not run"), words
