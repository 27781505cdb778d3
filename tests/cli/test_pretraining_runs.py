"""``swila status`` and ``swila plot`` on directories as ``swila pretrain`` leaves them, with made-up numbers."""

import json
import os
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from swila.cli.app import app
from swila.pretraining import figures
from swila.pretraining.appearance import appearances, architecture_of
from swila.pretraining.record import MOST_OF_A_LAYER, layers_of, read_record
from swila.training import MetricsWriter, RunDirectory, read_status
from swila.training.metrics import METRICS, read_last_metrics, read_metrics

TOKENS = {"tokenizer_sha256": "a", "vocab_size": 320, "fingerprint": "f"}
TOKENS_PER_STEP = 1024


@pytest.fixture
def swila(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def drawn(monkeypatch):
    """The arguments of the figures by the names of their files, which are empty."""
    calls = {}

    def stub(what, about, path):
        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        for file in files:
            file.touch()
        calls[path.stem] = what, about
        return files

    for name in ("loss_figure", "perplexity_figure", "routing_runs_figure", "routing_layers_figure"):
        monkeypatch.setattr(figures, name, stub)
    return calls


def config(recipe, seed=0, steps=20, tokens=TOKENS):
    identity = {
        "model": {"mixer": "swila", "num_hidden_layers": 2},
        "schedule": {"steps": steps},
        "data": {"length": 256, "batch_size": 4},
        "optimizer": {"lr": 0.002},
        "seed": seed,
    }
    return {"kind": "pretraining", "name": recipe, "recipe": identity, "tokens": tokens}


def line(step, routing=True, validate=5):
    values = {
        "step": step,
        "tokens": step * TOKENS_PER_STEP,
        "train/loss": 6.0 - 0.1 * step,
        "tokens_per_second": 50.0 if step == 1 else 2000.0 + step,
        "seconds": 10.0 + 2.0 * step,
    }
    if routing:
        for k, prefix in enumerate(("routing/", "routing/00/", "routing/01/")):
            for side in ("key", "query"):
                values[f"{prefix}{side}_utilization_entropy"] = 0.9 - 0.01 * k
                values[f"{prefix}{side}_routing_entropy"] = 0.6
                values[f"{prefix}{side}_dead_fraction"] = 0.0
    if step % validate == 0:
        values["validation/perplexity"] = 2000.0 - 90.0 * step + (500.0 if step == 20 else 0.0)
    return values


def make(path, recipe="swila-tiny", last=20, finished=True, routing=True, **options):
    """Write a run of 20 steps up to a step: perplexity 650 at step 15 is its best, 700 at step 20 its last."""
    run = RunDirectory(path, config(recipe, **options))
    if last:
        writer = MetricsWriter(path, tensorboard=False)
        for step in range(1, last + 1):
            writer.write(line(step, routing))
        writer.close()
    if finished:
        result = {"status": "finished", "metric": "perplexity", "best": 650.0, "best_step": 15, "steps": 20}
        run.finish({**result, "device": "cpu", "seconds": 4000.0, "final": 700.0})
    return path


def row(result, name):
    """The cells of a run in the table of a command."""
    assert result.exit_code == 0, result.output
    return next(text.split() for text in result.output.splitlines() if text.split()[:1] == [name])


def note_progress(path, step, pid, **more):
    content = {"step": step, "steps": 20, "score": 1550.0, "metric": "perplexity", **more}
    (path / "progress.json").write_text(json.dumps({**content, "pid": pid, "host": socket.gethostname()}))


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_status_of_a_finished_run_and_of_a_directory_of_runs(swila, tmp_path, monkeypatch):
    run = make(tmp_path / "runs" / "swila-tiny")
    cells = ["swila-tiny", "finished", "20", "perplexity", "650.0", "2,010", "1:06:40"]
    for path in (run, run.parent):
        assert row(swila("status", path), "swila-tiny") == cells
    monkeypatch.chdir(run)
    assert row(swila("status", "."), "swila-tiny") == cells
    assert swila("status", run).output.splitlines()[0].split() == ["run", "status", "step", "score", "tokens/s", "time"]


def test_status_of_a_running_run_says_how_long_it_will_take(swila, tmp_path):
    run = make(tmp_path / "a", last=8, finished=False)
    note_progress(run, 10, os.getpid())
    expected = ["a", "running", "10/20", "perplexity", "1,550.0", "2,004", "26", "s", "20", "s"]
    assert row(swila("status", run), "a") == expected


def test_a_killed_run_is_interrupted(swila, tmp_path):
    run = make(tmp_path / "a", last=8, finished=False)
    note_progress(run, 6, dead_process())
    assert row(swila("status", run), "a")[:5] == ["a", "interrupted", "8/20", "perplexity", "1,550.0"]
    (run / "checkpoints" / "step-00000009").mkdir(parents=True)
    result = swila("status", run)
    assert row(result, "a")[2] == "9/20"
    assert "left" not in result.output
    assert "1 interrupted" in result.output


@pytest.mark.parametrize("left", ["metrics", "checkpoints"])
def test_a_run_without_progress_is_interrupted(swila, tmp_path, left):
    run = make(tmp_path / "a", last=6 if left == "metrics" else 0, finished=False)
    if left == "checkpoints":
        assert read_status(run)["status"] == "waiting"
        (run / "checkpoints" / ".step-00000006.part").mkdir(parents=True)
        assert read_status(run)["status"] == "waiting", "the checkpoint is not complete"
        (run / "checkpoints" / "step-00000006").mkdir()
    found = row(swila("status", run), "a")
    assert found[1:3] == ["interrupted", "6/20"]
    if left == "metrics":
        assert found[3:5] == ["perplexity", "1,550.0"]


def test_a_run_that_waits_and_one_that_failed(swila, tmp_path):
    make(tmp_path / "waits", last=0, finished=False)
    RunDirectory(make(tmp_path / "failed", last=3, finished=False)).note_failure(ValueError("the batch is bad"))
    result = swila("status", tmp_path)
    assert row(result, "waits") == ["waits", "waiting", "0/20"]
    assert row(result, "failed")[1:3] == ["failed", "3/20"]
    assert "failed failed: ValueError: the batch is bad" in result.output


def test_the_last_metrics_are_those_of_all(tmp_path):
    run = make(tmp_path / "a")
    every = read_metrics(run / METRICS)
    assert len(every) == 20
    assert read_last_metrics(run / METRICS) == every
    size = sum(map(len, (run / METRICS).read_text().splitlines(keepends=True)[-2:]))
    assert read_last_metrics(run / METRICS, size=size + 9) == every[-2:], "complete lines alone"
    assert read_last_metrics(tmp_path / "none") == []


def figures_in(path):
    return sorted(file.stem for file in path.glob("*.png"))


def test_figures_of_one_run(swila, tmp_path):
    run = make(tmp_path / "swila-1.3b")
    result = swila("plot", run)
    expected = ["swila-1.3b", "finished", "20", "20.5k", "4.050", "650.0", "15", "2,010"]
    assert row(result, "swila-1.3b") == expected
    assert figures_in(run) == ["loss", "perplexity", "routing", "routing-layers"]
    assert all((run / f"{name}.png").stat().st_size > 5000 for name in figures_in(run))
    for name in figures_in(run):
        assert f"figure in {run / name}.png (and {name}.svg)" in result.output
    svg = (run / "perplexity.svg").read_text()
    assert "SwiLA  700.0" in svg
    assert "Pretraining of swila-1.3b: validation perplexity" in svg
    assert not (run / "results.json").exists()
    assert read_status(run)["status"] == "finished"


def test_figures_of_several_runs_and_of_their_record(swila, drawn, tmp_path):
    for name in ("swila-tiny", "swila-1.3b"):
        make(tmp_path / "runs" / name, name)
    make(tmp_path / "runs" / "gdn-tiny", "gdn-tiny", routing=False, last=8, finished=False)
    first = swila("plot", tmp_path / "runs", "--out", tmp_path / "a")
    assert row(first, "gdn-tiny")[1:3] == ["interrupted", "8/20"]
    of_layers = ["routing-layers-swila-1.3b", "routing-layers-swila-tiny"]
    assert figures_in(tmp_path / "a") == sorted(drawn) == ["loss", "perplexity", "routing", *of_layers]
    losses, about = drawn["loss"]
    assert [each.label for each in losses] == ["GDN", "SwiLA, 1.3b", "SwiLA, tiny"]
    assert losses[2].curve[-1] == (20480, 4.0)
    assert "unfinished: gdn-tiny at step 8 of 20" in about.training
    assert [each.curve[-1] for each in drawn["perplexity"][0]] == [(5120, 1550.0), (20480, 700.0), (20480, 700.0)]
    routed, about = drawn["routing"]
    assert [each.label for each in routed] == ["SwiLA, 1.3b\nperplexity 700.0", "SwiLA, tiny\nperplexity 700.0"]
    assert routed[0].curves["query_utilization_entropy"][0] == (1024, 0.9)
    assert "unfinished" not in str(about)
    layers, about = drawn["routing-layers-swila-tiny"]
    assert layers[1]["key_utilization_entropy"][0] == (1024, 0.88)
    assert about.title == "Pretraining of swila-tiny: routing of the layers"

    before = json.loads(json.dumps(drawn))
    drawn.clear()
    again = swila("plot", tmp_path / "a" / "results.json", "--out", tmp_path / "b")
    assert again.exit_code == 0, again.output
    assert again.output.replace("/b/", "/a/") == first.output
    assert json.loads(json.dumps(drawn)) == before
    assert (tmp_path / "b" / "results.json").read_bytes() == (tmp_path / "a" / "results.json").read_bytes()
    record = json.loads((tmp_path / "a" / "results.json").read_text())
    assert list(record["runs"]) == ["gdn-tiny", "swila-1.3b", "swila-tiny"]
    run = record["runs"]["swila-tiny"]
    assert (run["recipe"], run["result"]["final"]) == ("swila-tiny", 700.0)
    assert run["environment"]["torch"] == record["environment"]["torch"]
    assert run["curves"]["validation/perplexity"][-2:] == [[15360, 650.0], [20480, 700.0]]


def test_several_paths_are_drawn_elsewhere(swila, drawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = make(tmp_path / "x" / "swila-tiny"), make(tmp_path / "y" / "swila-tiny", seed=1)
    result = swila("plot", a, b, a)
    assert row(result, "x/swila-tiny")[1] == row(result, "y/swila-tiny")[1] == "finished"
    assert result.output.count("finished") == 2
    assert "routing-layers-y-swila-tiny" in figures_in(tmp_path / "runs" / "figures")
    assert figures_in(a) == []


def test_no_figure_without_a_curve(swila, drawn, tmp_path):
    run = make(tmp_path / "gdn-tiny", "gdn-tiny", routing=False, last=4, finished=False)
    assert swila("plot", run).exit_code == 0
    assert figures_in(run) == ["loss"]


def test_runs_without_metrics(swila, drawn, tmp_path):
    make(tmp_path / "runs" / "waits", last=0, finished=False)
    result = swila("plot", tmp_path / "runs")
    assert result.exit_code == 2
    assert "runs must have metrics to be drawn, got waits without any yet" in result.stderr
    make(tmp_path / "runs" / "swila-tiny")
    result = swila("plot", tmp_path / "runs", "--out", tmp_path / "out")
    assert row(result, "waits") == ["waits", "waiting", "0/20", "0"]
    assert "waits: no metrics yet" in result.output


def test_a_run_that_cannot_be_read_costs_no_other(swila, drawn, tmp_path, caplog):
    make(tmp_path / "runs" / "good")
    (make(tmp_path / "runs" / "odd") / "result.json").write_text("{")
    make(tmp_path / "runs" / "broken")
    (tmp_path / "runs" / "broken" / "config.json").write_text("{")
    result = swila("plot", tmp_path / "runs", "--out", tmp_path / "out")
    assert row(result, "good")[1] == "finished"
    assert "odd is left out: it cannot be read" in caplog.text
    assert "odd" not in result.output
    assert "2 broken" in swila("status", tmp_path / "runs").output


def test_values_that_are_not_finite_are_counted_and_left_out(swila, drawn, tmp_path):
    run = make(tmp_path / "a")
    with (run / METRICS).open("a") as file:
        file.write(json.dumps(line(21) | {"train/loss": float("nan"), "validation/perplexity": float("inf")}) + "\n")
    record = read_record([run])["runs"]["a"]
    assert record["not_finite"] == 1
    assert record["curves"]["train/loss"][-1] == (20480, 4.0)
    assert swila("plot", run).exit_code == 0
    assert "losses that are not finite are left out: 1 of a" in drawn["loss"][1].training
    assert "not finite" not in str(drawn["perplexity"][1])


def test_different_data_is_told(swila, drawn, tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b", tokens=TOKENS | {"fingerprint": "g"})
    assert "the runs have different data" in swila("plot", tmp_path, "--out", tmp_path / "out").output
    make(tmp_path / "c", tokens=TOKENS | {"tokenizer_sha256": "b"})
    result = swila("plot", tmp_path, "--out", tmp_path / "out")
    assert "different tokenizers: their losses and perplexities cannot be compared" in result.output


def test_kinds_of_runs_are_not_mixed(swila, tmp_path):
    run = make(tmp_path / "runs" / "swila-tiny")
    result = swila("plot", run, "results/cdar-tiny.json", "--out", tmp_path)
    assert result.exit_code == 2
    assert f"got both: {run} is of swila pretrain, results/cdar-tiny.json is not" in result.stderr
    assert "nowhere does not exist" in swila("plot", run, "nowhere").stderr
    RunDirectory(tmp_path / "runs" / "other", {"task_name": "CDAR"})
    result = swila("plot", tmp_path / "runs")
    assert result.exit_code == 2
    assert "holds both: swila-tiny is a pretraining run, other is not" in result.stderr
    result = swila("plot", tmp_path / "runs" / "other")
    assert f"which is one run of an experiment; its directory is {tmp_path / 'runs'}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_joined_records_need_different_names(swila, drawn, tmp_path):
    for name, seed, last in (("a", 0, 20), ("b", 1, 20), ("c", 0, 6)):
        run = make(tmp_path / name / "same", seed=seed, last=last, finished=last == 20)
        assert swila("plot", run, "--out", tmp_path / f"of-{name}").exit_code == 0
    result = swila("plot", *(tmp_path / f"of-{name}" / "results.json" for name in "ab"), "--out", tmp_path)
    assert result.exit_code == 2
    assert "there are two called same (config.seed is 0 there and 1 here)" in result.stderr
    result = swila("plot", *(tmp_path / f"of-{name}" / "results.json" for name in "ca"), "--out", tmp_path)
    assert row(result, "same")[1:3] == ["finished", "20"], "the longer one counts"
    odd = tmp_path / "results.json"
    odd.write_text(json.dumps({"kind": "pretraining", "runs": {"a": {"name": "a"}}}))
    assert f"{odd} must hold pretraining runs of this version of swila" in swila("plot", odd).stderr


def test_curves_of_layers_are_thinned(tmp_path):
    run = tmp_path / "long"
    RunDirectory(run, config("swila-tiny", steps=1000))
    (run / METRICS).write_text("".join(json.dumps(line(step)) + "\n" for step in range(1, 1001)))
    record = read_record([run])["runs"]["long"]
    assert len(record["curves"]["train/loss"]) == len(record["curves"]["routing/key_dead_fraction"]) == 1000
    layers = layers_of(record)
    assert list(layers) == [0, 1]
    assert {len(curve) for curves in layers.values() for curve in curves.values()} == {MOST_OF_A_LAYER}
    assert layers[1]["key_utilization_entropy"][0] == (2560, 0.88)


def test_architectures_by_the_names_of_recipes():
    assert architecture_of("swila-16-115m") == "swila-16"
    assert architecture_of("swila-1.3b") == "swila"
    assert architecture_of("gdn-mom-small") == "gdn-mom"
    assert architecture_of("temporal-swila-unbalanced-115m") == "temporal-swila-unbalanced"
    assert architecture_of("swilarge") == "swilarge"


def test_runs_of_one_architecture_can_be_told_apart():
    recipes = {"swila-a": "swila-tiny", "a": "swila-tiny", "gdn-tiny": "gdn-tiny", "x": "mine", "y": "other"}
    recipes |= {f"swila-lr{i}": "swila-tiny" for i in range(8)}
    found = appearances([{"name": name, "recipe": recipe} for name, recipe in recipes.items()])
    assert len({(each.look.colour, str(each.look.line)) for each in found.values()}) == len(recipes)
    assert len({each.label for each in found.values()}) == len(recipes)
    assert found["gdn-tiny"].label == "GDN"
    assert found["swila-a"].label == "SwiLA, swila-a"
    assert found["swila-lr3"].label == "SwiLA, lr3"
    assert (found["x"].label, found["x"].look.title) == ("mine", "mine")
    assert {found[name].look.marker for name, recipe in recipes.items() if recipe == "swila-tiny"} == {"o"}
