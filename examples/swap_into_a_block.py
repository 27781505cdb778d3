"""Use SwiLA in an existing model: replace every second attention layer of a Llama by switching linear attention.

python examples/swap_into_a_block.py
"""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from swila import SwiLA


class SwiLAInLlama(nn.Module):
    """SwiLA with the interface of Llama's attention: hidden states in, a pair out."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.swila = SwiLA(config.hidden_size, num_heads=config.num_attention_heads, num_mixtures=4, temporal=True)

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        """Run the layer. A recurrence is causal and ordered: it needs no positions and no causal mask."""
        return self.swila(hidden_states)[0], None


def main(steps: int = 150) -> list[float]:
    """Train the hybrid to recall the token that followed a key earlier, and return the losses."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=99, num_hidden_layers=2)
    config.num_attention_heads = config.num_key_value_heads = 2
    model = LlamaForCausalLM(config)
    for block in model.model.layers[1::2]:
        block.self_attn = SwiLAInLlama(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        keys = torch.rand(8, 16).argsort(1).repeat(1, 4)
        values = torch.randint(16, 32, (8, 16)).gather(1, keys)  # a fixed value for each key of a row
        tokens = torch.stack([keys, values], -1).flatten(1)
        loss = model(tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            print(f"step {step + 1:3d}  loss {loss.item():.3f}")
    return losses


if __name__ == "__main__":
    main()
