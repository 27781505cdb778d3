"""The state of generation, and its file format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swila._version import __version__
from swila.generation.fingerprint import weights_fingerprint
from swila.layers import Cache
from swila.ops import SwitchingState

FORMAT = "swila-state-3"


@dataclass(repr=False)
class GenerationState:
    """The state of a model after the tokens so far: a few megabytes for any length of text, if layers are recurrent.

    Attributes:
        cache: States of the layers.
        hidden: Last hidden states ``[B, hidden_size]``, which give the next tokens.
        layers: Names of the mixers of its model.
        tokens: Number of processed tokens of each row.
        weights: Fingerprint of the weights it was made with; it is meaningless for other weights.
    """

    cache: Cache
    hidden: Tensor
    layers: list[str]
    tokens: list[int]
    weights: str

    def __repr__(self) -> str:
        return f"GenerationState({len(self)} rows, tokens={self.tokens}, {self.num_bytes() / 1e6:.2f} MB)"

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> GenerationState:
        """Return the state of some rows, which may be repeated: ``state[[0] * 8]`` is eight copies of the first row.

        ``rows`` may also be a mask that is True for the rows to keep.
        """
        indices = self._row_indices(rows)
        index = torch.tensor(indices, device=self.hidden.device)
        cache, hidden = self.cache.batch_select(index), self.hidden[index]
        return GenerationState(cache, hidden, self.layers, [self.tokens[i] for i in indices], self.weights)

    def _row_indices(self, rows: Any) -> list[int]:
        """Return the indices, from 0, of rows given as in ``__getitem__``."""
        if isinstance(rows, slice):
            indices = list(range(len(self))[rows])
        else:
            given = rows.tolist() if hasattr(rows, "tolist") else rows
            given = list(given) if isinstance(given, Sequence) else [given]
            if given and all(isinstance(i, bool) for i in given):
                if len(given) != len(self):
                    raise ValueError(f"a mask of rows must have {len(self)} entries, got {len(given)}")
                given = [i for i, kept in enumerate(given) if kept]
            indices = [range(len(self))[i] for i in given]
        if not indices:
            raise ValueError(f"rows must name at least one of the {len(self)} rows, got {rows!r}")
        return indices

    def check_fits(self, model: Any, name: str = "state") -> None:
        """Raise ValueError unless the state was made with the model's layers, width and weights."""
        self.check_architecture(model, name)
        if self.weights != weights_fingerprint(model):
            raise ValueError(
                f"{name} was made with other weights than the model's (or another dtype, or other options); "
                "use the model it was made with, or process the text again"
            )

    def check_architecture(self, model: Any, name: str = "state") -> None:
        """Raise ValueError unless the model has the layers and the width of the state."""
        mine, its = self.layers, model.config.layer_mixers
        if mine != its:
            raise ValueError(
                f"{name} is the state of another architecture: its layers are {_briefly(mine)}, the model's are "
                f"{_briefly(its)}; use the model it was made with"
            )
        if self.hidden.shape[1] != model.config.hidden_size:
            width, its_width = self.hidden.shape[1], model.config.hidden_size
            raise ValueError(f"{name} is the state of a model of width {width}, and the model's width is {its_width}")

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the dtypes of all tensors, in order."""
        return tuple(t.dtype for t in _flatten(self).values())

    def num_bytes(self) -> int:
        """Return the number of bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in _flatten(self).values())

    def save(self, path: str | Path, model: Any) -> None:
        """Save the state to a safetensors file, with a checksum and the fingerprint of its model.

        Args:
            path: Path of the file.
            model: Model that the state was made with.
        """
        from safetensors.torch import save_file

        path = Path(path)
        if path.is_dir():
            raise ValueError(f"path must be a file, got the directory {str(path)!r}")
        self.check_fits(model)
        metadata = {
            "format": FORMAT,
            "swila": __version__,
            "tokens": json.dumps(self.tokens),
            "layers": json.dumps(self.layers),
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": self.weights,
        }
        tensors = {name: t.contiguous().cpu() for name, t in _flatten(self).items()}
        metadata["checksum"] = _checksum(tensors, metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")  # renamed when complete
        save_file(tensors, part, metadata)
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path, model: Any, check: bool = True) -> GenerationState:
        """Load a state to the model's device.

        Args:
            path: Path of a file that :meth:`save` wrote.
            model: Model that the state was made with.
            check: Whether to raise ValueError if the model's weights or dtype differ from those the state was made
                with. With False the state is converted and becomes a state of this model.
        """
        tensors, metadata = _read(path)
        state = _unflatten(tensors, json.loads(metadata["layers"]), json.loads(metadata["tokens"]), metadata["weights"])
        state.check_architecture(model, str(path))
        mine, its = metadata["dtype"], str(model.dtype).removeprefix("torch.")
        if check and mine != its:
            raise ValueError(f"{path} was made in {mine}, and the model is in {its}: load the model in {mine}")
        if check:
            state.check_fits(model, str(path))
        for name, t in tensors.items():
            dtype = t.dtype
            if mine != its and "recurrent_state" in name:  # has the precision of the recurrence
                dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
            elif mine != its and t.dtype == state.hidden.dtype:
                dtype = model.dtype
            tensors[name] = t.to(model.device, dtype)
        state = _unflatten(tensors, state.layers, state.tokens, weights_fingerprint(model))
        for i, layer in enumerate(model.model.layers):
            state.cache.claim(layer.mixer, i)
        return state


def _read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors (on the CPU) and the metadata of a file; raise ValueError if it is invalid."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise ValueError(f"path must be a file with a saved state, got {str(path)!r}, which is not a file")
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"path must be a file with a saved state, got {str(path)!r}: {error}") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a saved state of this version: format must be {FORMAT!r}, "
                         f"got {metadata.get('format')!r}")  # fmt: skip
    checksum = metadata.pop("checksum", None)
    if checksum != _checksum(tensors, metadata):
        raise ValueError(f"{path} is damaged: its contents do not match their checksum")
    return tensors, metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the metadata, and of names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _briefly(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _flatten(state: GenerationState) -> dict[str, Tensor]:
    found = {"hidden": state.hidden}
    for i in range(len(state.cache)):
        for part, tree in state.cache[i].items():
            parts: Any = tree
            if parts is not None:
                names = getattr(parts, "_fields", range(len(parts)))
                found |= {f"layers.{i}.{part}.{n}": t for n, t in zip(names, parts, strict=True) if t is not None}
    return found


def saved_dtype(path: str | Path) -> str | None:
    """Return the dtype of the model of a saved state, or None if the file does not contain it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            return (file.metadata() or {}).get("dtype")
    except (SafetensorError, OSError):
        return None


def _tuple(entries: dict[str, Tensor]) -> SwitchingState | tuple[Tensor, ...]:
    """Return the entries as a tuple if they are numbered, as a :class:`SwitchingState` if they are named."""
    if "W" in entries:
        return SwitchingState(**entries)
    return tuple(entries[str(n)] for n in range(len(entries)))


def _unflatten(tensors: dict[str, Tensor], layers: list[str], tokens: list[int], weights: str) -> GenerationState:
    parts: dict[int, dict[str, dict[str, Tensor]]] = {}
    for name, t in tensors.items():
        if name.startswith("layers."):
            _, layer, part, entry = name.split(".")
            parts.setdefault(int(layer), {}).setdefault(part, {})[entry] = t
    cache = Cache()
    for i in sorted(parts):
        cache.update(**{part: _tuple(entries) for part, entries in parts[i].items()}, layer_idx=i, offset=max(tokens))
    return GenerationState(cache, tensors["hidden"], layers, tokens, weights)
