"""Memory of a GPU in training, as an estimate.

The peak is at the end of the forward pass, when the activations of all blocks exist. What exists only at other times
(the optimizer's temporary tensors, gradients of activations) is smaller than the activations freed by then, and is not
counted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from swila.models.language.cross_entropy import default_chunk
from swila.pretraining.activations import kept_bytes

if TYPE_CHECKING:
    from swila.pretraining.recipe import Recipe

FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU.

    Attributes:
        weights: This rank's part of the master weights, in float32.
        gradients: This rank's part of the gradients, in float32.
        optimizer: This rank's part of AdamW's two moments, in float32.
        gathered: Whole weights in the dtype of computing: those of the root group and of two blocks, of which one is
            gathered ahead. With one GPU those of all blocks, or none in float32, where they are the master weights.
        unsharded_gradients: Gradients of the head and of one block in the dtype of computing, and, before they are
            divided among the ranks, those of the block once more in float32. None with one GPU in float32.
        activations: What blocks, final norm and head keep for the backward pass of a micro-batch.
        loss: Logits of a chunk and their gradient, and the gradient of the head's weight in float32.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    unsharded_gradients: float
    activations: float
    loss: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Sizes:
    """Numbers of elements of a model's parameters.

    Attributes:
        root: Elements of embedding, final norm and head.
        blocks: Elements of each block.
        shapes: Shapes of all parameters.
    """

    root: int
    blocks: list[int]
    shapes: list[tuple[int, ...]]

    @classmethod
    def of(cls, model: Any) -> Sizes:
        """Return the sizes of a :class:`swila.SwiLAForCausalLM`."""
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        blocks = [sum(p.numel() for p in block.parameters()) for block in model.model.layers]
        return cls(sum(p.numel() for p in model.parameters()) - sum(blocks), blocks, shapes)

    @property
    def total(self) -> int:
        """Elements of all parameters."""
        return self.root + sum(self.blocks)

    def per_rank(self, ranks: int) -> int:
        """Return the elements on one rank: parameters are divided along their first dimension, rounded up."""
        return sum(-(-shape[0] // ranks) * math.prod(shape[1:]) for shape in self.shapes)


class MemoryEstimate:
    """The memory of a GPU as a function of the micro-batch; traces each kind of block once.

    Args:
        recipe: The recipe.
        sizes: Sizes of its model.
        ranks: Number of ranks that share one copy of the weights.
        replicated: Whether there are several copies.
    """

    def __init__(self, recipe: Recipe, sizes: Sizes, ranks: int, replicated: bool = False) -> None:
        self.recipe, self.sizes, self.ranks = recipe, sizes, ranks
        self.sharded = ranks > 1 or replicated
        self.config = recipe.model.config(recipe.data.length)
        self.dtype = getattr(torch, recipe.precision)
        compiled, length = recipe.execution.compile is not False, recipe.data.length
        first = {name: i for i, name in reversed(list(enumerate(self.config.layer_mixers)))}
        kinds = {name: kept_bytes(self.config, i, length, self.dtype, compiled) for name, i in first.items()}
        self.kept = [kinds[name] for name in self.config.layer_mixers]

    def at(self, micro_batch: int) -> Memory:
        """Return the memory with a micro-batch of that many sequences."""
        sizes, part = self.sizes, FULL * self.sizes.per_rank(self.ranks)
        D, vocabulary, width = self.config.hidden_size, self.config.vocab_size, self.dtype.itemsize
        block = max(sizes.blocks)
        gathered, gradients = width * sizes.total, width * (vocabulary * D + block)
        if self.sharded:
            gathered = width * (sizes.root + min(2, len(sizes.blocks)) * block)
            gradients += FULL * block
        elif width == FULL:
            gathered = gradients = 0
        chunk = min(default_chunk(vocabulary), micro_batch * self.recipe.data.length)
        logits = chunk * vocabulary * (FULL + (width if width != FULL else 0))  # float32 is overwritten in place
        return Memory(
            weights=part,
            gradients=part,
            optimizer=2 * part,
            gathered=gathered,
            unsharded_gradients=gradients,
            activations=self._activations(micro_batch),
            loss=logits + FULL * vocabulary * D,
        )

    def _activations(self, micro_batch: int) -> float:
        """Return the bytes of inputs of all blocks, what blocks keep, and the hidden states around the head.

        Of blocks whose activations are recomputed, one at a time has them.
        """
        stream = self.recipe.data.length * self.config.hidden_size * self.dtype.itemsize  # one tensor of hidden states
        recomputed = [kept for i, kept in enumerate(self.kept) if self.recipe.execution.recomputes(i)]
        kept = sum(self.kept) - sum(recomputed) + max(recomputed, default=0.0)
        around_head = 4 * stream  # input and output of the final norm, gradient of the latter, gradient of the former
        return micro_batch * (len(self.kept) * stream + kept + around_head)
