"""Models built from the sequence layers."""

from swila.models.block import Block as Block
from swila.models.synthetic import SyntheticModel as SyntheticModel
from swila.models.synthetic import SyntheticModelConfig as SyntheticModelConfig
