"""``swila info``: versions, devices and backends."""

from __future__ import annotations


def info() -> None:
    """Show versions, devices and backends.

    For each backend, shows whether it is usable on this machine and, if not, why.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from swila.environment import environment
    from swila.ops.backends import all_backends

    console, facts = Console(), environment()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("swila", f"{facts['swila']}" + (f" ({facts['commit']})" if facts["commit"] else ""))
    table.add_row("torch", facts["torch"] + (f" (CUDA {facts['cuda']})" if facts["cuda"] else " (no CUDA)"))
    table.add_row("python", facts["python"])
    for name, version in facts["packages"].items():
        table.add_row(name, version)
    table.add_row("system", facts["platform"])
    table.add_row("cpu", f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} torch threads")
    for i, name in enumerate(facts["gpus"]):
        table.add_row(f"cuda:{i}", name)
    if not facts["gpus"]:
        table.add_row("gpu", "none found by torch")
    console.print(table)

    backends = Table(title="\nbackends, in the order in which 'auto' tries them", title_justify="left", box=None)
    for heading in ("name", "usable here", "what it is"):
        backends.add_column(heading, header_style="bold")
    for backend in all_backends():
        reason = backend.unusable()
        usable = "[green]yes[/]" if reason is None else f"[red]no[/]: {escape(reason)}"
        backends.add_row(backend.name, usable, backend.summary)
    console.print(backends)
