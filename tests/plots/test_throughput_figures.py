"""Figures of throughput from made-up results: lines, dashes of the baseline, crosses without memory, and words."""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from typer.testing import CliRunner

from swila.benchmarks.throughput import figures
from swila.cli.app import app
from swila.plots import throughput
from swila.plots.looks import LOOKS

WHERE = {
    "environment": {"gpus": ["NVIDIA H200"]},
    "device": "cuda",
    "dtype": "bfloat16",
    "size": "1.3b",
    "dates": ["a"],
}


def row(model, speed, status="timed", compiled=True, **sizes):
    own = {"tokens_per_second": speed, "peak_bytes": 2e9} if status == "timed" else {}
    return {"model": model, "status": status, "compiled": compiled, **sizes, **own}


def training(*rows):
    return {**WHERE, "benchmark": "throughput-training", "warm_up": 3, "updates": 3, "rows": list(rows)}


TRAINING = training(
    *(row("swila", 60e3 + T, length=T, batch=2**17 // T, micro_batch=2**15 // T) for T in (4096, 2048)),
    row("swila", 1.0, compiled=False, length=2048, batch=64, micro_batch=64),
    *(row("fla-gdn", 50e3, compiled=False, length=T, batch=2**17 // T, micro_batch=2**15 // T) for T in (2048, 4096)),
)
GENERATION = {
    **WHERE, "benchmark": "throughput-generation", "prompt": 2048, "new": 128, "calls": 3,
    "rows": [
        row("transformer", 300.0, batch=1), row("transformer", None, "out of memory", batch=2),
        row("gdn", 400.0, batch=1), row("gdn", 800.0, batch=2), row("gdn", None, "out of memory", batch=4),
        row("swila", None, "failed", batch=1), row("swila", 900.0, batch=2),
    ],
}  # fmt: skip


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Figures as they are before they are written."""
    monkeypatch.setattr(throughput, "save", lambda figure, path: (figure, path))
    return lambda record: figures.draw(record, tmp_path)[0]


def lines(axis, model):
    colour = "#000000" if model == "fla-gdn" else LOOKS[model].colour
    return [line for line in axis.lines if line.get_color() == colour]


def test_training_is_drawn_against_the_length(drawn, tmp_path):
    figure, path = drawn(TRAINING)
    assert path == tmp_path / "throughput-training.png"
    speed, memory = figure.axes
    (ours,) = lines(speed, "swila")
    assert list(ours.get_xdata()) == [2048, 4096]
    assert list(ours.get_ydata()) == [62.048, 64.096], "compiled rows, in thousands, by growing length"
    assert [list(line.get_ydata()) for line in lines(memory, "swila")] == [[2.0, 2.0]]
    (baseline,) = lines(speed, "fla-gdn")
    assert baseline.is_dashed()
    assert not ours.is_dashed()
    assert [tick.get_text() for tick in speed.get_xticklabels()] == ["2K", "4K"]
    assert [text.get_text() for text in speed.texts] == ["SwiLA  64.1", "GDN, FLA's model  50.0"]
    caption = figure.get_supxlabel()
    assert "updates of 131,072 tokens" in caption
    assert "accumulated over micro-batches" in caption.replace("\n", " ")
    assert "out of memory" not in caption
    assert speed.get_ylim()[0] == 0
    assert (speed.get_ylabel(), memory.get_ylabel()) == ("thousand tokens per second", "GB")
    assert figure.get_suptitle() == "Training throughput and peak memory, 1.3B models, H200"


def test_whole_updates_are_not_said_to_be_parted(drawn):
    rows = [each | {"micro_batch": each["batch"]} for each in TRAINING["rows"]]
    assert "micro-batches" not in drawn(training(*rows))[0].get_supxlabel()


def test_batches_without_memory_have_a_cross_below_zero(drawn):
    figure, _ = drawn(GENERATION)
    speed = figure.axes[0]
    points, cross = lines(speed, "transformer")
    assert list(points.get_xdata()) == [1]
    assert (cross.get_marker(), list(cross.get_xdata())) == ("x", [2])
    other = lines(speed, "gdn")[1]
    assert list(other.get_xdata()) == [4]
    heights = [line.get_ydata()[0] for line in (cross, other)]
    assert speed.get_ylim()[0] < heights[1] < heights[0] < 0, "a row each"
    assert [tick.get_text() for tick in speed.get_xticklabels()] == ["1", "2", "4"]
    assert all(float(tick.get_text()) >= 0 for tick in speed.get_yticklabels())
    assert [list(line.get_xdata()) for line in lines(speed, "swila")] == [[2]], "what failed is left out"
    assert "X below 0: out of memory" in figure.get_supxlabel().replace("\n", " ")


def test_plot_draws_results_files(tmp_path):
    for name, record in (("t", TRAINING), ("g", GENERATION)):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
        result = CliRunner().invoke(app, ["plot", str(tmp_path / f"{name}.json"), "--out", str(tmp_path / "figures")])
        assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"throughput-{kind}.{suffix}" for kind in ("training", "generation") for suffix in ("png", "svg")}


def test_plot_takes_one_results_file_with_rows(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(TRAINING))
    (tmp_path / "empty.json").write_text(json.dumps(training()))
    both = CliRunner().invoke(app, ["plot", str(tmp_path / "t.json"), str(tmp_path / "empty.json")])
    assert both.exit_code == 2
    assert "and no other, got" in both.stderr
    empty = CliRunner().invoke(app, ["plot", str(tmp_path / "empty.json"), "--out", str(tmp_path)])
    assert empty.exit_code == 2
    assert "results must have rows to be drawn" in empty.stderr
