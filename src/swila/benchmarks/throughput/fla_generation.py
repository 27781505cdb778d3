"""Generation with flash-linear-attention's own Gated DeltaNet model, by transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from swila.benchmarks.throughput.checks import SLACK, plain_model
from swila.benchmarks.throughput.contenders import BASELINE, make_model, our_weights
from swila.ops.fused.choice import use_fused

DEPTH = 2  # layers of the version that is checked
TOKENS = (2, 40)  # its prompts
NEW = 8


def generate_greedily(
    model: Any, prompts: Tensor, new: int, read: Callable[[], None] = lambda: None, **options: Any
) -> Any:
    """Return what ``generate`` of transformers returns for prompts of one length.

    Args:
        model: Model of flash-linear-attention.
        prompts: Tokens ``[B, T]``.
        new: Tokens to generate.
        read: Called when the prompts have been read and the first token is known.
        options: Other arguments of ``generate``.
    """
    return model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new, do_sample=False, use_cache=True,
        eos_token_id=None, pad_token_id=0, streamer=_FirstToken(read), **options,
    )  # fmt: skip


class _FirstToken:
    """A streamer, which is given the prompts and then each token."""

    def __init__(self, read: Callable[[], None]) -> None:
        self.read, self.calls = read, 0

    def put(self, tokens: Tensor) -> None:
        self.calls += 1
        if self.calls == 2:
            self.read()

    def end(self) -> None:
        pass


def why_refused(size: str, device: str, dtype: torch.dtype, prompt: int) -> str | None:
    """Return why the model is not timed, or None.

    The logits of generated tokens, of a version with a few layers, must be those of our model with its weights in
    float32, up to a small multiple of the error of ours in ``dtype``. Before that it reads a prompt as long as those
    that are timed: flash-linear-attention tunes its kernels for their first call.

    Args:
        size: Size of the preset.
        device: Device of the models.
        dtype: Dtype of the weights that are timed.
        prompt: Tokens of the prompts that are timed.
    """
    theirs = make_model(BASELINE, size, device, dtype, DEPTH).eval()
    vocabulary = theirs.config.vocab_size
    generate_greedily(theirs, torch.randint(vocabulary, (1, prompt), device=device), 2)
    prompts = torch.randint(vocabulary, TOKENS, generator=torch.Generator().manual_seed(1)).to(device)
    out = generate_greedily(theirs, prompts, NEW, return_dict_in_generate=True, output_logits=True)
    found = torch.stack(out.logits, 1).float()
    weights = our_weights(theirs.state_dict())
    exact, plain = (_logits(size, device, kind, weights, out.sequences) for kind in (torch.float32, dtype))
    error, allowed = _relative(found, exact), SLACK[0] * _relative(plain, exact) + SLACK[1]
    return None if error <= allowed else f"wrong: logits off by {error:.1e}, more than {allowed:.1e}"


def _logits(size: str, device: str, dtype: torch.dtype, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the logits of the last tokens by our model in plain torch."""
    model = plain_model(BASELINE, size, device, dtype, weights, DEPTH).eval()
    with torch.no_grad(), use_fused(False):
        return model(tokens).logits[:, -NEW - 1 : -1].float()


def _relative(found: Tensor, truth: Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()
