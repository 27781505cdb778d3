"""The ``swila`` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Entry point: a clear word where the extra is missing, else the application."""
    for package in ("typer", "rich"):
        if find_spec(package) is None:
            sys.exit(f"the swila command needs {package}, which is not installed: pip install 'swila[cli]'")
    from swila.cli.app import app

    app()
