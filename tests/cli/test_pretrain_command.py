"""``swila pretrain`` and ``swila export`` as a user calls them: from text to a model that generates."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from swila.cli.app import app
from swila.training.metrics import read_metrics
from text_data import save_tokenizer, sentence, write_jsonl

RECIPE = """
from dataclasses import replace
from swila.pretraining.recipes import get_recipe
from swila.pretraining.settings import change

def recipe():
    return change(get_recipe("deltanet-tiny"), [
        "model.hidden_size=32", "model.num_hidden_layers=2", "model.intermediate_size=48", "model.vocab_size=none",
        'model.mixer_options={"deltanet": {"num_heads": 2, "backend": "blocked"}}',
        "data.length=16", "data.batch_size=4", "schedule.steps=12", "schedule.warmup_steps=2",
        "checkpoints.every=5", "validation.every=6", "logging.tensorboard=false",
    ])
"""


@pytest.fixture
def swila(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with prepared tokens and a recipe file."""
    folder = tmp_path_factory.mktemp("pretrain")
    save_tokenizer(folder / "tokenizer.json")
    text = write_jsonl(folder / "text.jsonl", [sentence(number) for number in range(400)])
    arguments = "data", "prepare", text, "--tokenizer", folder / "tokenizer.json", "--out", folder / "tokens"
    result = CliRunner().invoke(app, [*map(str, arguments), "--validation", "0.1"])
    assert result.exit_code == 0, result.output
    (folder / "recipe.py").write_text(RECIPE)
    return folder


def losses(run):
    lines = read_metrics(run / "metrics.jsonl")
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


@pytest.fixture(scope="module")
def trained(folder):
    """A finished run of the recipe file, and what the command printed."""
    run = folder / "run"
    arguments = "pretrain", folder / "recipe.py", "--data", folder / "tokens", "--out", run, "--device", "cpu"
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return run, result.output


def test_from_text_to_generated_text(swila, folder, tmp_path):
    """The commands of the issue and of the README, with an architecture of the paper."""
    run, model = tmp_path / "RUN", tmp_path / "DIR"
    blocked = "--set", "model.mixer_options.swila.backend=blocked"
    result = swila("pretrain", "temporal-swila-tiny", "--data", folder / "tokens", "--out", run, "--steps", 4, *blocked)
    assert result.exit_code == 0, result.output
    assert "schedule.steps" in result.output
    assert sorted(losses(run)) == [1, 2, 3, 4]
    assert swila("export", run, "--out", model).exit_code == 0
    result = swila("generate", model, "the cat", "-n", 5)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("the cat")


def test_what_is_shown(trained):
    run, output = trained
    assert re.search(r"^optimizer\.lr += 0\.002$", output, re.M)
    assert re.search(r"12/12  loss \d\.\d{4}  norm \d\.\d\d  lr .* tokens/s  validation perplexity [\d.]+", output)
    assert "finished: 12 updates, perplexity" in output
    assert re.search(r"GFLOP per token for MFU: linear \d+\.\d%, recurrence \d+\.\d%, convolution \d\.\d%\n", output)
    assert json.loads((run / "recipe.json").read_text())["schedule"]["steps"] == 12


