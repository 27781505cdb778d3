"""The pretraining run: from a recipe and a directory of tokens to checkpoints, metrics and a result.

The same call starts a run and resumes it. After a crash at any moment, on any number of ranks, it continues from the
last complete checkpoint with the same data; on a CPU the losses are bit-identical to those of a run without a crash.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from swila.data import PackedSequences, ShuffledSequences, StreamSequences, TokenData, open_sequences
from swila.pretraining.batches import Batches
from swila.pretraining.checkpoints import Checkpoints, steps_of
from swila.pretraining.diagnostics import routing_metrics, track_routing
from swila.pretraining.flops import flops_per_token, mfu, peak_flops
from swila.pretraining.identity import configuration, keep_tokenizer, resolve
from swila.pretraining.initialization import initialize, make_on_meta
from swila.pretraining.optimizer import MasterAdamW
from swila.pretraining.parallel import (
    World,
    check_shards,
    checkpoint_activations,
    compile_blocks,
    join_world,
    make_mesh,
    shard,
)
from swila.pretraining.recipe import Recipe
from swila.pretraining.stability import BadBatchError, LossAverage
from swila.pretraining.updates import Update, Updates
from swila.pretraining.validation import Validation
from swila.training.interrupts import Interrupts, interrupts_as_flag
from swila.training.json_files import write_json
from swila.training.metrics import MetricsWriter
from swila.training.precision import matmul_precision
from swila.training.progress import Progress
from swila.training.result import RunResult
from swila.training.run_directory import RunDirectory

BAD_BATCH = "bad-batch.json"
RECIPE = "recipe.json"
SETTLED = 3  # updates of a session after which everything is compiled


class Preempted(Exception):
    """The run was asked to stop by a signal; it is saved, and the same call resumes it.

    Attributes:
        step: Step of the checkpoint.
        signal: Number of the signal, None on a rank that did not get it.
    """

    def __init__(self, step: int, signal: int | None) -> None:
        super().__init__(f"stopped by a signal at step {step}; the run is saved")
        self.step, self.signal = step, signal


@dataclass
class SessionState:
    """The part of a run's state that is neither weights nor optimizer.

    Attributes:
        step: Number of updates so far.
        seconds: Duration so far, summed over all sessions.
        updates: Number of updates of the optimizer: steps without skipped batches.
        bad_batches: Number of skipped batches.
        skipped: Number of skipped batches in a row.
        average: Running average of the loss.
        perplexity: Last validation perplexity, None before the first.
        best: Best score so far.
        best_step: Its step.
    """

    step: int = 0
    seconds: float = 0.0
    updates: int = 0
    bad_batches: int = 0
    skipped: int = 0
    average: LossAverage = field(default_factory=LossAverage)
    perplexity: float | None = None
    best: float | None = None
    best_step: int = 0

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SessionState:
        """Return the state whose ``asdict`` this is."""
        return cls(**{**content, "average": LossAverage(**content["average"])})

    def note_score(self, score: float) -> None:
        """Note a loss or perplexity; lower is better, and NaN or infinity is no score."""
        if math.isfinite(score) and (self.best is None or score < self.best):
            self.best, self.best_step = score, self.step


@dataclass(frozen=True)
class News:
    """What a run reports after an update.

    Attributes:
        step: Number of updates so far.
        steps: Number of planned updates.
        line: The line of metrics, if one was written.
        note: A message for the user, or None.
    """

    step: int
    steps: int
    line: dict[str, Any] | None = None
    note: str | None = None


Report = Callable[[News], None]


def pretrain(
    recipe: Recipe,
    data: str | Path,
    out: str | Path,
    device: str = "cpu",
    fresh: bool = False,
    verify: bool = True,
    report: Report | None = None,
) -> RunResult:
    """Train to the end, from the last checkpoint if there is one; write and return the result.

    Under ``torchrun``, every rank makes this call.

    Args:
        recipe: The recipe.
        data: Directory of tokens from ``swila data prepare``.
        out: Directory of the run.
        device: ``"cpu"`` or ``"cuda"``.
        fresh: Whether to delete an existing run.
        verify: Whether to verify the checksums of the data first.
        report: Function that rank 0 calls after every update.

    Raises:
        ValueError: Recipe, data and directory do not fit together; raised before the first update.
        Preempted: A signal asked the run to stop.
        BadBatchError: A batch was bad and is not to be skipped.
        OSError: A checkpoint could not be written.
    """
    recipe.check()
    with interrupts_as_flag() as interrupted, join_world(device) as world, matmul_precision(recipe.precision):
        run = _prepare(recipe, Path(data), Path(out), world, fresh, verify, report or (lambda news: None))
        if (result := run.directory.result) is not None:
            return result
        session = Session(run)
        try:
            return session.train(interrupted)
        except (OSError, RuntimeError) as error:
            if world.main:
                with suppress(OSError):  # the disk may be full, which the error says
                    run.directory.note_failure(error)
            raise
        finally:
            session.close()


@dataclass(frozen=True)
class _Run:
    """A checked run: everything that a session needs."""

    recipe: Recipe
    batches: Batches
    held_out: StreamSequences | PackedSequences | None
    note: str | None
    directory: RunDirectory
    world: World
    report: Report


def _prepare(recipe: Recipe, data: Path, out: Path, world: World, fresh: bool, verify: bool, report: Report) -> _Run:
    """Check everything that can be checked before the first update, and only then change the directory."""
    tokens = TokenData(data)
    recipe = resolve(recipe, tokens.manifest)
    config = configuration(recipe, tokens)

    def check() -> None:
        RunDirectory.check(out, config, fresh)
        if recipe.logging.wandb is not None and find_spec("wandb") is None:
            raise ValueError(
                f"logging.wandb must be None where wandb is not installed, got {recipe.logging.wandb!r}: "
                "pip install 'swila[wandb]'"
            )
        if verify:
            tokens.verify()

    def begin() -> None:
        RunDirectory(out, config, fresh)
        write_json(out / RECIPE, asdict(recipe))
        keep_tokenizer(tokens, out)

    _on_main(world, check)
    training, held_out = tokens.split("train"), tokens.split("validation")
    if training is None:
        raise ValueError(f"{data} must have documents to train on, got none")
    length, packing = recipe.data.length, recipe.data.packing
    order = ShuffledSequences(open_sequences(training, length, packing), recipe.seed)
    batches = Batches(order, recipe.data.batch_size, recipe.execution.micro_batch, world.rank, world.size)
    check_shards(world.size, recipe.execution)
    validation, note = None, None
    if held_out is not None:
        if held_out.tokens > (length if packing == "stream" else held_out.documents):  # there is a label
            validation = open_sequences(held_out, length, packing)
        else:
            note = f"no validation: the validation split has too few tokens for a sequence, {held_out.tokens}"
    _on_main(world, begin)
    return _Run(recipe, batches, validation, note, RunDirectory(out, config), world, report)


def _on_main(world: World, work: Callable[[], None]) -> None:
    """Run a function on rank 0 while the others wait; its errors are raised on every rank."""
    problem: Exception | None = None
    if world.main:
        try:
            work()
        except (ValueError, OSError) as error:
            problem = error
    world.first(problem)


class Session:
    """Model, optimizer and state of an unfinished run."""

    def __init__(self, run: _Run) -> None:
        self.recipe, self.world, self.directory, self.report = run.recipe, run.world, run.directory, run.report
        recipe, world, device = self.recipe, self.world, self.world.device
        self.note = run.note
        if world.main:
            self.directory.note_start()
        self.validation: Validation | None = None
        if run.held_out is not None:
            self.validation = Validation(run.held_out, recipe.validation.sequences, run.batches.micro_batch, world)
        self.model = build_model(recipe, world)
        self.optimizer = MasterAdamW(self.model, recipe.optimizer, recipe.precision)
        self.updates = Updates(self.model, self.optimizer, run.batches, recipe, world)
        self.checkpoints = Checkpoints(self.directory.path, world, recipe.checkpoints)
        self.state = SessionState()
        last = world.first(max(steps_of(self.checkpoints.folder), default=None))
        if last is not None:
            self.state = SessionState.from_json(self.checkpoints.load(self.optimizer, last))
        self.flops = flops_per_token(self.model, recipe.data.length).training
        self.peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self.begun = time.perf_counter() - self.state.seconds
        self.timed, self.updates_timed = 0.0, 0
        self.writer: MetricsWriter | None = None
        if world.main:
            self.writer = MetricsWriter(
                self.directory.path,
                self.state.step,
                recipe.logging.tensorboard,
                recipe.logging.wandb,
                {"recipe": asdict(recipe)},
            )

    @property
    def score(self) -> tuple[str, float | None]:
        """Name and value of the run's score: validation perplexity, or without a validation set the average loss."""
        if self.validation is not None:
            return "perplexity", self.state.perplexity
        return "loss", self.state.average.value if self.state.average.count else None

    def train(self, interrupted: Interrupts) -> RunResult:
        """Run all updates that are left."""
        recipe, state, steps = self.recipe, self.state, self.recipe.schedule.steps
        if self.world.main and state.step:
            self.report(News(state.step, steps, note=f"resumes from the checkpoint of step {state.step}"))
        if self.world.main and self.note is not None:
            self.report(News(state.step, steps, note=self.note))
        first = state.step
        while state.step < steps:
            if state.step == first + SETTLED:
                gc.collect()
                gc.freeze()  # a full collection of a compiled model's many objects would stall the GPU
            began = time.perf_counter()
            update = self.updates.run(state.step, state.average, interrupted.is_set(), self.checkpoints.failed())
            self.timed += time.perf_counter() - began
            self.updates_timed += 1
            if update.bad is not None:
                self._handle_bad(update)
            else:
                state.updates += 1
                state.skipped = 0
                state.average.update(update.loss)
            state.step += 1
            line = self._log(update)
            if state.step % recipe.checkpoints.every == 0 and state.step < steps:
                self._save()
            elif update.failed or (self.checkpoints.written() and not self.checkpoints.failed()):
                self.checkpoints.wait()  # raises on all ranks if it failed: they find that out at different times
            if self.world.main:
                name, value = self.score
                self.directory.note_progress(Progress(state.step, steps, value, name))
                self.report(News(state.step, steps, line))
            if update.stop and state.step < steps:
                self._save()
                self.checkpoints.wait()
                raise Preempted(state.step, interrupted.signal)
        self._save()
        self.checkpoints.wait()
        return self._finish()

    def close(self) -> None:
        """Let a checkpoint that is being written complete, and close the files."""
        gc.unfreeze()
        self.checkpoints.close()
        if self.writer is not None:
            self.writer.close()

    def _log(self, update: Update) -> dict[str, Any] | None:
        """Write the metrics that are due after an update, and return them. Every rank must call this."""
        recipe, state = self.recipe, self.state
        last = state.step == recipe.schedule.steps
        line: dict[str, Any] = {}
        if state.step % recipe.logging.every == 0 or last:
            line |= self._metrics(update)
            if recipe.logging.routing:
                line |= routing_metrics(self.model, self.world)
        if self.validation is not None and (state.step % recipe.validation.every == 0 or last):
            loss = self.validation.loss(self.model)
            state.perplexity = math.exp(min(loss, 700.0))
            state.note_score(state.perplexity)
            line |= {"validation/loss": loss, "validation/perplexity": state.perplexity}
        if not line:
            return None
        line = {"step": state.step, "tokens": state.step * recipe.tokens_per_step, **line}
        if self.writer is not None:
            self.writer.write(line)
        return line

    def _metrics(self, update: Update) -> dict[str, Any]:
        seconds, count = max(self.timed, 1e-9), self.updates_timed
        self.timed, self.updates_timed = 0.0, 0
        speed = count * self.recipe.tokens_per_step / seconds
        line: dict[str, Any] = {
            "train/loss": update.loss,
            "train/auxiliary_loss": update.auxiliary_loss,
            "train/gradient_norm": update.gradient_norm,
            "lr": update.lr,
            "tokens_per_second": speed,
            "seconds": round(time.perf_counter() - self.begun, 3),
            "bad_batches": self.state.bad_batches,
        }
        if self.peak is not None:
            line["mfu"] = mfu(speed, self.flops, self.world.size, self.peak)
        if self.world.device.type == "cuda":
            line["memory_gb"] = torch.cuda.max_memory_allocated(self.world.device) / 1e9
        return line

    def _handle_bad(self, update: Update) -> None:
        """Skip a bad batch, or save the state before it and stop."""
        state, limits = self.state, self.recipe.stability
        step, batch = state.step, self.updates.batches.batch(state.step)
        skips = limits.skip_bad_batches and state.skipped < limits.max_skipped
        if self.world.main:
            record = {
                "step": step,
                "reason": update.bad,
                "loss": update.loss,
                "gradient_norm": update.gradient_norm,
                "positions": [batch.start, batch.start + len(batch.indices)],
                "sequences": batch.indices,
                "skipped": skips,
            }
            write_json(self.directory.path / BAD_BATCH, record)
        if skips:
            state.bad_batches += 1
            state.skipped += 1
            if self.world.main:
                note = f"skipped the batch of update {step}, {update.bad} ({state.bad_batches} skipped so far)"
                self.report(News(step, self.recipe.schedule.steps, note=note))
            return
        self._save()
        self.checkpoints.wait()
        some = ", ".join(map(str, batch.indices[:8])) + (", ..." if len(batch.indices) > 8 else "")
        advice = (
            f"bad batches in a row before it: {state.skipped}; lower optimizer.lr in a new run"
            if limits.skip_bad_batches
            else "--skip-bad-batches goes on without it"
        )
        raise BadBatchError(
            f"the batch of update {step} is bad: {update.bad}. Its sequences are {some} ({BAD_BATCH} has all); the "
            f"state before it is saved as the checkpoint of step {step}; {advice}"
        )

    def _save(self) -> None:
        self.state.seconds = time.perf_counter() - self.begun
        self.checkpoints.save(self.optimizer, asdict(self.state))

    def _finish(self) -> RunResult:
        state = self.state
        name, value = self.score
        if self.validation is None and value is not None:
            state.note_score(value)
        result: RunResult = {
            "status": "finished",
            "metric": name,
            "best": state.best,
            "best_step": state.best_step,
            "steps": state.step,
            "device": str(self.world.device),
            "seconds": state.seconds,
            "final": value,
        }
        if self.world.main:
            self.directory.finish(result)
        return result


def build_model(recipe: Recipe, world: World) -> Any:
    """Return the recipe's model with its initial weights, sharded over the ranks, in training mode."""
    execution = recipe.execution
    model = make_on_meta(recipe.model.config(recipe.data.length))
    if recipe.logging.routing:
        track_routing(model)
    checkpoint_activations(model, execution)
    if world.device.type == "cuda" if execution.compile is None else execution.compile:
        compile_blocks(model, recipe.data.packing == "documents")
    shard(model, make_mesh(world.size, execution, world.device), recipe)
    initialize(model, recipe.seed, world.device)
    return model.train()
