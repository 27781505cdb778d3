"""Verdicts on the paper's claims about CDAR, from made-up results: yes, yes with a reservation, no, not decided."""

import pytest
from claims import PAPER_RATES, about, verdicts
from tools.tables.recall import SOLVED, small_table
from tools.tables.recall_claims import recall_claims

from swila.environment import environment
from swila.experiments.cdar.presets import PRESETS
from swila.experiments.recall.summary import summarize

WIDTHS = (32, 64, 128, 256)
HIGH = {
    ("temporal-swila", 64, 1), ("temporal-swila", 128, 1), ("swila", 256, 1), ("deltanet", 256, 1), ("dn-mom", 256, 1),
    ("attention", 64, 2), ("attention", 128, 2),
}  # fmt: skip


def cdar(high=HIGH, rates=PAPER_RATES, seeds=3, epochs=50, less=None, only=None):
    """A record of the paper's grid in which some configurations have 0.97; ``less``: model -> rates, seeds, epochs."""
    runs = {}
    grid = [(model, width, 1) for model in ("temporal-swila", "swila", "deltanet", "dn-mom") for width in WIDTHS]
    grid += [("attention", width, layers) for width in (64, 128) for layers in (1, 2)]
    for model, width, layers in grid:
        own = (less or {}).get((model, layers), (less or {}).get(model, (rates, seeds, epochs)))
        for lr in own[0]:
            for seed in range(own[1]):
                name = f"{model}-d{width}-l{layers}-lr{lr:g}-seed{seed}"
                best = 0.97 if (model, width, layers) in high else 0.2
                runs[name] = {
                    "name": name, "model": model, "hidden_size": width, "num_layers": layers, "lr": lr, "seed": seed,
                    "state": width**2 * layers, "parameters": 9, "planned_steps": 100 * own[2], "steps_per_epoch": 100,
                    "status": "finished", "best": best, "best_step": 200, "curve": [[100, 0.1], [200, best]],
                }  # fmt: skip
    if only:
        runs = {name: run for name, run in runs.items() if only(run)}
    return {"runs": runs, "rows": summarize(list(runs.values())), "plateau": 0.25}


SETTINGS = {"runs": {"a": {"model": "temporal-swila", "variant": "noise=false"}, "b": {"model": "temporal-swila"}}}
SMALLEST, TEMPORAL, OTHERS = "smallest configuration", "temporal priors are crucial", "All other recurrent"
DEPTHS, MEANS, STEPS = "needs two layers", "mean over learning rates", "step-like"


def test_all_as_in_the_paper():
    for words, found in verdicts(recall_claims(cdar())).items():
        assert found.startswith("**yes**") or "convolutions" in words, words


def test_the_smallest():
    assert about(recall_claims(cdar(HIGH | {("deltanet", 64, 1)})), SMALLEST).startswith("**no**"), "not the only one"
    assert about(recall_claims(cdar(HIGH | {("swila", 32, 1)})), SMALLEST).startswith("**no**"), "not the smallest"
    lower = HIGH - {("temporal-swila", 64, 1)}
    assert about(recall_claims(cdar(lower)), SMALLEST).startswith("**no**")
    assert about(recall_claims(cdar(lower, epochs=10)), SMALLEST).startswith(
        "not decided, with 10 of the paper's 50 epochs:"
    )
    assert about(recall_claims(cdar(only=lambda run: run["model"] == "attention")), SMALLEST) == "not run"
    deep = cdar()
    deep["rows"].append(deep["rows"][4] | {"layers": 2, "state": 2048, "best": 0.99})
    assert about(recall_claims(deep), SMALLEST).startswith("**no**"), "two layers of less state"


