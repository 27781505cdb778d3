"""Labels and looks of pretraining runs: a colour and a marker for each architecture, line styles for its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from swila.plots.looks import LOOKS
from swila.plots.style import CONTEXT_COLOURS, DASHED, Look, shade
from swila.pretraining.record import RunRecord

LINES: tuple[Any, ...] = ("-", DASHED, (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
SHADES = (0.0, -0.4, 0.35, -0.65, 0.55)  # of the runs of one architecture, as in swila.plots.style.shade


class Appearance(NamedTuple):
    """How a run appears in figures.

    Attributes:
        label: Title of its architecture, with the name of the run if there are several of that architecture.
        look: Colour, marker and line style.
    """

    label: str
    look: Look


def architecture_of(recipe: str) -> str:
    """Return the architecture that the name of a recipe begins with; the name itself if there is none."""
    fitting = [name for name in LOOKS if recipe == name or recipe.startswith(f"{name}-")]
    return max(fitting, key=len, default=recipe)


def appearances(runs: Iterable[RunRecord]) -> dict[str, Appearance]:
    """Return how each run appears, by name; no two runs appear alike."""
    of = {run["name"]: architecture_of(run["recipe"]) for run in runs}
    counts = Counter(of.values())
    strangers = [name for name in counts if name not in LOOKS]
    short = {name: name.removeprefix(f"{architecture}-") for name, architecture in of.items()}
    clashes = Counter((architecture, short[name]) for name, architecture in of.items())
    found: dict[str, Appearance] = {}
    seen: Counter[str] = Counter()
    for name, architecture in of.items():
        if architecture in LOOKS:
            look = LOOKS[architecture]
        else:
            look = Look(architecture, CONTEXT_COLOURS[strangers.index(architecture) % len(CONTEXT_COLOURS)])
        place = seen[architecture]
        seen[architecture] += 1
        label = look.title
        if counts[architecture] > 1:
            label += f", {short[name] if clashes[architecture, short[name]] == 1 else name}"
        colour = shade(look.colour, SHADES[place % len(SHADES)])
        found[name] = Appearance(label, look._replace(colour=colour, line=LINES[place % len(LINES)]))
    return found
