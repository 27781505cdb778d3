"""``python -m swila``: the command."""

from swila.cli import main

main()
