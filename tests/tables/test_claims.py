"""Verdicts on the paper's claims, from made-up results: each can be yes, yes with a reservation, no, and undecided."""

import json
import re
from pathlib import Path

import pytest
from tools.tables import tables
from tools.tables.effort import Effort, as_much, below, effort, less_tried
from tools.tables.recall import small_table
from tools.tables.recall_claims import recall_claims
from tools.tables.regbench import regbench_claims
from tools.tables.softmax_regression import balanced, regression_claims
from tools.tables.wording import listed, not_decided, standing, yes

from swila.environment import environment
from swila.experiments.recall.summary import summarize
from swila.experiments.record import lengths
from swila.experiments.regbench.figures import about as regbench_about
from swila.experiments.softmax_regression import figures as softmax_regression_figures
from swila.experiments.softmax_regression.summary import summarize as summarize_regression

ROOT = Path(__file__).parents[2]
PAPER_RATES = (3.16e-4, 1e-3, 3.16e-3, 1e-2)


def verdicts(table):
    """The third column of a table of claims, by a part of the second."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    assert all(len(row) == 3 for row in rows)
    assert all(place for place, *_ in rows), "each claim has its place in the paper"
    return {claim: found for _, claim, found in rows}


def about(table, words):
    ((_, found),) = [item for item in verdicts(table).items() if words in item[0]]
    return found


# What the words mean


def test_words():
    assert yes() == yes([]) == "**yes**"
    assert yes(["one seed"]) == "yes, with one seed"
    assert not_decided(["a", "b", "c"]) == "not decided, with a, b and c"
    assert listed(["a"]) == "a"


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


# Context-dependent recall


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


def test_open_points_explored_on_one_side_are_told():
    explored = "the open points explored on Temporal SwiLA alone, by test accuracy"
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
    assert "in what all of them were run with (learning rate 0.001 seed 0) 0.500 against 0.200 at most" in found
    apart = cdar(less={"deltanet": ((1e-1,), 1, 50)})
    assert "in what all of them" not in about(recall_claims(apart), SMALLEST)


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


# Approximating softmax attention


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


# RegBench


def regbench(scores, seeds=3):
    """model -> training automata -> score, or score and number of seeds."""
    rows, runs = [], {}
    for model, sizes in scores.items():
        for size, found in sizes.items():
            score, count = found if isinstance(found, tuple) else (found, seeds)
            own = [score + 0.001 * seed for seed in range(count)]
            mean = sum(own) / count if count else None
            rows.append({"model": model, "train_examples": size, "scores": own, "mean": mean})
            for seed, best in enumerate(own):
                run = {"model": model, "train_examples": size, "lr": 2.5e-4, "seed": seed, "best": best}
                runs[f"{model}-{size}-{seed}"] = run | {"planned_steps": 200, "steps_per_epoch": 1}
    return {"rows": rows, "runs": runs}


PFAS = {
    "temporal-swila": {1000: 0.8, 40_000: 0.94},
    "dn-mom": {1000: 0.79, 40_000: 0.94},
    "deltanet": {1000: 0.78, 40_000: 0.935},
    "attention": {1000: 0.5, 40_000: 0.95},
}
FEW, END, SCALE = "With 1,000", "in the end", "At scale"


def changed(**changes):
    """``attention_1000=0.9`` changes one score, None takes it out."""
    scores = {model: dict(sizes) for model, sizes in PFAS.items()}
    for name, score in changes.items():
        model, size = name.rsplit("_", 1)
        model = model.replace("_", "-")
        if score is None:
            del scores[model][int(size)]
        else:
            scores[model][int(size)] = score
    return regbench_claims(regbench(scores))


def test_few_automata():
    assert about(changed(), FEW).count("**yes**") == 2
    assert about(changed(attention_1000=0.795), FEW).startswith("Temporal SwiLA **yes**, ")
    assert "DN-MoM **no**, " in about(changed(attention_1000=0.795), FEW)
    assert "Temporal SwiLA **no**, " in about(changed(temporal_swila_1000=0.501), FEW), "seeds overlap"
    one = about(changed(dn_mom_1000=(0.79, 1)), FEW)
    assert "DN-MoM yes, with one seed, no spread known, " in one
    fewer = about(changed(attention_1000=(0.5, 2)), FEW)
    assert "Temporal SwiLA yes, with 3 runs of 1 learning rate for Temporal SwiLA and 2 of 1 for the others" in fewer
    assert "; DN-MoM not run; " in about(changed(dn_mom_1000=None), FEW)
    assert about(changed(attention_1000=None), FEW) == "not run"
    assert "not in the claim: DeltaNet 0.781" in about(changed(), FEW)


def test_the_end():
    assert about(changed(), END).startswith("**yes**")
    assert about(changed(attention_40000=0.941), END).startswith("**no**"), "seeds overlap"
    assert about(changed(attention_40000=0.9), END).startswith("**no**")
    assert about(changed(attention_40000=(0.95, 1)), END).startswith("yes, with one seed, no spread known")
    less = changed(attention_40000=None, attention_2500=0.9)
    assert about(less, END).startswith("not decided, with 2,500 automata at most for softmax attention")
    small = {model: {1000: sizes[1000], 2500: sizes[40_000]} for model, sizes in PFAS.items()}
    assert about(regbench_claims(regbench(small)), END).startswith("not decided, with 2,500"), (
        "the best, but not the end"
    )
    assert about(changed(attention_1000=None), END).startswith("not decided"), "one size shows no improvement"
    assert about(changed(attention_40000=None, attention_1000=None), END) == "not run"


def test_at_scale():
    assert about(changed(), SCALE).startswith("**yes**")
    assert about(changed(deltanet_40000=0.9), SCALE).startswith("**no**"), "more than slightly"
    assert about(changed(deltanet_40000=0.945), SCALE).startswith("**no**"), "not the last"
    smaller = {model: {1000: sizes[1000]} for model, sizes in PFAS.items()}
    assert about(regbench_claims(regbench(smaller)), SCALE).startswith("not run at that scale; with 1,000:")


def test_what_temporal_priors_carry_is_told():
    run = {"model": "temporal-swila", "num_layers": 2, "num_heads": 1, "num_mixtures": 4, "seconds": 1.0}
    rows = [{"model": "swila", "state": 8192, "parameters": 9, "best": 0.9, "mean": 0.9, "solved": 0, "runs": 1}]
    where = {"device": "cpu", "environment": environment()}
    table = small_table(where | {"rows": rows, "runs": {"a": run | {"state": 2 * 4 * 32 * 32}}})
    assert "Temporal SwiLA carries r and ρ as well, 512 scalars" in table
    assert "carries" not in small_table(where | {"rows": rows, "runs": {"a": run | {"model": "swila", "state": 8192}}})


# Figures


def test_how_long_and_on_how_much_runs_were_trained():
    run = {"planned_steps": 100, "steps_per_epoch": 10, "train_examples": 6400}
    assert lengths([run, run], "examples") == ["6,400 training examples", "10 epochs"]
    assert lengths([run, run | {"planned_steps": 384}], "examples")[1] == "10 to 38.4 epochs"
    assert lengths([run | {"planned_steps": 10}], "automata") == ["6,400 training automata", "1 epoch"]
    assert lengths([run, run | {"train_examples": 64}], "examples") == ["10 epochs"]
    assert lengths([], "examples") == lengths([{"name": "of an earlier version"}], "examples") == []


def test_figures_of_regbench_carry_sizes_and_epochs():
    record = json.loads((ROOT / "results/regbench.json").read_text())
    runs = list(record["runs"].values())
    found = regbench_about(record, runs, "RegBench")
    assert found.task[0] == "automata of 4–12 states and 4–18 symbols"
    assert found.training[:3] == ["8 layers of width 256", "up to 200 epochs", "learning rate 0.00025"]
    stopped = sum(run["status"] == "stopped" for run in runs)
    assert found.training[-1].startswith(f"{stopped} of {len(runs)} runs stopped early")
    finished = regbench_about(record, [run | {"status": "finished"} for run in runs], "RegBench")
    assert finished.training == found.training[:-1]


def test_figures_of_regression_carry_sizes_and_epochs(monkeypatch, tmp_path):
    record = json.loads((ROOT / "results/softmax-regression.json").read_text())
    seen = []
    monkeypatch.setattr(softmax_regression_figures, "budget_figure", lambda *given, **_: seen.append(given[2]))
    softmax_regression_figures.draw(record, tmp_path)
    for about in seen:
        assert about.task[0] == "sequences of 512 tokens with 32 dims"
        assert about.training[:2] == ["65,536 training sequences", "10 epochs"]
        assert about.training[-1] == "configuration and learning rate chosen by validation loss"
    assert len(seen) == 2


# The documents


def test_the_papers_places_and_claims_are_all_there():
    """Every section, table and figure of the paper with a claim has a row in docs/reproduction.md."""
    rows = [
        line.split(" | ") for line in (ROOT / "docs/reproduction.md").read_text().splitlines() if line.startswith("| ")
    ]
    places = " ".join(row[0] for row in rows)
    sections = ["abstract", "3.1", "3.2", "3.3", "3.4", "3.5", "4.1", "4.2", "5.1", "5.2", "5.3", "5.4", "5.5"]
    shown = [
        "table 1",
        "table 2",
        "figures 1C",
        "figure 2a",
        "figure 2b",
        *(f"figure S{number}" for number in range(2, 6)),
    ]
    appendices = [f"App. {part}" for part in ["B.1", "B.4", "D.1", "D.2", "D.3", "E.2", "E.5"]]
    for place in (*sections, *shown, *appendices):
        assert place in places, place
    unrun = [row for row in rows if row[0].strip("| ").startswith(("5.3", "5.4", "5.5"))]
    assert len(unrun) >= 15
    assert all(row[2].startswith("not run") for row in unrun)


def test_committed_verdicts():
    """What the docs may say at most of the committed results."""
    found = tables(ROOT / "results")["docs/reproduction.md"]
    assert about(found["softmax-regression-claims"], EVERY).startswith(
        "**no**, not at B=1; elsewhere yes, with one seed"
    )
    assert about(found["softmax-regression-claims"], BALANCE).startswith("yes, with ")
    assert about(found["cdar-claims"], SMALLEST).startswith("yes, with 6 runs of 4 learning rates for Temporal SwiLA")
    assert "explored on Temporal SwiLA alone" in about(found["cdar-claims"], SMALLEST)
    record = json.loads((ROOT / "results/cdar-paper.json").read_text())
    assert {run["planned_steps"] / run["steps_per_epoch"] for run in record["runs"].values()} == {15620 / 1562.5}
