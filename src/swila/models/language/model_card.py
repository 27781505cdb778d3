"""The model card saved with the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swila._version import __version__
from swila.models.language.presets import ARCHITECTURES

if TYPE_CHECKING:
    from swila.models.language.modeling import SwiLAPreTrainedModel

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- {tags}
---

# {title}

A causal language model with {layers}.

| | |
|---|---:|
| parameters | {parameters:,} |
| layers, width, vocabulary | {config.num_hidden_layers}, {config.hidden_size}, {config.vocab_size:,} |
| recurrent state | {state:,} scalars ({megabytes:.2f} MB in float32), for any length of text |
| keys and values per token | {cache:,} scalars |

```python
import swila  # registers the architecture with transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")  # the path or name of this model
tokenizer = AutoTokenizer.from_pretrained("PATH")  # if the tokenizer was saved as well
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
print(swila.generate(model, "Once upon a time", tokenizer, max_new_tokens=50).texts[0])  # much faster on a GPU
```

`pip install 'swila[cli,hf]'` installs the requirements. On the command line, use
`swila generate PATH "Once upon a time"` or `swila chat PATH`. Saved with swila {version}.

{training}"""
UNKNOWN = "Training data, intended use and evaluation: to be completed by the author of the checkpoint.\n"


def model_title(config: Any) -> str:
    """Return the name of the architecture if it is one of the paper's, else the names of its mixers."""
    mixers = dict.fromkeys(config.layer_mixers)
    for architecture in ARCHITECTURES.values():
        expected = {architecture.mixer, "attention"} if architecture.hybrid else {architecture.mixer}
        options = config.options_of(architecture.mixer)
        marks, wanted = (
            {key: of.get(key) or None for key in ("temporal", "decay")} | {"J": of.get("num_mixtures", 4)}
            for of in (options, architecture.options)
        )
        if set(mixers) == expected and marks == wanted:
            return architecture.title
    return " and ".join(mixers)


def model_card(model: SwiLAPreTrainedModel, training: str = UNKNOWN) -> str:
    """Return the model card of a model.

    Args:
        model: The model.
        training: Its last part: how the model was trained.
    """
    config = model.config
    counts = {name: config.layer_mixers.count(name) for name in dict.fromkeys(config.layer_mixers)}
    state = model.base_model.state_size(0)
    return CARD.format(
        tags="\n- ".join(dict.fromkeys(["swila", *counts])),
        title=model_title(config),
        layers=" and ".join(f"{n} {'layer' if n == 1 else 'layers'} of `{name}`" for name, n in counts.items()),
        parameters=model.num_parameters(),
        config=config,
        state=state,
        megabytes=4 * state / 1e6,
        cache=model.base_model.state_size(1) - state,
        version=__version__,
        training=training,
    )


def write_model_card(model: SwiLAPreTrainedModel, directory: Any) -> None:
    """Write README.md next to the weights, unless it exists."""
    path = Path(directory) / "README.md"
    if not path.exists():
        path.write_text(model_card(model))
