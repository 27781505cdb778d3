"""Our Gated DeltaNet beside flash-linear-attention's own model: same weights, same data, same loss curve.

Needs a GPU and flash-linear-attention. Four parts, all at the size of the paper's GDN:

1. *logits*: its weights in our model; both in bfloat16 against our model in float32.
2. *gradients*: of the loss of one batch, likewise.
3. *curves*: both trained from the same weights on the same text.
4. *start*: each with an initialisation of its own, eight updates on one fixed batch of random tokens.

    python tools/fla_parity.py TOKENS --out results/fla-gdn.json
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swila import SwiLAConfig, SwiLAForCausalLM
from swila.benchmarks.baselines import gdn_backward_allowed
from swila.benchmarks.throughput.contenders import our_weights
from swila.data import ShuffledSequences, StreamSequences, TokenData
from swila.environment import environment
from swila.training.compilation import compiling
from swila.training.schedule import LearningRate

PRESET = "gdn-374m"
HEAD_DIM = 128


def their_model() -> Any:
    """Return flash-linear-attention's model of the same size, with its own initial weights, in float32."""
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

    ours = SwiLAConfig.preset(PRESET)
    config = GatedDeltaNetConfig(
        hidden_size=ours.hidden_size,
        num_hidden_layers=ours.num_hidden_layers,
        intermediate_size=ours.intermediate_size,
        vocab_size=ours.vocab_size,
        num_heads=ours.options_of("gated-deltanet")["num_heads"],
        head_dim=HEAD_DIM,
        expand_v=1.0,
        use_cache=False,
    )
    torch.manual_seed(0)
    return GatedDeltaNetForCausalLM(config).float()


def error(a: Tensor, b: Tensor) -> float:
    """Return the relative error of a tensor."""
    return ((a - b).norm() / b.norm()).item()


def logits(theirs: Any, tokens: Tensor) -> dict[str, float]:
    """Return relative errors of both models in bfloat16 against ours in float32, and between the two."""
    ours = with_weights_of(theirs)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=False):
        exact = ours.eval()(tokens).logits.float()
        with torch.autocast("cuda", torch.bfloat16):
            mine = ours(tokens).logits.float()
            other = theirs.cuda().eval()(tokens).logits.float()
    return {
        "ours_to_float32": error(mine, exact),
        "theirs_to_float32": error(other, exact),
        "ours_to_theirs": error(mine, other),
        "same_top_token": (mine.argmax(-1) == other.argmax(-1)).float().mean().item(),
    }


