"""``swila doctor``: is every backend right on this very machine?"""

from __future__ import annotations

from typing import Annotated

import typer

from swila.cli.options import one_line_errors, parse_device


def doctor(
    device: Annotated[
        list[str] | None, typer.Option(help="Device to check; repeat for several. Default: cpu, and cuda if present.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend to check; repeat for several. Default: all usable ones.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, not only the worst.")] = False,
) -> None:
    """Check every usable backend, forward and all gradients, against the specification in float64.

    Compilers have been seen to miscompile kernels silently on some GPUs: this finds it on yours. The exit status is 1
    if anything is wrong.
    """
    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from swila.ops.backends import all_backends, choose_backend, get_backend
    from swila.ops.call import PER_TOKEN, Inputs, Options, Problem
    from swila.testing import VARIANTS, check_backend, make_call

    with one_line_errors():
        devices = [parse_device(d) for d in device or ["cpu"] + ["cuda"] * torch.cuda.is_available()]
        chosen = [get_backend(name) for name in backend] if backend else list(all_backends())

    console = Console()
    table = Table(title="worst check of each backend, over all variants", title_justify="left", box=None)
    for heading in ("backend", "device", "dtype", "calls", "worst result", "error", "allowed", "verdict"):
        table.add_column(
            heading, header_style="bold", justify="right" if heading in ("calls", "error", "allowed") else "left"
        )
    work = [
        (b, d, dtype)
        for b in chosen
        for d in devices
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    ]
    wrong = 0
    for b, d, dtype in track(work, "checking", console=console, transient=True):
        shown = [b.name, d, str(dtype).removeprefix("torch.")]
        checks, refusals = [], []
        for name, variant in VARIANTS.items():
            for lengths in (None, [5, 40, 1, 33]):
                call = make_call(variant, dtype=dtype, device=d, lengths=lengths)
                x = Inputs.of([*(call.get(n) for n in PER_TOKEN), *call["initial_state"], call.get("cu_seqlens")])
                options = Options(variant.decay_order, variant.normalize, True, True)
                try:
                    choose_backend(b.name, Problem.of(x, options, needs_grad=True))
                except ValueError as refusal:
                    refusals.append(str(refusal).split(": ", 1)[1])
                    continue
                where = f"{name}, packed" if lengths else name
                try:
                    checks += [(check, f"{check.name} ({where})") for check in check_backend(call, b.name)]
                except Exception as crash:
                    wrong += 1
                    table.add_row(*shown, "", where, "", "", f"[red]crashed: {type(crash).__name__}: {crash}[/]")
        if refusals and not checks:
            table.add_row(*shown, "0", "", "", "", f"not supported: {refusals[0]}", style="dim")
            continue
        wrong += sum(not check.ok for check, _ in checks)
        checks.sort(key=lambda item: item[0].error / item[0].allowed if item[0].ok else float("inf"), reverse=True)
        for i, (check, where) in enumerate(checks):
            if i == 0 or verbose or not check.ok:
                count = str(2 * len(VARIANTS) - len(refusals)) if i == 0 else ""
                verdict = "[green]right[/]" if check.ok else "[red]WRONG[/]"
                table.add_row(*shown, count, where, f"{check.error:.1e}", f"{check.allowed:.1e}", verdict)
    console.print(table)
    if wrong:
        console.print(
            f"[red]{wrong} checks failed.[/] Do not train with such a backend; choose another with backend=..."
        )
        raise SystemExit(1)
    console.print("[green]everything is right.[/]")