@pytest.mark.parametrize(
    ("less", "reservation"),
    [
        (
            (PAPER_RATES[:2], 3, 50),
            "12 runs of 4 learning rates for Temporal SwiLA and 6 to 12 of 2 to 4 for the others",
        ),
        ((PAPER_RATES, 2, 50), "12 runs of 4 learning rates for Temporal SwiLA and 8 to 12 of 4 for the others"),
        ((PAPER_RATES, 3, 20), "50 epochs for Temporal SwiLA and 20 to 50 for the others"),
    ],
    ids=["learning rates", "seeds", "epochs"],
)
def test_a_bold_yes_needs_the_same_effort(less, reservation):
    found = about(recall_claims(cdar(less={"deltanet": less})), SMALLEST)
    assert found.startswith(f"yes, with {reservation}")
    assert "**yes**" not in found
    assert about(recall_claims(cdar(less={"swila": less})), TEMPORAL).startswith("yes, with ")
    more = cdar(less=dict.fromkeys(("swila", "deltanet", "dn-mom"), (PAPER_RATES, 4, 60)))
    assert about(recall_claims(more), SMALLEST).startswith("**yes**"), "more for the others is no reservation"


def test_less_than_the_papers_effort_is_told():
    found = about(recall_claims(cdar(rates=(1e-3,), seeds=1, epochs=10)), SMALLEST)
    assert found.startswith(
        "yes, with 1 of the paper's 4 learning rates, 1 of the paper's 3 seeds and 10 of the paper's 50 epochs:"
    )


def test_settings_explored_on_one_side_are_told():
    explored = "settings explored on Temporal SwiLA alone, by test accuracy"
    record = cdar()
    for words in (SMALLEST, TEMPORAL, MEANS):
        assert about(recall_claims(record, None, SETTINGS), words).startswith(f"yes, with {explored}: ")
        assert about(recall_claims(record), words).startswith("**yes**")
    every = [{"model": model, "variant": "x"} for model in ("temporal-swila", "swila", "deltanet", "dn-mom")]
    both = {"runs": dict(enumerate(every))}
    for words in (SMALLEST, TEMPORAL, MEANS):
        assert about(recall_claims(record, None, both), words).startswith("**yes**")


def test_what_all_were_run_with_is_compared():
    record = cdar(less={"deltanet": ((1e-3,), 1, 50)})
    record["runs"]["temporal-swila-d64-l1-lr0.001-seed0"]["best"] = 0.5
    record["rows"] = summarize(list(record["runs"].values()))
    found = about(recall_claims(record), SMALLEST)
    assert "with what all were trained with (learning rate 0.001 seed 0) 0.500 against at most 0.200" in found
    apart = cdar(less={"deltanet": ((1e-1,), 1, 50)})
    assert "with what all were trained with" not in about(recall_claims(apart), SMALLEST)


def test_temporal_priors():
    for seeds in (1, 3):
        refuted = cdar(HIGH | {("swila", 64, 1)}, seeds=seeds)
        assert about(recall_claims(refuted), TEMPORAL).startswith("**no**")
    neither = HIGH - {("temporal-swila", 64, 1)}
    assert about(recall_claims(cdar(neither)), TEMPORAL).startswith("**no**")
    assert about(recall_claims(cdar(neither, seeds=1)), TEMPORAL).startswith(
        "not decided, with 1 of the paper's 3 seeds"
    )
    assert about(recall_claims(cdar(only=lambda run: run["model"] != "swila")), TEMPORAL) == "not run"


def test_others_solve_it_with_more_state():
    lower = HIGH - {("dn-mom", 256, 1)}
    assert about(recall_claims(cdar(lower)), OTHERS).startswith("**no**")
    assert about(recall_claims(cdar(lower, epochs=10)), OTHERS).startswith(
        "not decided, with 10 of the paper's 50 epochs:"
    )
    small = cdar(only=lambda run: run["hidden_size"] < 256)
    assert about(recall_claims(small), OTHERS).startswith(
        "not decided, with less than the paper's largest state for SwiLA, DeltaNet, DN-MoM"
    )
    assert about(recall_claims(cdar(only=lambda run: run["model"] == "temporal-swila")), OTHERS) == "not run"


