"""Verdicts on the paper's claims about RegBench, from made-up results."""

from claims import about
from tools.tables.regbench import regbench_claims


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
    assert about(less, END).startswith("not decided, with at most 2,500 automata for softmax attention")
    small = {model: {1000: sizes[1000], 2500: sizes[40_000]} for model, sizes in PFAS.items()}
    assert about(regbench_claims(regbench(small)), END).startswith("not decided, with at most 2,500"), (
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
