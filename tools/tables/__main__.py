"""``python -m tools.tables``: check where the results come from, then rewrite the tables of README and docs."""

import sys
from pathlib import Path

from tools.tables import update

try:
    for line in update(Path()):
        print(line)
except ValueError as error:
    sys.exit(f"error: {error}")