def test_depths_of_attention():
    assert about(recall_claims(cdar(HIGH | {("attention", 64, 1)})), DEPTHS).startswith("**no**")
    neither = HIGH - {("attention", 64, 2), ("attention", 128, 2)}
    assert about(recall_claims(cdar(neither)), DEPTHS).startswith("**no**")
    assert about(recall_claims(cdar(neither, epochs=10)), DEPTHS).startswith(
        "not decided, with 10 of the paper's 50 epochs"
    )
    less = cdar(less={("attention", 1): (PAPER_RATES, 1, 50)})
    assert about(recall_claims(less), DEPTHS).startswith(
        "yes, with 24 runs of 4 learning rates for two layers and 8 of 4 for one"
    )
    assert about(recall_claims(cdar(only=lambda run: run["num_layers"] == 1)), DEPTHS) == "not run"


def test_means_are_over_what_all_have():
    assert about(recall_claims(cdar(HIGH - {("temporal-swila", 64, 1)})), MEANS).startswith("**no**")
    assert about(recall_claims(cdar(HIGH | {("deltanet", 64, 1)})), MEANS).startswith("**no**"), "not the largest gain"
    assert about(recall_claims(cdar(rates=(1e-3,))), MEANS).startswith("not run: the models have fewer than two")
    found = about(recall_claims(cdar(less={"deltanet": ((1e-3, 1e-2), 2, 50)})), MEANS)
    assert found.startswith(
        "yes, with 2 of the paper's 4 learning rates and 2 of the paper's 3 seeds: at $2^{12}$ over"
    )
    assert "over the learning rates 0.001 and 0.01, Temporal SwiLA" in found
    record = cdar()
    for run in record["runs"].values():
        if (run["model"], run["hidden_size"]) == ("deltanet", 64):
            run["best"] = 0.9
    record["rows"] = summarize(list(record["runs"].values()))
    assert about(recall_claims(record), MEANS).startswith("**no**"), "larger, but not by the margin"
    record = cdar(less={"deltanet": ((1e-3, 1e-2), 1, 50)})
    for run in record["runs"].values():
        if run["model"] == "temporal-swila" and (run["lr"] not in (1e-3, 1e-2) or run["seed"]):
            run["best"] = 0.0  # nothing that the others have not tried counts
    record["rows"] = summarize(list(record["runs"].values()))
    assert "Temporal SwiLA 0.970" in about(recall_claims(record), MEANS)


def test_sharp_transitions():
    record = cdar()
    assert about(recall_claims(record), STEPS).startswith("**yes**: ")
    solved = [run for run in record["runs"].values() if run["best"] == 0.97]
    solved[0]["curve"] = [[step, 0.01 * step] for step in range(1, 98)]
    found = about(recall_claims(record), STEPS)
    assert found.startswith(f"**no**: {len(solved) - 1} of {len(solved)} near-perfect runs"), "all of them must"
    for run in record["runs"].values():
        run["curve"] = [[step, 0.01 * step] for step in range(1, 97)]
    assert about(recall_claims(record), STEPS).startswith("**no**: 0 of ")
    assert about(recall_claims(cdar(set())), STEPS).startswith("not run: no run is near-perfect")


def test_what_temporal_priors_carry_is_told():
    run = {"model": "temporal-swila", "num_layers": 2, "num_heads": 1, "num_mixtures": 4, "seconds": 1.0}
    rows = [{"model": "swila", "state": 8192, "parameters": 9, "best": 0.9, "mean": 0.9, "solved": 0, "runs": 1}]
    where = {"device": "cpu", "environment": environment()}
    table = small_table(where | {"rows": rows, "runs": {"a": run | {"state": 2 * 4 * 32 * 32}}})
    assert "Temporal SwiLA carries r and ρ as well (512 scalars)" in table
    assert "carries" not in small_table(where | {"rows": rows, "runs": {"a": run | {"model": "swila", "state": 8192}}})


def test_solved_is_where_training_stops():
    assert {preset.training.stop_at for preset in PRESETS.values()} == {SOLVED}