def gradients(theirs: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Return relative errors of the gradients of both models under autocast against ours in float32.

    The error of all parameters together, and the largest of a parameter with its name.
    """
    found = {}
    for name, model, reduced in (
        ("float32", with_weights_of(theirs), False),
        ("ours", with_weights_of(theirs), True),
        ("theirs", theirs.cuda(), True),
    ):
        model.train()
        with torch.autocast("cuda", torch.bfloat16, enabled=reduced):
            loss_of(model, *batch).backward()
        read = {key: p.grad.float() for key, p in model.named_parameters()}
        found[name] = our_weights(read) if model is theirs else read
        model.zero_grad(set_to_none=True)
    exact = found.pop("float32")
    record: dict[str, Any] = {}
    for name, read in found.items():
        errors = {key: error(read[key], exact[key]) for key in exact}
        worst = max(errors, key=lambda key: errors[key])
        difference = sum((read[key] - exact[key]).square().sum() for key in exact)
        total = difference / sum(exact[key].square().sum() for key in exact)
        record[name] = {"all": total.sqrt().item(), "largest": errors[worst], "parameter": worst}
    return record


def with_weights_of(theirs: Any) -> Any:
    """Return our model in float32 with flash-linear-attention's weights, on the GPU."""
    ours = SwiLAForCausalLM(SwiLAConfig.preset(PRESET))
    ours.load_state_dict(our_weights(theirs.state_dict()))
    return ours.cuda()


def loss_of(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy, computed alike for both models."""
    scores = model.lm_head(model.model(inputs, use_cache=False)[0]).float()
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def batches(tokens: Path, length: int, batch_size: int, updates: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a run, the same for every model."""
    split = TokenData(tokens).split("train")
    assert split is not None
    sequences = ShuffledSequences(StreamSequences(split, length), 0)
    for step in range(updates):
        batch = sequences.batch(sequences.indices(step * batch_size, (step + 1) * batch_size))
        yield batch.input_ids.cuda(), batch.labels.cuda()


def train(model: Any, data: Iterator[tuple[Tensor, Tensor]], rate: LearningRate) -> list[float]:
    """Return the losses of a plain loop: float32 weights, autocast to bfloat16, AdamW, clipping at 1."""
    model.cuda().train()
    exempt = [p for name, p in model.named_parameters() if name.rpartition(".")[2] in ("A_log", "dt_bias")]
    ids = {id(p) for p in exempt}
    groups = [{"params": [p for p in model.parameters() if id(p) not in ids]}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, rate.lr, (0.9, 0.95), weight_decay=0.01, fused=True)
    losses = []
    for step, (inputs, labels) in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = rate.at(step)
        with torch.autocast("cuda", torch.bfloat16), compiling():
            loss = loss_of(model, inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def eight_updates(model: Any) -> list[float]:
    """Return the losses of eight updates on one fixed batch of random tokens, lr 1e-4, everything in bfloat16."""
    model.cuda().bfloat16().train()
    tokens = torch.randint(32000, (8, 2049), generator=torch.Generator().manual_seed(0)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    losses = []
    for _ in range(9):
        loss = loss_of(model, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


UNIFORM: dict[str, Any] = {"conv_initializer_range": None, "mixer_options": {"norm_eps": 1e-5}}
STARTS: dict[str, dict[str, Any]] = {
    "uniform convolutions, epsilon 1e-5": UNIFORM,
    "convolutions N(0, 0.02²), epsilon 1e-5": {"mixer_options": {"norm_eps": 1e-5}},
    "convolutions N(0, 0.02²), epsilon K · 1e-6": {},
    "uniform convolutions, epsilon 1e-5, output projections / √(2 · layers)": {**UNIFORM, "rescale_residual": True},
    "uniform convolutions, epsilon 1e-5, embeddings N(0, 1)": {**UNIFORM, "embedding_initializer_range": 1.0},
}


def main() -> None:
    """Run all parts and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--untuned", action="store_true", help="do not tune its kernels: minutes less")
    given = parser.parse_args()
    begun = time.time()
    record: dict[str, Any] = {"environment": environment(), "preset": PRESET, **vars(given)}
    record["tokens"], record["out"] = str(given.tokens), str(given.out)

    def note(part: str, found: Any) -> None:
        record[part] = found
        given.out.write_text(json.dumps(record, indent=2) + "\n")
        print(f"{time.time() - begun:6.1f} s  {part}: {str(found)[:300]}", flush=True)

    if given.untuned:
        do_not_tune()
    theirs = their_model()
    with torch.device("meta"):
        SwiLAForCausalLM(SwiLAConfig.preset(PRESET)).load_state_dict(our_weights(theirs.state_dict()), assign=True)
    rate = LearningRate(3e-4, given.updates, "constant", warmup_steps=20)
    arguments = given.tokens, given.length, given.batch_size, given.updates
    with gdn_backward_allowed():
        first = next(batches(given.tokens, given.length, 2, 1))
        note("logits", logits(theirs, first[0]))
        note("gradients", gradients(theirs, first))
        _free()
        weights = our_weights({name: w.detach().clone() for name, w in theirs.state_dict().items()})
        note("curves", {"theirs": train(theirs, batches(*arguments), rate)})
        del theirs
        _free()
        for name, backend in (("ours", "auto"), ("ours, its kernel", "fla")):
            model = SwiLAForCausalLM(SwiLAConfig.preset(PRESET))
            model.load_state_dict(weights)
            for block in model.model.layers:
                block.mixer.backend = backend
                if backend == "auto":
                    block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
            note("curves", record["curves"] | {name: train(model, batches(*arguments), rate)})
            del model
            _free()
        note("start", {"theirs": eight_updates(their_model())})
    for name, changes in STARTS.items():
        torch.manual_seed(0)
        model = SwiLAForCausalLM(SwiLAConfig.preset(PRESET, **changes))
        note("start", record["start"] | {name: eight_updates(model)})
        del model
        _free()


def do_not_tune() -> None:
    """Let triton take the first configuration with 4 warps of each kernel: results do not depend on it, speed does."""
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = lambda self, *args, config, **meta: [float(config.num_warps != 4)] * 3


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
