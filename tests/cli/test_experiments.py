"""``swila run softmax-regression`` and ``regbench``, ``swila plot`` and ``swila status`` as a user calls them."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swila.cli.app import app


@pytest.fixture
def swila(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """A directory with runs of every model."""
    out = tmp_path_factory.mktemp("regression") / "runs"
    arguments = "run", "softmax-regression", "--steps", 3, "--budget", 2, "--seeds", 1, "--jobs", 1, "--out", out
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return out, result.output


def test_softmax_regression_from_start_to_figures(regression):
    out, output = regression
    record = json.loads((out / "results.json").read_text())
    assert [(row["model"], row["size"]) for row in record["rows"]] == [
        ("swila", "H1J2"),
        ("swila", "H2J1"),
        ("deltanet", "H2"),
        ("attention", "H1"),
    ]
    for row in record["rows"]:
        assert f"{row['mean']:.3f}" in output
    for name in ("state-size.png", "state-size.svg", "all-configurations.png", "all-configurations.svg"):
        assert (out / name).stat().st_size > 3000
    files = {path.name for path in (out / "swila-H1J2-lr0.005-seed0").iterdir() if not path.name.startswith("events")}
    assert files == {"config.json", "environment.json", "metrics.jsonl", "checkpoint.pt", "result.json"}


def test_regbench_from_start_to_figures(swila, tmp_path):
    arguments = "run", "regbench", "--automata", 64, "--epochs", 1, "--model", "swila", "--model", "attention"
    result = swila(*arguments, "--jobs", 1, "--no-tensorboard", "--out", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [(row["model"], row["train_examples"]) for row in record["rows"]] == [("swila", 64), ("attention", 64)]
    assert "softmax attention" in result.output
    assert f"3-gram {record['yardsticks']['3-gram']['accuracy']:.3f}" in result.output
    for name in ("accuracy", "total-variation", "progress"):
        assert (tmp_path / "runs" / f"{name}.svg").stat().st_size > 3000


def test_plot_from_directories_and_files(swila, regression, tmp_path):
    out, _ = regression
    again = swila("plot", out, "--out", tmp_path / "a")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "a" / "state-size.png").read_bytes() == (out / "state-size.png").read_bytes()
    from_file = swila("plot", out / "results.json", "--out", tmp_path / "b")
    assert from_file.exit_code == 0, from_file.output
    assert (tmp_path / "b" / "all-configurations.svg").stat().st_size > 3000
    rows = [json.loads((tmp_path / name / "results.json").read_text())["rows"] for name in "ab"]
    assert rows[0] == rows[1] == json.loads((out / "results.json").read_text())["rows"]


def test_plot_joins_several_directories(swila, regression, tmp_path):
    out, _ = regression
    other = tmp_path / "other"
    arguments = "run", "softmax-regression", "--steps", 3, "--budget", 1, "--model", "deltanet", "--seeds", "4,"
    assert swila(*arguments, "--jobs", 1, "--out", other, "--no-tensorboard").exit_code == 0
    result = swila("plot", out, other, "--out", tmp_path / "both")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "both" / "results.json").read_text())["rows"]
    assert [(row["model"], row["size"]) for row in rows if row["model"] == "deltanet"] == [
        ("deltanet", "H1"),
        ("deltanet", "H2"),
    ]


def test_runs_need_not_be_over_to_be_drawn(swila, regression, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    (copy / "deltanet-H2-lr0.005-seed0" / "result.json").unlink()
    result = swila("plot", copy)
    assert result.exit_code == 0, result.output
    assert "unfinished or failed: deltanet-H2-lr0.005-seed0" in result.output
    listed = swila("status", copy)
    assert "3 finished, 1 interrupted" in listed.output
    only = swila("status", copy, "--only", "interrupted")
    assert "deltanet-H2" in only.output
    assert "swila-H1J2" not in only.output


def test_a_directory_of_experiments_names_them(swila, regression):
    result = swila("plot", regression[0].parent)
    assert result.exit_code == 2
    assert "; there are some in it: runs" in result.stderr


def test_only_runs_of_one_task_are_joined(swila, regression, tmp_path):
    result = swila("plot", regression[0], "results/softmax-regression.json", "--out", tmp_path)
    assert result.exit_code == 2
    assert "runs must be of one task to be joined, but task.dim is 16 there and 32 here" in result.stderr
    longer = json.loads((regression[0] / "results.json").read_text())
    for run in longer["runs"].values():
        run["planned_steps"] = 99
    (tmp_path / "longer.json").write_text(json.dumps(longer))
    result = swila("plot", regression[0], tmp_path / "longer.json", "--out", tmp_path)
    assert result.exit_code == 2
    assert "must be trained alike to be joined, but " in result.stderr


def test_what_cannot_be_read_is_passed_over(swila, regression, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    shutil.copytree(copy / "deltanet-H2-lr0.005-seed0", copy / ".deltanet-H2-lr0.005-seed0.discarded")
    config = copy / "attention-H1-lr0.005-seed0" / "config.json"
    config.write_text(json.dumps({"task_name": "Tetris"}))
    result = swila("plot", copy)
    assert result.exit_code == 0, result.output
    assert "softmax attention" not in result.output
    assert "4 finished" in swila("status", copy).output


def test_status_tells_why_a_run_failed(swila, regression, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    run = copy / "deltanet-H2-lr0.005-seed0"
    (run / "result.json").unlink()
    (run / "error.json").write_text(json.dumps({"error": "OutOfMemoryError: [sic]", "traceback": ""}))
    result = swila("status", copy)
    assert result.exit_code == 0
    assert "deltanet-H2-lr0.005-seed0 failed: OutOfMemoryError: [sic]" in result.output
    assert "3 finished, 1 failed" in result.output


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("result.json", {}, "must have a text as status, got None"),
        ("result.json", {"status": ["finished"]}, "must have a text as status, got ['finished']"),
        ("result.json", {"status": "finished", "steps": "3", "best": 0.5}, "must have a number as steps, got '3'"),
        ("result.json", {"status": "finished", "steps": 3, "best": "0.5"}, "must have a number as best, got '0.5'"),
        ("result.json", {"status": "finished", "steps": True}, "must have a number as steps, got True"),
        ("result.json", {"status": "finished", "seconds": 10**400}, "must have a number as seconds, got 1000"),
        (
            "result.json",
            {"status": "finished", "best": 0.5},
            "must be a complete result, but lacks metric, ",
        ),
        ("config.json", [], "must hold a JSON object, got list"),
    ],
)
def test_an_odd_file_hides_no_run_from_status(swila, regression, tmp_path, file, content, told):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    odd = copy / "deltanet-H2-lr0.005-seed0" / file
    odd.write_text(json.dumps(content))
    result = swila("status", copy)
    assert result.exit_code == 0, result.output
    assert "3 finished, 1 broken" in result.output
    assert f"{odd.parent.name} broken: {odd} {told}" in result.output
    row = next(line.split() for line in result.output.splitlines() if odd.parent.name in line)
    assert row[:3] == [odd.parent.name, "broken", *(["3"] if file == "config.json" else [])]
    only = swila("status", copy, "--only", "broken")
    assert odd.parent.name in only.output
    assert "swila-H1J2" not in only.output


def test_status_of_odd_names_and_reasons(swila, regression, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0] / "deltanet-H2-lr0.005-seed0", copy / "[red]")
    odd = copy / "[red]" / "result.json"
    odd.write_text(json.dumps(json.loads(odd.read_text()) | {"status": "[/bold]", "error": 1}))
    shutil.copytree(regression[0] / "deltanet-H2-lr0.005-seed0", copy / "a")
    (copy / "a" / "result.json").unlink()
    (copy / "a" / "result.json").mkdir()
    result = swila("status", copy)
    assert result.exit_code == 0, result.output
    assert "[red] [/bold]: 1" in result.output
    assert f"a broken: [Errno 21] Is a directory: '{copy / 'a' / 'result.json'}'" in result.output
    assert "1 [/bold], 1 broken" in result.output


def test_broken_files_are_named_and_cost_no_other_run(swila, regression, tmp_path, caplog):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    names = sorted(path.parent.name for path in copy.glob("*/config.json"))
    broken = [copy / names[0] / "result.json", copy / names[1] / "environment.json"]
    for file in broken:
        file.write_text("")
    (copy / names[2] / "progress.json").write_text("")
    (copy / names[3] / "checkpoint.pt").write_bytes(b"half a checkpoint")
    plotted = swila("plot", copy, "--out", tmp_path)
    assert plotted.exit_code == 0, plotted.output
    assert set(json.loads((tmp_path / "results.json").read_text())["runs"]) == set(names[2:])
    for file in broken:
        assert f"{file} must be a JSON file" in caplog.text
    listed = swila("status", copy)
    assert listed.exit_code == 0, listed.output
    assert "3 finished, 1 broken" in listed.output
    assert f"{names[0]} broken: {broken[0]} must be a JSON file" in listed.output
    (copy / "experiment.json").write_text("{")
    assert f"{copy / 'experiment.json'} must be a JSON file" in swila("plot", copy).stderr
    (copy / "experiment.json").write_text("{}")
    assert "experiment.json must name an experiment and a preset, got nothing" in swila("plot", copy).stderr


def test_an_incomplete_result_is_named(swila, regression, tmp_path, caplog):
    copy = tmp_path / "runs"
    shutil.copytree(regression[0], copy)
    result = copy / "deltanet-H2-lr0.005-seed0" / "result.json"
    complete = json.loads(result.read_text())
    result.write_text(json.dumps({key: value for key, value in complete.items() if key not in ("best_step", "test")}))
    message = f"{result} must be a complete result, but lacks best_step, test; delete it to resume the run"
    arguments = "run", "softmax-regression", "--steps", 3, "--budget", 2, "--seeds", 1, "--jobs", 1, "--out", copy
    again = swila(*arguments)
    assert again.exit_code == 2
    assert again.stderr == f"swila: {message}\n"
    plotted = swila("plot", copy, "--out", tmp_path)
    assert plotted.exit_code == 0, plotted.output
    assert message in caplog.text
    result.unlink()
    assert swila(*arguments).exit_code == 0
    assert json.loads(result.read_text())["test"] == pytest.approx(complete["test"])


def test_a_saved_model_is_no_waiting_run(swila, tmp_path):
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "config.json").write_text('{"model_type": "llama"}')
    result = swila("status", tmp_path)
    assert result.exit_code == 2
    assert (
        f"runs must be directories of swila run or swila pretrain, got {tmp_path}, which holds no run" in result.stderr
    )
    inspected = swila("inspect", tmp_path / "checkpoint-500")
    assert inspected.exit_code == 2
    assert "run must be the directory of one run, with its config.json" in inspected.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plot", "nowhere"],
            "nowhere does not exist; runs are directories of swila run or swila pretrain, or their results.json",
        ),
        (["plot", "docs"], "runs must be directories of swila run or swila pretrain, or their results.json, got docs"),
        (
            ["plot", "pyproject.toml"],
            "runs must be directories of swila run or swila pretrain, or their results.json, got pyproject",
        ),
        (
            ["plot", "results/op-cpu-plain.json"],
            "runs must be directories of swila run or swila pretrain, or their results.json, got",
        ),
        (["plot", "results/regbench.json", "results/softmax-regression.json"], "runs must be of one experiment, got"),
        (["status", "docs", "--only", "done"], "only must be one of finished, solved, stopped, running, interrupted, "),
        (["status", "docs"], "runs must be directories of swila run or swila pretrain, got docs, which holds no run"),
        (["run", "softmax-regression", "--budget", "0"], "budget must be at least 1, got 0"),
        (
            ["run", "softmax-regression", "--preset", "small", "--model", "swila", "--budget", "16"],
            "budget must have a configuration of swila in the preset small, got [16]",
        ),
        (["run", "softmax-regression", "--precision", "fp8"], "precision must be one of float32, tf32, bfloat16, got"),
        (["run", "regbench", "--precision", "fp8"], "precision must be one of float32, tf32, bfloat16, got 'fp8'"),
        (["run", "regbench", "--automata", "8"], "automata must be at least a batch of 32, got 8"),
        (["run", "regbench", "--model", "gpt"], "model must be one of temporal-swila, swila, dn-mom, deltanet, "),
        (["bench", "experiments", "--case", "tetris"], "case must be one of cdar, paper; cdar, small; softmax-"),
    ],
)
def test_mistakes_get_one_line(swila, arguments, message):
    result = swila(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_results_file_of_an_older_version(swila, tmp_path):
    record = json.loads(Path("results/cdar-tiny.json").read_text())
    for run in record["runs"].values():
        del run["steps_per_epoch"]
    (tmp_path / "results.json").write_text(json.dumps(record))
    result = swila("plot", tmp_path / "results.json")
    assert result.exit_code == 2
    assert "runs must be of this version of swila, got a results file of another one" in result.stderr


def test_plot_without_matplotlib(swila, regression, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    result = swila("plot", regression[0])
    assert result.exit_code == 2
    assert "no figures: they need matplotlib (pip install 'swila[plots]')" in result.stderr
