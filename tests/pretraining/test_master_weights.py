"""AdamW on float32 masters against torch's own, in both precisions and after a resume."""

import pytest
import torch
from small_runs import copy_of, same_bits
from torch import nn

from swila.layers.decay import DecayGate
from swila.pretraining.optimizer import MOMENTS, MasterAdamW
from swila.pretraining.recipe import OptimizerRecipe

RECIPE = OptimizerRecipe(lr=0.3, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6)
RATES = (0.01, 0.02, 0.005, 0.03, 0.01)


class Model(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.decay = nn.Linear(4, 4), DecayGate(4, 2)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.decay(self.first(x))


def inputs(step, micro=0):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + micro))


def update(model, optimizer, step, micro_batches=1):
    for micro in range(micro_batches):
        dtype = next(model.parameters()).dtype
        model(inputs(step, micro).to(dtype)).float().square().mean().backward()
        optimizer.accumulate()
    optimizer.gradients()
    optimizer.step(RATES[step])
    optimizer.clear()


def named(model):
    return dict(model.named_parameters())


def plain_adamw(parameters):
    """torch's AdamW on these parameters; decay rates are exempt from weight decay."""
    exempt = [p for name, p in parameters.items() if name.endswith(("A_log", "dt_bias"))]
    decayed = [p for name, p in parameters.items() if not name.endswith(("A_log", "dt_bias"))]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": exempt, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, 0.3, (0.8, 0.9), 1e-6, fused=True)


def test_float32_is_torchs_adamw_bit_for_bit():
    ours, theirs = Model(), Model()
    optimizer, expected = MasterAdamW(ours, RECIPE, "float32"), plain_adamw(named(theirs))
    for step, lr in enumerate(RATES):
        update(ours, optimizer, step, micro_batches=2)
        for micro in range(2):
            theirs(inputs(step, micro)).square().mean().backward()
        for group in expected.param_groups:
            group["lr"] = lr
        expected.step()
        expected.zero_grad()
        assert same_bits(copy_of(ours.named_parameters()), copy_of(theirs.named_parameters())), step
    assert all(p.dtype == torch.float32 for p in ours.parameters())


def test_bfloat16_is_torchs_adamw_on_float32_masters_bit_for_bit():
    ours, theirs = Model(), Model()
    optimizer = MasterAdamW(ours, RECIPE, "bfloat16")
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in named(theirs).items()}
    expected = plain_adamw(masters)
    for step, lr in enumerate(RATES):
        update(ours, optimizer, step, micro_batches=2)
        for name, p in named(theirs).items():
            p.data = masters[name].detach().bfloat16()
        for micro in range(2):
            theirs(inputs(step, micro).bfloat16()).float().square().mean().backward()
            for name, p in named(theirs).items():
                if p.grad is not None:
                    master, added = masters[name], p.grad.float()
                    master.grad = added if master.grad is None else master.grad + added
                    p.grad = None
        for group in expected.param_groups:
            group["lr"] = lr
        expected.step()
        expected.zero_grad()
        assert same_bits(copy_of(optimizer.masters), copy_of(masters)), step
        rounded = {name: p.detach().bfloat16() for name, p in masters.items()}
        assert same_bits(copy_of(named(ours)), rounded), step


def test_only_what_no_layer_exempts_decays():
    model = Model()
    before = copy_of(model.named_parameters())
    optimizer = MasterAdamW(model, RECIPE, "float32")
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.gradients()
    optimizer.step(0.5)
    for name, p in model.named_parameters():
        decays = not name.endswith(("A_log", "dt_bias", "frozen"))
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if decays else 1.0))


def test_updates_below_the_precision_of_bfloat16_accumulate():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = MasterAdamW(model, OptimizerRecipe(weight_decay=0.0), "bfloat16")
    assert model.weight.dtype == torch.bfloat16
    for _ in range(40):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.accumulate()
        optimizer.gradients()
        optimizer.step(2e-4)
        optimizer.clear()
    master = optimizer.masters["weight"]
    assert master.dtype == torch.float32
    assert master.item() == pytest.approx(1 - 40 * 2e-4, abs=1e-5)
    assert model.weight.item() == 0.9921875, "of the numbers of bfloat16 the nearest to 0.992"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_micro_batches_are_summed_in_float32(precision):
    model = nn.Linear(1, 1, bias=False)
    optimizer = MasterAdamW(model, RECIPE, precision)
    for value in (1.0, 2.0**-10, 2.0**-10):
        added = torch.full_like(model.weight, value)
        model.weight.grad = added if model.weight.grad is None else model.weight.grad + added
        optimizer.accumulate()
    (gradient,) = optimizer.gradients()
    assert gradient.dtype == torch.float32
    assert gradient.item() == 1 + 2.0**-9
    optimizer.clear()
    assert optimizer.gradients() == []
    assert model.weight.grad is None


def test_a_parameter_may_have_its_first_gradient_in_a_later_micro_batch():
    model = nn.ParameterDict({"always": torch.ones(2), "later": torch.ones(2)})
    optimizer = MasterAdamW(model, RECIPE, "bfloat16")
    for names in (["always"], ["always", "later"], ["later"]):
        for name in names:
            model[name].grad = torch.ones(2, dtype=torch.bfloat16)
        optimizer.accumulate()
    assert [gradient.tolist() for gradient in optimizer.gradients()] == [[2, 2], [2, 2]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_state_that_is_read_into_another_optimizer_continues_bit_for_bit(precision):
    model, other = Model(), Model(1)
    optimizer, resumed = MasterAdamW(model, RECIPE, precision), MasterAdamW(other, RECIPE, precision)
    for step in range(3):
        update(model, optimizer, step)
    saved = {kind: copy_of(part) for kind, part in optimizer.state().items()}
    assert saved.keys() == {"weights", *MOMENTS}
    assert all(x.dtype == torch.float32 for part in saved.values() for x in part.values())
    assert all(part.keys() == named(model).keys() for part in saved.values())
    assert saved["exp_avg"]["first.weight"].abs().sum() > 0
    with torch.no_grad():
        for kind, part in resumed.state().items():
            for name, x in part.items():
                x.copy_(saved[kind][name])
    resumed.loaded(3)
    for step in (3, 4):
        update(model, optimizer, step)
        update(other, resumed, step)
    assert same_bits(copy_of(model.named_parameters()), copy_of(other.named_parameters()))
    for kind, part in resumed.state().items():
        assert same_bits(copy_of(part), copy_of(optimizer.state()[kind]))


def test_loaded_masters_are_rounded_into_the_model():
    model = Model()
    optimizer = MasterAdamW(model, RECIPE, "bfloat16")
    with torch.no_grad():
        optimizer.state()["weights"]["first.weight"].fill_(3.14159)
    optimizer.loaded(0)
    assert (model.first.weight == torch.tensor(3.14159).bfloat16()).all()
