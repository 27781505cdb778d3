"""Precision of matrix products and of forward calls."""

import pytest
import torch

from swila.training.precision import autocast, matmul_precision


@pytest.mark.parametrize(("precision", "products"), [("float32", "highest"), ("tf32", "high"), ("bfloat16", "high")])
def test_products_of_float32_numbers(precision, products):
    usual = torch.get_float32_matmul_precision()
    with matmul_precision(precision):
        assert torch.get_float32_matmul_precision() == products
    assert torch.get_float32_matmul_precision() == usual


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_forward_calls_on_a_cpu_are_never_reduced(precision):
    with autocast(precision, torch.device("cpu")):
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cuda")
