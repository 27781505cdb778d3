"""The paper's experiments on synthetic tasks. Each has a folder; ``registry.py`` lists them."""
