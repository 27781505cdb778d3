"""The tag of operators whose operands may have rows at any distance."""

from __future__ import annotations

import torch

# torch.compile pads rows of wide products to multiples of 128 bytes. Before an operator without this tag it copies such
# a product, or each part of it that is an operand, to the strides that eager mode would have.
STRIDED = (torch.Tag.flexible_layout,)
