"""One run on a task with tokens: data, model and training, and the directory they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR, MQAR, Examples
from swila.training import Progress, RunDirectory, TokenPrediction, Trainer, TrainingConfig

TASKS: dict[str, type[CDAR] | type[MQAR]] = {"CDAR": CDAR, "MQAR": MQAR}


@lru_cache(maxsize=4)
def _examples(task: CDAR | MQAR, count: int, split: str, seed: int) -> Examples:
    return task.examples(count, split, seed)


@dataclass(frozen=True)
class TokenRun:
    """Everything that determines a run.

    Attributes:
        label: what the model is called in tables and figures.
        task: where the examples come from.
        model: the model.
        training: how it is trained; its seed is the run's.
        train_examples: how many to train on, again and again.
        test_examples: how many to judge it by.
        data_seed: of the examples; the same for all runs that are to be compared.
    """

    label: str
    task: CDAR | MQAR
    model: SyntheticModelConfig
    training: TrainingConfig
    train_examples: int
    test_examples: int
    data_seed: int = 0

    @property
    def name(self) -> str:
        """The directory of the run within an experiment's."""
        size = f"d{self.model.hidden_size}-l{self.model.num_layers}"
        return f"{self.label}-{size}-lr{self.training.lr:g}-seed{self.training.seed}"

    def config(self) -> dict[str, Any]:
        """The run as JSON."""
        return {"task_name": type(self.task).__name__, **asdict(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TokenRun:
        """The run whose :meth:`config` this is."""
        training = {**config["training"], "betas": tuple(config["training"]["betas"])}
        parts = {
            "task": TASKS[config["task_name"]](**config["task"]),
            "model": SyntheticModelConfig(**config["model"]),
            "training": TrainingConfig(**training),
        }
        return cls(**{name: value for name, value in config.items() if name != "task_name"} | parts)

    def data(self, split: str) -> Examples:
        """The examples of ``"train"`` or ``"test"``."""
        count = self.train_examples if split == "train" else self.test_examples
        return _examples(self.task, count, split, self.data_seed)

    def execute(
        self, directory: RunDirectory, device: str, report: Callable[[Progress], None], tensorboard: bool
    ) -> dict[str, Any]:
        """Train, or go on training, and return the result."""
        trainer = Trainer(
            lambda: SyntheticModel(self.model),
            TokenPrediction(),
            self.data("train"),
            self.data("test"),
            self.training,
            directory,
            device,
            report,
            tensorboard,
        )
        return trainer.fit()

    @staticmethod
    def finished_in(out: Path) -> list[tuple[TokenRun, dict[str, Any]]]:
        """The runs of a directory that are over, with their results."""
        found = []
        for path in sorted(out.glob("*/result.json")):
            config = json.loads((path.parent / "config.json").read_text())
            found.append((TokenRun.from_config(config), json.loads(path.read_text())))
        return found

    def load(self, path: Path) -> SyntheticModel:
        """The model as its last checkpoint in a run directory has it, on the CPU, for looking into."""
        checkpoint = RunDirectory(path, self.config()).load_checkpoint()
        if checkpoint is None:
            raise ValueError(f"{path} has no checkpoint yet")
        model = SyntheticModel(self.model)
        model.load_state_dict(checkpoint["model"])
        return model.eval()