def test_a_finished_run_is_left_alone(swila, folder, trained):
    before = {path: path.stat().st_mtime_ns for path in trained[0].rglob("step-*/*")}
    result = swila("pretrain", folder / "recipe.py", "--data", folder / "tokens", "--out", trained[0])
    assert result.exit_code == 0
    assert "finished: 12 updates" in result.output
    assert {path: path.stat().st_mtime_ns for path in trained[0].rglob("step-*/*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-recipe",), "recipe must be ARCHITECTURE-SIZE"),
        (("RECIPE",), "--data must be given"),
        (("RECIPE", "--data", "nowhere"), "nowhere"),
        (("RECIPE", "--data", "TOKENS", "--set", "optimizer.rate=1"), "'optimizer.rate' is not a field of a recipe"),
        (("RECIPE", "--data", "TOKENS", "--set", "model.vocab_size=8"), "model.vocab_size must be at least 19"),
        (("RECIPE", "--data", "TOKENS", "--set", "optimizer.lr=1e-4", "--out", "RUN"), "optimizer.lr is 0.002 there"),
        (("RECIPE", "--data", "TOKENS", "--device", "abacus"), "abacus"),
        (("RECIPE", "--plan", "--gpu", "abacus"), "gpu must be one of"),
    ],
)
def test_wrong_commands(swila, folder, trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    paths = {"RECIPE": folder / "recipe.py", "TOKENS": folder / "tokens", "RUN": trained[0]}
    result = swila("pretrain", *(paths.get(word, word) for word in arguments))
    assert result.exit_code == 2
    assert message in result.output + result.stderr
    assert "Traceback" not in result.output + result.stderr
    assert list(tmp_path.iterdir()) == []


def test_corrupt_data(swila, folder, tmp_path):
    import shutil

    shutil.copytree(folder / "tokens", tmp_path / "tokens")
    shard = tmp_path / "tokens" / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    arguments = "pretrain", folder / "recipe.py", "--data", tmp_path / "tokens", "--out", tmp_path / "run"
    result = swila(*arguments)
    assert result.exit_code == 2
    assert "train-00000.bin is corrupt" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_bad_batch_stops_or_is_skipped(swila, folder, tmp_path, monkeypatch):
    arguments = "pretrain", folder / "recipe.py", "--data", folder / "tokens", "--out", tmp_path / "run"
    monkeypatch.setattr(
        "swila.pretraining.updates.why_bad", lambda loss, norm, average, _: "spoilt" if average.count == 7 else None
    )
    result = swila(*arguments)
    assert result.exit_code == 1, result.output
    assert "the batch of update 7 is bad: spoilt. Its sequences are" in result.stderr
    assert "--skip-bad-batches goes on without it" in result.stderr
    assert json.loads((tmp_path / "run" / "bad-batch.json").read_text())["step"] == 7
    result = swila(*arguments, "--skip-bad-batches")
    assert result.exit_code == 0, result.output
    assert "resumes from the checkpoint of step 7" in result.output
    assert "skipped the batch of update 7, spoilt (1 skipped so far)" in result.output


def test_a_restart_by_torchrun_keeps_the_run(swila, folder, trained, monkeypatch):
    """With --max-restarts, torchrun runs the same command again, --fresh included."""
    before = (trained[0] / "metrics.jsonl").read_bytes()
    arguments = "pretrain", folder / "recipe.py", "--data", folder / "tokens", "--out", trained[0], "--fresh"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert swila(*arguments).exit_code == 0
    assert (trained[0] / "metrics.jsonl").read_bytes() == before


def test_a_plan_trains_nothing(swila, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = swila("pretrain", folder / "recipe.py", "--plan", "--gpus", 4, "--gpu", "H100")
    assert result.exit_code == 0, result.output
    assert "on 4 × H100" in result.output
    assert "largest micro-batch that fits" in result.output
    assert list(tmp_path.iterdir()) == []


def command(folder, run, *others):
    swila = "-m", "swila", "pretrain", folder / "recipe.py", "--data", folder / "tokens", "--out", run
    return [*map(str, swila), "--device", "cpu", *others]


def test_signals(folder, tmp_path):
    """SIGTERM saves and exits with 0, as schedulers expect; Ctrl-C with 130."""
    run, longer = tmp_path / "run", ("--set", "schedule.steps=100000")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    step = 0
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, *command(folder, run, *longer)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and max(losses(run), default=0) < step + 3:
            time.sleep(0.1)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == status, output
        found = re.search(r"stopped at step (\d+) and saved; the same command resumes it", output)
        assert int(found[1]) > step, output
        step = int(found[1])
        assert (run / "checkpoints" / f"step-{step:08d}").is_dir()


def test_torchrun(folder, trained, tmp_path):
    """Two processes print once, and train as one."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, *command(folder, tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished: 12 updates") == 1
    expected = losses(trained[0])
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-6)
