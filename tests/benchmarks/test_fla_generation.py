"""Generation with flash-linear-attention's model; a model of ours stands in for it, with generate of transformers."""

import pytest
import torch

pytest.importorskip("transformers")

from swila import generate
from swila.benchmarks.throughput import fla_generation, generation
from swila.benchmarks.throughput.contenders import BASELINE, config_of, make_model
from swila.benchmarks.throughput.results import Results
from swila.models import SwiLAForCausalLM

F32 = torch.float32


class Theirs(SwiLAForCausalLM):
    """Not of the class of our models, for the benchmark."""


@pytest.fixture
def installed(monkeypatch):
    """Models made as the baseline, with the number of layers that was asked for."""
    made = []

    def make(name, size, device, dtype, depth=None):
        if name != BASELINE:
            return make_model(name, size, device, dtype, depth)
        torch.manual_seed(0)
        made.append(SwiLAForCausalLM(config_of(name, size, depth)).to(device, dtype))
        return made[-1]

    monkeypatch.setattr(fla_generation, "make_model", make)
    monkeypatch.setattr(generation, "make_model", make)
    monkeypatch.setattr(fla_generation, "our_weights", dict)
    return made


def test_tokens_are_greedy_and_the_prompts_are_read_before_the_first():
    model = make_model("gdn", "tiny", "cpu", F32).eval()
    prompts = torch.randint(512, (3, 7), generator=torch.Generator().manual_seed(0))
    seen = []
    forward = model.forward
    model.forward = lambda *args, **options: seen.append("pass") or forward(*args, **options)
    found = fla_generation.generate_greedily(model, prompts, 4, lambda: seen.append("read"))
    assert seen == ["pass", "read", *["pass"] * 3]
    del model.forward
    assert found[:, 7:].tolist() == generate(model, prompts, max_new_tokens=4, stop=()).tokens


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_a_model_with_the_same_logits_is_timed(installed, dtype):
    assert fla_generation.why_refused("tiny", "cpu", dtype, prompt=30) is None
    assert len(installed[0].model.layers) == fla_generation.DEPTH


def test_a_prompt_as_long_as_the_timed_ones_comes_first(installed, monkeypatch):
    shapes, call = [], fla_generation.generate_greedily
    monkeypatch.setattr(
        fla_generation,
        "generate_greedily",
        lambda model, prompts, *args, **options: shapes.append(prompts.shape) or call(model, prompts, *args, **options),
    )
    fla_generation.why_refused("tiny", "cpu", F32, prompt=30)
    assert shapes == [(1, 30), fla_generation.TOKENS]


@pytest.mark.parametrize("wrong", ["prompts", "steps"])
def test_wrong_logits_are_refused(installed, monkeypatch, wrong):
    forward = SwiLAForCausalLM.forward

    def changed(self, input_ids, *args, **options):
        found = forward(self, input_ids, *args, **options)
        if self is installed[0] and (input_ids.shape[1] > 1) == (wrong == "prompts"):
            found.logits = found.logits + 0.3 * torch.linspace(-1, 1, found.logits.shape[-1])
        return found

    monkeypatch.setattr(SwiLAForCausalLM, "forward", changed)
    assert fla_generation.why_refused("tiny", "cpu", F32, prompt=30).startswith("wrong: logits off by ")


@pytest.mark.parametrize("compiled", [True, False])
def test_its_rows_are_of_eager_calls_without_a_forward(installed, monkeypatch, tmp_path, compiled):
    setting = generation.Setting("tiny", "cpu", F32, prompt=6, new=4, compiled=compiled, calls=1, warm_up=0)
    monkeypatch.setattr(generation, "SwiLAForCausalLM", Theirs)  # a model of ours is none here
    kept = Results(tmp_path / "r.json", {}, {"date": "", "sources": "", "torch": "", "cuda": "", "packages": {},
                                             "gpus": []}, generation.KEYS)  # fmt: skip
    (one, two) = generation.benchmark([BASELINE], [2, 1], setting, kept)
    assert [(row["batch"], row["status"], row["compiled"]) for row in (one, two)] == [
        (1, "timed", False), (2, "timed", False),
    ]  # fmt: skip
    assert all(row["call_ms"] > row["prompt_ms"] > 0 for row in (one, two))
    assert not any(field.startswith("forward") for row in kept.record["rows"] for field in row)
    assert generation.benchmark([BASELINE], [2, 1], setting, kept) == []


def test_a_wrong_baseline_is_a_row_that_says_so(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(fla_generation, "why_refused", lambda *args: f"wrong for {args}")
    setting = generation.Setting("tiny", "cpu", F32, prompt=6, new=4, compiled=False)
    kept = Results(tmp_path / "r.json", {}, {"date": "", "sources": "", "torch": "", "cuda": "", "packages": {},
                                             "gpus": []}, generation.KEYS)  # fmt: skip
    (row,) = generation.benchmark([BASELINE], [1, 2], setting, kept)
    assert row["status"] == "refused"
    assert row["reason"] == "wrong for ('tiny', 'cpu', torch.float32, 6)"
