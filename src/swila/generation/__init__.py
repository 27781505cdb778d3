"""Text generation with captured CUDA graphs, and generation states that can be saved to a file."""

from swila.generation.api import Generation as Generation
from swila.generation.api import generate as generate
from swila.generation.api import release as release
from swila.generation.prompts import prefill as prefill
from swila.generation.sampling import Sampling as Sampling
from swila.generation.state import GenerationState as GenerationState
