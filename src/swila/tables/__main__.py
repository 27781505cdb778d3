"""``python -m swila.tables``: rewrite the tables of the README and the docs."""

from pathlib import Path

from swila.tables import update

update(Path())
