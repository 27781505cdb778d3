"""``swila doctor``: correctness of every backend on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from swila.cli.options import DTYPES, fail, one_line_errors, parse_device, parse_dtype


def doctor(
    device: Annotated[
        list[str] | None, typer.Option(help="Device to check; repeat for several. Default: cpu, and cuda if present.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend to check; repeat for several. Default: all usable ones.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Dtype of the inputs; repeat for several. Default: all.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every check, not only the one with the largest error.")
    ] = False,
) -> None:
    """Check that every backend is correct on this machine.

    Compares the forward and all gradients of every variant with the reference in float64. Some compilers silently
    miscompile kernels for some GPUs; this command detects it. The exit status is 1 if a check fails.
    """
    import torch
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track
    from rich.table import Table

    from swila.ops.backends import all_backends, get_backend
    from swila.testing import examine

    with one_line_errors():
        devices = [parse_device(d) for d in device or ["cpu"] + ["cuda"] * torch.cuda.is_available()]
        dtypes = [parse_dtype(d) for d in dtype or DTYPES]
        backends = [get_backend(name) for name in backend] if backend else list(all_backends())

    console = Console()
    table = Table(
        title="the check with the largest error of each backend, over all variants", title_justify="left", box=None
    )
    for heading in ("backend", "device", "dtype", "calls", "error", "allowed", "verdict", "of"):
        numeric = heading in ("calls", "error", "allowed")
        table.add_column(heading, header_style="bold", justify="right" if numeric else "left")
    failures = calls_checked = 0
    work = [(b, where, kind) for b in backends for where in devices for kind in dtypes]
    for b, where, kind in track(work, "checking", console=console, transient=True):
        found = examine(b, where, kind)
        failures += found.failures
        calls_checked += found.calls
        row = b.name, where, str(kind).removeprefix("torch.")
        for call, crash in found.crashes:
            table.add_row(*row, "", "", "", "[red]CRASHED[/]", escape(f"{call}: {crash}"))
        if found.calls == 0:
            table.add_row(*row, "0", "", "", "not supported", escape(found.refusals[0]), style="dim")
        for i, (call, check) in enumerate(found.checks):
            if i == 0 or verbose or not check.ok:
                verdict = "[green]right[/]" if check.ok else "[red]WRONG[/]"
                calls = str(found.calls) if i == 0 else ""
                error, allowed = f"{check.error:.1e}", f"{check.allowed:.1e}"
                table.add_row(*row, calls, error, allowed, verdict, f"{check.name} ({call})")
    console.print(table)
    if failures:
        console.print(f"[red]{failures} checks failed.[/] Do not use these backends; choose another with backend=...")
        raise SystemExit(1)
    if calls_checked == 0:
        fail("nothing was checked: none of these backends supports these devices and dtypes")
    console.print("[green]all checks passed.[/]")
