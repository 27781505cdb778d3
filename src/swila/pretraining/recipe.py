"""A recipe: everything that determines a pretraining run, as frozen dataclasses.

The first part of a recipe says *what* is trained: model, optimizer, schedule, data, precision and seed. It identifies
the run; a directory with another one is an error. The second part says *how*: execution, checkpoints, validation,
logging and stability. It may change when a run resumes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from swila.training.schedule import LearningRate

if TYPE_CHECKING:
    from swila.models.language.configuration import SwiLAConfig

Precision = Literal["bfloat16", "float32"]
Packing = Literal["stream", "documents"]
Schedule = Literal["cosine", "constant"]
ActivationCheckpointing = Literal["none", "all"] | int


@dataclass(frozen=True)
class ModelRecipe:
    """The model, as fields of :class:`swila.SwiLAConfig`.

    Attributes:
        hidden_size: Width of the residual stream.
        num_hidden_layers: Number of blocks.
        intermediate_size: Inner width of the feed-forward layers.
        mixer: Name of the sequence mixer, or a list of names.
        mixer_options: Options of each mixer, by name.
        attention_layers: Indices of layers that are softmax attention.
        vocab_size: Size of the vocabulary. None takes that of the data, rounded up to a multiple of 64.
        initializer_range: Standard deviation of the initial weights.
        embedding_initializer_range: Standard deviation of the initial embeddings; None: ``initializer_range``.
        conv_initializer_range: Standard deviation of the initial short convolutions; None: uniform, as in torch.
        rescale_residual: Whether initial output projections are divided by the square root of their number.
        norm_eps: Epsilon of the RMSNorms.
        tie_word_embeddings: Whether the head shares the weight of the embedding.
    """

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    mixer: str | list[str]
    mixer_options: dict[str, Any] = field(default_factory=dict)
    attention_layers: list[int] | None = None
    vocab_size: int | None = 32000
    initializer_range: float = 0.02
    embedding_initializer_range: float | None = None
    conv_initializer_range: float | None = 0.02
    rescale_residual: bool = False
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    def config(self, length: int, vocab_size: int | None = None) -> SwiLAConfig:
        """Return the configuration of the model.

        Args:
            length: Length of the training sequences.
            vocab_size: Size of the vocabulary if the recipe has none.
        """
        from swila.models.language.configuration import SwiLAConfig

        given = asdict(self)
        if given["vocab_size"] is None:
            given["vocab_size"] = 32000 if vocab_size is None else vocab_size
        return SwiLAConfig(max_position_embeddings=length, **given)


@dataclass(frozen=True)
class OptimizerRecipe:
    """AdamW.

    Attributes:
        lr: Peak learning rate.
        weight_decay: Weight decay of the parameters that no layer exempts.
        betas: Decay rates of the two moments.
        eps: Term added to the denominator.
        clip: Largest gradient norm; None for no clipping.
    """

    lr: float = 3e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float | None = 1.0


@dataclass(frozen=True)
class ScheduleRecipe:
    """The learning rate over the run.

    Attributes:
        steps: Number of updates.
        warmup_steps: Number of updates of the linear warm-up.
        schedule: ``"cosine"`` or ``"constant"``, after the warm-up.
        min_lr: Final learning rate of the cosine, as a fraction of the peak.
    """

    steps: int
    warmup_steps: int = 0
    schedule: Schedule = "cosine"
    min_lr: float = 0.1


@dataclass(frozen=True)
class DataRecipe:
    """The sequences of an update.

    Attributes:
        length: Number of tokens of a sequence.
        batch_size: Number of sequences of an update, over all ranks and micro-batches.
        packing: ``"stream"`` cuts the stream of all documents at the length. ``"documents"`` packs whole documents into
            sequences; states and convolutions start anew at each document.
    """

    length: int
    batch_size: int
    packing: Packing = "stream"


@dataclass(frozen=True)
class ExecutionRecipe:
    """How an update is computed.

    None of it changes what is computed, up to rounding, except for the statistics of load balancing, which are those of
    a micro-batch.

    Attributes:
        micro_batch: Most sequences of one forward call on a rank. If it does not divide a rank's share of the batch,
            the largest number below it that does is used.
        compile: Whether to compile each block with ``torch.compile``; None: on a GPU.
        activation_checkpointing: ``"none"``, ``"all"``, or n for every n-th block: activations of these blocks are
            recomputed in the backward pass.
        shard_size: Number of ranks that share one copy of the weights; the ranks must be a multiple of it. None: all
            ranks (FSDP). Fewer than all: copies are replicated (HSDP).
    """

    micro_batch: int = 8
    compile: bool | None = None
    activation_checkpointing: ActivationCheckpointing = "none"
    shard_size: int | None = None

    def recomputes(self, layer: int) -> bool:
        """Return whether the activations of a block, by its index from 0, are recomputed in the backward pass."""
        which = self.activation_checkpointing
        return which == "all" or (isinstance(which, int) and (layer + 1) % which == 0)


@dataclass(frozen=True)
class CheckpointRecipe:
    """When checkpoints are written, and which are kept.

    Attributes:
        every: Number of updates between checkpoints.
        keep_last: Number of latest checkpoints that are kept.
        keep_every: Checkpoints at multiples of this step are kept as well; None: no others.
        asynchronous: Whether training continues while a checkpoint is written.
    """

    every: int = 500
    keep_last: int = 2
    keep_every: int | None = None
    asynchronous: bool = True


@dataclass(frozen=True)
class ValidationRecipe:
    """Validation during training.

    Attributes:
        every: Number of updates between validations.
        sequences: Most sequences of the validation set that are used.
    """

    every: int = 500
    sequences: int = 1024


@dataclass(frozen=True)
class LoggingRecipe:
    """Which metrics are written where.

    Attributes:
        every: Number of updates between lines of metrics.
        routing: Whether to write the routing diagnostics of every layer.
        tensorboard: Whether to write TensorBoard's event files, if TensorBoard is installed.
        wandb: Project of Weights & Biases to write to; None: none.
    """

    every: int = 10
    routing: bool = True
    tensorboard: bool = True
    wandb: str | None = None


@dataclass(frozen=True)
class StabilityRecipe:
    """What counts as a bad batch, and what happens then.

    Attributes:
        max_loss_increase: A batch is bad if its loss exceeds the running average by more than this, in nats; None:
            only losses and gradients that are not finite are bad.
        skip_bad_batches: Whether to skip the update of a bad batch instead of stopping.
        max_skipped: Number of bad batches in a row after which the run stops anyway.
    """

    max_loss_increase: float | None = 3.0
    skip_bad_batches: bool = False
    max_skipped: int = 20


@dataclass(frozen=True)
class Recipe:
    """A pretraining run.

    Attributes:
        name: Name of the recipe: architecture and size.
        summary: One line on what it trains.
        model: The model.
        schedule: Number of updates and learning rate over them.
        data: The sequences of an update.
        optimizer: The optimizer.
        precision: ``"bfloat16"``: parameters are cast to bfloat16 for computing; master weights, the optimizer and
            the reduction of gradients are float32. ``"float32"``: everything is float32.
        seed: Seed of the weights, the order of the data and the random numbers of an update.
        execution: How an update is computed.
        checkpoints: When checkpoints are written.
        validation: Validation during training.
        logging: Which metrics are written.
        stability: What happens at a bad batch.
    """

    name: str
    summary: str
    model: ModelRecipe
    schedule: ScheduleRecipe
    data: DataRecipe
    optimizer: OptimizerRecipe = OptimizerRecipe()
    precision: Precision = "bfloat16"
    seed: int = 0
    execution: ExecutionRecipe = ExecutionRecipe()
    checkpoints: CheckpointRecipe = CheckpointRecipe()
    validation: ValidationRecipe = ValidationRecipe()
    logging: LoggingRecipe = LoggingRecipe()
    stability: StabilityRecipe = StabilityRecipe()

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens of an update."""
        return self.data.length * self.data.batch_size

    @property
    def tokens(self) -> int:
        """Number of tokens of the whole run."""
        return self.tokens_per_step * self.schedule.steps

    def learning_rate(self) -> LearningRate:
        """Return the learning rate as a function of the step."""
        schedule = self.schedule
        return LearningRate(
            self.optimizer.lr, schedule.steps, schedule.schedule, schedule.warmup_steps, min_lr=schedule.min_lr
        )

    def identity(self) -> dict[str, Any]:
        """Return the part that determines what is trained, as JSON."""
        return {name: part for name, part in asdict(self).items() if name in IDENTITY}

    def check(self) -> None:
        """Raise ValueError if a field is invalid; the message names the field."""
        for where, part, names in (
            ("schedule", self.schedule, ("steps",)),
            ("data", self.data, ("length", "batch_size")),
            ("execution", self.execution, ("micro_batch",)),
            ("checkpoints", self.checkpoints, ("every", "keep_last")),
            ("validation", self.validation, ("every", "sequences")),
            ("logging", self.logging, ("every",)),
            ("stability", self.stability, ("max_skipped",)),
        ):
            for name in names:
                _check_count(f"{where}.{name}", getattr(part, name))
        for name, value in (
            ("execution.shard_size", self.execution.shard_size),
            ("checkpoints.keep_every", self.checkpoints.keep_every),
        ):
            if value is not None:
                _check_count(name, value)
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if self.data.packing not in get_args(Packing):
            raise ValueError(f"data.packing must be one of {', '.join(get_args(Packing))}, got {self.data.packing!r}")
        saved = self.execution.activation_checkpointing
        if saved not in ("none", "all"):
            if isinstance(saved, str):
                raise ValueError(f"execution.activation_checkpointing must be none, all or a number, got {saved!r}")
            _check_count("execution.activation_checkpointing", saved)
        if self.schedule.schedule not in get_args(Schedule):
            raise ValueError(f"schedule.schedule must be cosine or constant, got {self.schedule.schedule!r}")
        optimizer = self.optimizer
        if optimizer.clip is not None and not optimizer.clip > 0:
            raise ValueError(f"optimizer.clip must be above 0, or None, got {optimizer.clip}")
        if not optimizer.weight_decay >= 0:
            raise ValueError(f"optimizer.weight_decay must be at least 0, got {optimizer.weight_decay}")
        if not all(0 <= beta < 1 for beta in optimizer.betas):
            raise ValueError(f"optimizer.betas must be at least 0 and below 1, got {optimizer.betas}")
        if not optimizer.eps > 0:
            raise ValueError(f"optimizer.eps must be above 0, got {optimizer.eps}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        self.learning_rate()
        self.model.config(self.data.length)


IDENTITY = ("model", "schedule", "data", "optimizer", "precision", "seed")
assert set(IDENTITY) < {each.name for each in fields(Recipe)}


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
