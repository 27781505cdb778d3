"""Generation: prompts in, tokens out, through a captured CUDA graph; states that can be kept in a file."""

from swila.generation.api import Generation as Generation
from swila.generation.api import generate as generate
from swila.generation.api import release as release
from swila.generation.prompts import prefill as prefill
from swila.generation.sampling import Sampling as Sampling
from swila.generation.state import GenerationState as GenerationState
