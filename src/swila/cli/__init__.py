"""The ``swila`` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, or exit with a message if its packages are not installed."""
    for package in ("typer", "rich"):
        if find_spec(package) is None:
            sys.exit(f"the swila command needs {package}, which is not installed: pip install 'swila[cli]'")
    from swila.cli.app import app

    app()
