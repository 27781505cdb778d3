"""One run of an experiment: data, model and training, and the directory they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from swila.experiments.loop import LegalPrediction, Objective, Regression, TokenPrediction, Trainer, TrainingConfig
from swila.models import RegressionModel, RegressionModelConfig, SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR, MQAR, ExampleTensors, RegBench, SoftmaxRegression
from swila.training import RunDirectory

Task = CDAR | MQAR | RegBench | SoftmaxRegression


class Kind(NamedTuple):
    """What belongs to a task: its model, and what the model is trained for."""

    task: Callable[..., Any]
    model_config: Callable[..., Any]
    model: Callable[[Any], nn.Module]
    objective: Callable[[Any], Objective]


KINDS = {
    "CDAR": Kind(CDAR, SyntheticModelConfig, SyntheticModel, lambda task: TokenPrediction(task.num_queries)),
    "MQAR": Kind(MQAR, SyntheticModelConfig, SyntheticModel, lambda task: TokenPrediction(task.num_pairs)),
    "RegBench": Kind(RegBench, SyntheticModelConfig, SyntheticModel, lambda task: LegalPrediction()),
    "SoftmaxRegression": Kind(SoftmaxRegression, RegressionModelConfig, RegressionModel, lambda task: Regression()),
}


@lru_cache(maxsize=6)
def _examples(task: Task, count: int, split: str, seed: int, device: str) -> ExampleTensors:
    if isinstance(task, SoftmaxRegression):
        return task.examples(count, split, seed, device)
    return task.examples(count, split, seed).to(device)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that determines a run.

    Attributes:
        label: what the model is called in tables and figures.
        size: which of its sizes this is, as part of the run's name.
        task: where the examples come from.
        model: the model's configuration, of the kind that belongs to the task.
        training: how it is trained; its seed is the run's.
        train_examples: how many to train on, again and again.
        test_examples: how many to judge it by.
        validation_examples: how many to choose weights by; 0 for none, then the best look at the test set counts.
        data_seed: of the examples; the same for all runs that are to be compared.
        variant: what is different from the preset it was made from, as part of the run's name; nothing as a rule.
    """

    label: str
    size: str
    task: Task
    model: Any
    training: TrainingConfig
    train_examples: int
    test_examples: int
    validation_examples: int = 0
    data_seed: int = 0
    variant: str = ""

    @property
    def name(self) -> str:
        """The directory of the run within an experiment's."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.label}-{self.size}{variant}-lr{self.training.lr:g}-seed{self.training.seed}"

    @property
    def kind(self) -> Kind:
        """What belongs to its task."""
        return KINDS[type(self.task).__name__]

    def config(self) -> dict[str, Any]:
        """The run as JSON."""
        config = {"task_name": type(self.task).__name__, **asdict(self)}
        if not self.variant:
            del config["variant"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TrainingRun:
        """The run whose :meth:`config` this is."""
        kind = KINDS[config["task_name"]]
        training = {**config["training"], "betas": tuple(config["training"]["betas"])}
        parts = {
            "task": kind.task(**config["task"]),
            "model": kind.model_config(**config["model"]),
            "training": TrainingConfig(**training),
        }
        return cls(**{name: value for name, value in config.items() if name != "task_name"} | parts)

    def data(self, split: str, device: str = "cpu") -> Any:
        """The examples of ``"train"``, ``"val"`` or ``"test"``; runs that share them have them once in memory."""
        counts = {"train": self.train_examples, "val": self.validation_examples, "test": self.test_examples}
        return _examples(self.task, counts[split], split, self.data_seed, device)

    def begin(self, directory: RunDirectory, device: str, tensorboard: bool) -> Trainer:
        """The training, to begin or to go on with."""
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

    def sizes(self) -> dict[str, int]:
        """State and parameters of the model, in scalars."""
        with torch.device("meta"):  # nothing else is wanted of it
            model: Any = self.kind.model(self.model)
        return {"state": model.state_size(self.task.length), "parameters": model.num_parameters()}

    def facts(self) -> dict[str, Any]:
        """What tables and figures need of it."""
        training, options = self.training, self.model.mixer_options
        return {
            "name": self.name,
            "model": self.label,
            "size": self.size,
            **({"variant": self.variant} if self.variant else {}),
            **{key: getattr(self.model, key) for key in ("hidden_size", "num_layers") if hasattr(self.model, key)},
            **{key: options[key] for key in ("num_heads", "num_mixtures") if key in options},
            **self.sizes(),
            "train_examples": self.train_examples,
            "steps_per_epoch": self.train_examples / training.batch_size,
            "lr": training.lr,
            "seed": training.seed,
            "planned_steps": training.steps,
            "precision": training.precision,
        }

    def load(self, path: Path) -> Any:
        """The model as a run directory has it, on the CPU, for looking into: the chosen weights, or else the last."""
        checkpoint = RunDirectory(path).load_checkpoint()
        if checkpoint is None:
            raise ValueError(f"{path} has no checkpoint yet")
        model = self.kind.model(self.model)
        model.load_state_dict(checkpoint.get("best_model") or checkpoint["model"])
        return model.eval()
