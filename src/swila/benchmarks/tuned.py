"""The configurations that Triton's autotuner chose for the kernels of baselines, kept in a file.

flash-linear-attention tunes each kernel when it is first called with heads of a new size, which takes minutes. Triton
keeps what was chosen on the machine; with a file, it also serves other machines with the same GPU. A kernel's choice
does not depend on the length: it is that of the first call, by whatever command uses the file. Each configuration is
timed for 25 ms instead of Triton's 100.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from swila.training.json_files import first_difference, read_json_if_present, write_json

PACKAGE = "fla."  # whose kernels are meant
QUICKLY = {"warmup": 5, "rep": 25}  # ms for each of hundreds of configurations, a fifth and a quarter of Triton's own
SAME = ("packages.triton", "packages.flash-linear-attention", "gpus")  # of the environment, for a choice to be of use


class Choices:
    """A file with the configuration chosen for each kernel and key of Triton's autotuner.

    Attributes:
        path: The file; it is written after each new choice.
        record: Its content.
    """

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        """Read a file, or start one.

        Args:
            path: The file; its directory is made.
            environment: From :func:`swila.environment.environment`.
        """
        if path.is_dir():
            raise ValueError(f"tuned must be a file, got the directory {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        known = read_json_if_present(path)
        if known is not None and (known.get("benchmark") != "tuned" or not isinstance(known.get("kernels"), dict)):
            raise ValueError(f"tuned must be a file that an earlier call has written, got {path}")
        self.record: dict[str, Any] = known or {"benchmark": "tuned", "environment": environment, "kernels": {}}
        there, here = (
            {name: _field(each, name) for name in SAME} for each in (self.record.get("environment", {}), environment)
        )
        if difference := first_difference(there, here):
            raise ValueError(
                f"tuned must be a file of the same GPU and versions, but in {path} {difference}; give another file"
            )

    def find(self, kernel: str, key: Sequence[Any], configurations: Sequence[Any]) -> Any:
        """Return the configuration that was chosen for a kernel and key, or None if none of these was."""
        chosen = self.record["kernels"].get(kernel, {}).get(json.dumps(list(key)))
        return next((each for each in configurations if str(each) == chosen), None)

    def note(self, kernel: str, key: Sequence[Any], configuration: Any) -> None:
        """Add a choice, and write the file."""
        self.record["kernels"].setdefault(kernel, {})[json.dumps(list(key))] = str(configuration)
        write_json(self.path, self.record)


class _Cache(dict):
    """The autotuner's dictionary of chosen configurations by key, which also looks into a file and adds to it."""

    def __init__(self, tuner: Any, kernel: str, choices: Choices) -> None:
        super().__init__(tuner.cache)
        self.configurations, self.kernel, self.choices = tuner.configs, kernel, choices

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        assert isinstance(key, tuple)
        found = self.choices.find(self.kernel, key, self.configurations)
        if found is None:
            return False
        super().__setitem__(key, found)
        return True

    def __setitem__(self, key: Any, configuration: Any) -> None:
        super().__setitem__(key, configuration)
        self.choices.note(self.kernel, key, configuration)


@contextmanager
def kept_in(choices: Choices | None, package: str = PACKAGE) -> Iterator[None]:
    """Within this context, kernels of a package use the configurations in a file, and add those it does not have.

    Args:
        choices: The file, or None for tuning as usual.
        package: Start of the modules whose kernels are meant.
    """
    if choices is None:
        yield
        return
    from triton import testing
    from triton.runtime.autotuner import Autotuner

    run, changed = Autotuner.run, []

    def run_with_choices(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.cache, _Cache):
            kernel = f"{self.base_fn.__module__}.{self.base_fn.__qualname__}"
            if kernel.startswith(package):
                self.cache = _Cache(self, kernel, choices)
                if self._do_bench is None:
                    self.__dict__["do_bench"] = partial(testing.do_bench, **QUICKLY)  # a cached property
                changed.append(self)
        return run(self, *args, **kwargs)

    Autotuner.run = run_with_choices
    try:
        yield
    finally:
        Autotuner.run = run
        for tuner in changed:
            tuner.cache = dict(tuner.cache)
            tuner.__dict__.pop("do_bench", None)


def _field(environment: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        environment = environment.get(part, {})
    return environment or None
