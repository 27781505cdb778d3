"""One run of an experiment: data, model and training, and the directory they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from swila.experiments.loop import Objective, Trainer, TrainingConfig
from swila.experiments.record import RunFacts
from swila.tasks import ExampleTensors
from swila.training import RunDirectory


def examples_from_host(task: Any, count: int, split: str, seed: int, device: str) -> ExampleTensors:
    """Examples of a task that are drawn on the host and then copied to the device."""
    return task.examples(count, split, seed).to(device)


class Kind(NamedTuple):
    """What the runs of an experiment have in common: classes of task and model, and the objective.

    All of them must be defined at the top level of a module, so that runs can be sent to other processes.

    Attributes:
        task: Class of the task, a dataclass.
        model_config: Class of the model's configuration, a dataclass.
        model: Class of the model.
        objective: Function from a task to the objective of training.
        examples: Function from a task, a number of examples, a split, a seed and a device to the examples.
    """

    task: Callable[..., Any]
    model_config: Callable[..., Any]
    model: Callable[[Any], nn.Module]
    objective: Callable[[Any], Objective]
    examples: Callable[[Any, int, str, int, str], ExampleTensors] = examples_from_host

    @property
    def task_name(self) -> str:
        """Name of the task in configuration files."""
        return self.task.__name__


class Sizes(NamedTuple):
    """Sizes of a model, in scalars."""

    state: int
    parameters: int


@lru_cache(maxsize=6)
def _examples(kind: Kind, task: Any, count: int, split: str, seed: int, device: str) -> ExampleTensors:
    return kind.examples(task, count, split, seed, device)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that determines a run.

    Attributes:
        kind: Classes and objective of the experiment's runs.
        label: Name of the model in tables and figures.
        size: Size of the model, as part of the run's name.
        task: Source of the examples.
        model: Configuration of the model, of the class that ``kind`` names.
        training: Configuration of the training; its seed is the seed of the run.
        train_examples: Number of training examples.
        test_examples: Number of test examples.
        validation_examples: Number of examples by which weights are chosen. With 0 there is no validation set, and the
            best evaluation on the test set counts.
        data_seed: Seed of the examples; the same for all runs that are to be compared.
        variant: Differences from the preset, as part of the run's name; empty for a run of the preset itself.
    """

    kind: Kind
    label: str
    size: str
    task: Any
    model: Any
    training: TrainingConfig
    train_examples: int
    test_examples: int
    validation_examples: int = 0
    data_seed: int = 0
    variant: str = ""

    @property
    def name(self) -> str:
        """Name of the run's directory within the experiment's directory."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.label}-{self.size}{variant}-lr{self.training.lr:g}-seed{self.training.seed}"

    def config(self) -> dict[str, Any]:
        """Return the run as JSON."""
        config = {"task_name": self.kind.task_name, **asdict(self)}
        del config["kind"]
        if not self.variant:
            del config["variant"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TrainingRun:
        """Return the run whose :meth:`config` this is."""
        from swila.experiments.registry import KINDS  # which imports this module

        kind = KINDS[config["task_name"]]
        training = {**config["training"], "betas": tuple(config["training"]["betas"])}
        parts = {
            "kind": kind,
            "task": kind.task(**config["task"]),
            "model": kind.model_config(**config["model"]),
            "training": TrainingConfig(**training),
        }
        return cls(**{name: value for name, value in config.items() if name != "task_name"} | parts)

    def data(self, split: str, device: str = "cpu") -> Any:
        """Return the examples of ``"train"``, ``"val"`` or ``"test"``; runs with the same examples share one copy."""
        counts = {"train": self.train_examples, "val": self.validation_examples, "test": self.test_examples}
        return _examples(self.kind, self.task, counts[split], split, self.data_seed, device)

    def begin(self, directory: RunDirectory, device: str, tensorboard: bool) -> Trainer:
        """Return the trainer of the run; it resumes from the last checkpoint in the directory."""
        return Trainer(
            lambda: self.kind.model(self.model),
            self.kind.objective(self.task),
            self.data("train", device),
            self.data("test", device),
            self.training,
            directory,
            device,
            tensorboard=tensorboard,
            validation=self.data("val", device) if self.validation_examples else None,
        )

    def sizes(self) -> Sizes:
        """Return the sizes of the model's state and of its parameters."""
        with torch.device("meta"):  # no memory is needed to count
            model: Any = self.kind.model(self.model)
        return Sizes(model.state_size(self.task.length), model.num_parameters())

    def facts(self) -> RunFacts:
        """Return the part of the run's record that is known before training."""
        training, options = self.training, self.model.mixer_options
        sizes = self.sizes()
        facts: RunFacts = {
            "name": self.name,
            "model": self.label,
            "size": self.size,
            "state": sizes.state,
            "parameters": sizes.parameters,
            "train_examples": self.train_examples,
            "steps_per_epoch": self.train_examples / training.batch_size,
            "lr": training.lr,
            "seed": training.seed,
            "planned_steps": training.steps,
            "precision": training.precision,
        }
        if self.variant:
            facts["variant"] = self.variant
        if hasattr(self.model, "hidden_size"):
            facts["hidden_size"] = self.model.hidden_size
        if hasattr(self.model, "num_layers"):
            facts["num_layers"] = self.model.num_layers
        if "num_heads" in options:
            facts["num_heads"] = options["num_heads"]
        if "num_mixtures" in options:
            facts["num_mixtures"] = options["num_mixtures"]
        return facts

    def load(self, path: Path) -> Any:
        """Return the model with the weights of a run directory, on the CPU: the chosen weights, or else the last."""
        checkpoint = RunDirectory(path).load_checkpoint()
        if checkpoint is None:
            raise ValueError(f"{path} has no checkpoint yet")
        model = self.kind.model(self.model)
        model.load_state_dict(checkpoint.get("best_model") or checkpoint["model"])
        return model.eval()
