"""Floating-point operations of a model per token, and the fraction of a GPU's peak that a throughput is.

Counted are products and sums of matrix products, recurrences, softmax attention and convolutions. Norms, activations
and the softmax are not, as usual. The backward pass takes twice the operations of the forward pass. What activation
checkpointing computes a second time is not counted: it is not part of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from swila.layers.mixer import SequenceMixer
from swila.layers.qkv import QKVMixer
from swila.pretraining.gpus import find_gpu

if TYPE_CHECKING:
    from swila.pretraining.recipe import Recipe


class Flops(NamedTuple):
    """Operations of the forward pass per token.

    Attributes:
        linear: Matrix products of ``Linear`` modules: 2 for each weight, the head included, the embedding not.
        recurrence: Recurrences with a state of fixed size; see :meth:`swila.layers.SequenceMixer.mixing_flops`.
        attention: Attention over all earlier tokens of a sequence, half of it on average.
        convolution: Short convolutions.
    """

    linear: float
    recurrence: float
    attention: float
    convolution: float

    @property
    def forward(self) -> float:
        """Operations of the forward pass."""
        return sum(self)

    @property
    def training(self) -> float:
        """Operations of forward and backward pass."""
        return 3 * self.forward


def flops_per_token(model: nn.Module, length: int) -> Flops:
    """Return the operations of a model per token.

    Args:
        model: A language model; its weights may be on the meta device, or sharded.
        length: Number of tokens of a sequence. With several documents in a sequence, attention does less.
    """
    linear = recurrence = attention = convolution = 0.0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            linear += 2.0 * module.in_features * module.out_features
        if isinstance(module, QKVMixer):
            convolution += module.convolution_flops()
        if isinstance(module, SequenceMixer):
            flops = module.mixing_flops(length)
            if module.state_size(1) > module.state_size(0):  # keeps every token
                attention += flops
            else:
                recurrence += flops
    return Flops(linear, recurrence, attention, convolution)


def recipe_flops(recipe: Recipe) -> Flops:
    """Return the operations of a recipe's model per token, without allocating its weights."""
    from swila.pretraining.skeleton import skeleton

    return flops_per_token(skeleton(recipe), recipe.data.length)


def peak_flops(device_name: str) -> float | None:
    """Return the bfloat16 peak of ``torch.cuda.get_device_name()`` in operations per second; None if unknown."""
    gpu = find_gpu(device_name)
    return None if gpu is None else gpu.peak


def mfu(tokens_per_second: float, flops_per_token: float, gpus: int, peak: float) -> float:
    """Return the model FLOPs utilisation: the operations of the model per second as a fraction of the peak.

    Args:
        tokens_per_second: Throughput of all GPUs together.
        flops_per_token: Operations per token, :attr:`Flops.training` in training.
        gpus: Number of GPUs.
        peak: Operations per second of one GPU.
    """
    return tokens_per_second * flops_per_token / (gpus * peak)
