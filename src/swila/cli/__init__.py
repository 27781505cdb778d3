"""The ``swila`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: a clear word where the extra is missing, else the application."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as missing:
        sys.exit(f"the swila command needs {missing.name}, which is not installed: pip install 'swila[cli]'")
    from swila.cli.app import app

    app()
