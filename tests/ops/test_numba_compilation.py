"""What the numba backend says of compiling: something where numba compiles, nothing where it loads from its cache."""

import importlib.util

import pytest

numba = pytest.importorskip("numba")

from swila.ops.numba import backend  # noqa: E402

SOURCE = """
from numba import njit

@njit(cache=True)
def kernel(x):
    return x + 1
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel of one's own, as a new process finds it: its cache is empty at the first call."""
    monkeypatch.setattr(backend, "_said", [])
    path = tmp_path / "kernels_of_a_test.py"
    path.write_text(SOURCE)

    def load():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel

    return load


def said(caplog, kernel, call):
    caplog.clear()
    with backend._word_if_compiling(kernel):
        call()
    return [record.message for record in caplog.records]


def test_a_word_where_numba_compiles_and_none_where_it_has_the_kernel(kernel, caplog, monkeypatch):
    first = kernel()
    told = "compiling swila's numba kernels; this takes about 20 seconds once"
    assert said(caplog, first, lambda: first(1)) == [told]
    monkeypatch.setattr(backend, "_said", [])
    again = kernel()
    assert said(caplog, again, lambda: again(1)) == []
    assert sum(again.stats.cache_hits.values()) == 1, "it came from the cache on disk"
    assert said(caplog, again, lambda: again(2)) == []


def test_it_is_said_once_and_of_our_kernels_alone(kernel, caplog):
    ours, other = kernel(), numba.njit(lambda x: x)
    assert said(caplog, ours, lambda: other(1)) == []
    assert len(said(caplog, ours, lambda: ours(1))) == 1
    assert said(caplog, ours, lambda: ours(1.0)) == []
