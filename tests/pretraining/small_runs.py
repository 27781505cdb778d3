"""Data, recipes and models of pretraining runs that take less than a second."""

import json
import time
import warnings

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from swila.data import ShuffledSequences, TokenData, open_sequences, write_tokens
from swila.pretraining.batches import Batches
from swila.pretraining.checkpoints import FOLDER, path_of
from swila.pretraining.engine import build_model, pretrain
from swila.pretraining.optimizer import MasterAdamW
from swila.pretraining.parallel import World, join_world
from swila.pretraining.recipe import (
    CheckpointRecipe,
    DataRecipe,
    ExecutionRecipe,
    LoggingRecipe,
    ModelRecipe,
    OptimizerRecipe,
    Recipe,
    ScheduleRecipe,
    ValidationRecipe,
)
from swila.pretraining.settings import change
from swila.pretraining.updates import Updates
from swila.training.json_files import read_json
from swila.training.metrics import read_metrics

VOCABULARY, LENGTH, BATCH, STEPS = 20, 16, 4, 8
ALONE = World(0, 1, torch.device("cpu"), None)
SWILA = {"num_heads": 2, "num_mixtures": 2, "temporal": True, "backend": "blocked"}
MIXERS = {
    "attention": {"num_heads": 2},
    "deltanet": {"num_heads": 2, "backend": "blocked"},
    "swila": SWILA,
}


def write_data(directory, train=50, validation=10, seed=0, vocab_size=VOCABULARY, text="a tokenizer", longest=39):
    """Documents of 1 to 39 random tokens as a token directory; those for validation of at most ``longest``."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory.parent / f"{directory.name}.json"
    file.write_text(json.dumps({"model": text}))

    def documents(count, longest=39):
        return [random.integers(3, VOCABULARY, size) for size in random.integers(1, longest + 1, count)]

    splits = {"train": documents(train), "validation": documents(validation, longest)}
    write_tokens(directory, splits, file, vocab_size, shard_tokens=300, bos_token_id=1, eos_token_id=2)
    return directory


def small(*settings, mixer="attention", **options):
    """A recipe of two layers and eight updates, with these settings and options of the mixer."""
    recipe = Recipe(
        "small",
        "",
        ModelRecipe(
            32, 2, 48, mixer, {mixer: MIXERS[mixer] | options}, vocab_size=VOCABULARY, conv_initializer_range=None
        ),
        ScheduleRecipe(STEPS, warmup_steps=2),
        DataRecipe(LENGTH, BATCH),
        OptimizerRecipe(lr=0.01),
        "float32",
        execution=ExecutionRecipe(micro_batch=2),
        checkpoints=CheckpointRecipe(every=3),
        validation=ValidationRecipe(every=4, sequences=6),
        logging=LoggingRecipe(every=1, tensorboard=False),
    )
    return change(recipe, list(settings))


PLAIN = small()
NOISY = small(mixer="swila", router_noise=True, balance_marginal=0.01)


def sequences_of(data, split="train", packing="stream"):
    return open_sequences(TokenData(data).split(split), LENGTH, packing)


def model_of(recipe):
    """The model of a recipe on one rank, with its initial weights."""
    with join_world("cpu") as world:
        return build_model(recipe, world)


def updates_of(recipe, data):
    """The updates of a recipe from its initial weights."""
    order = ShuffledSequences(sequences_of(data, packing=recipe.data.packing), recipe.seed)
    batches = Batches(order, recipe.data.batch_size, recipe.execution.micro_batch)
    model = model_of(recipe)
    return Updates(model, MasterAdamW(model, recipe.optimizer, recipe.precision), batches, recipe, ALONE)


def copy_of(tensors):
    return {name: x.detach().clone() for name, x in dict(tensors).items()}


def saved_state(run, recipe, step):
    """Weights and moments of a checkpoint by name, read without the engine."""
    model = model_of(recipe)
    names = {name: torch.empty_like(p, dtype=torch.float32) for name, p in model.named_parameters()}
    state = {kind: copy_of(names) for kind in ("weights", "exp_avg", "exp_avg_sq")}
    with warnings.catch_warnings():  # that no process group exists, which is intended
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(state, checkpoint_id=path_of(run / FOLDER, step), no_dist=True)
    return {f"{kind}/{name}": x for kind, part in state.items() for name, x in part.items()}


def same_bits(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


TIMES = ("seconds", "tokens_per_second")


def lines_of(run):
    """The metrics of a run without times."""
    return [{key: x for key, x in line.items() if key not in TIMES} for line in read_metrics(run / "metrics.jsonl")]


def wait_until_written(checkpoint):
    """Wait until the files of a checkpoint are complete, whether it has its name already or not."""
    part = checkpoint.with_name(f".{checkpoint.name}.part")
    while not any((path / ".metadata").exists() for path in (checkpoint, part)):
        time.sleep(0.01)


class Crash(Exception):
    """What a report raises."""


def crash_at(step):
    """A report that raises an exception after an update."""

    def report(news):
        if news.note is None and news.step == step:
            raise Crash

    return report


class Done:
    """A run that was trained without interruption."""

    def __init__(self, recipe, data, run):
        self.recipe, self.run, self.news = recipe, run, []
        self.result = pretrain(recipe, data, run, report=self.news.append)
        self.lines, self.state, self.session = lines_of(run), saved_state(run, recipe, STEPS), self._session(run)

    def equals(self, run, result):
        """Whether another run of the recipe has the same bits in metrics, weights, moments, session and result."""
        assert lines_of(run) == self.lines
        assert same_bits(saved_state(run, self.recipe, STEPS), self.state)
        assert {**result, "seconds": 0} == {**self.result, "seconds": 0}
        assert self._session(run) == self.session
        return True

    def _session(self, run):
        return read_json(path_of(run / FOLDER, STEPS) / "session.json") | {"seconds": 0}
