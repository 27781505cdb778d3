"""The commands as a user runs them."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import swila
from swila.cli.app import app
from swila.ops import backends
from swila.ops.backends import get_backend, register_backend, usable_backends
from swila.testing import VARIANTS, examination


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(backends, "_registered", {})

    def invoke(*arguments):
        return CliRunner().invoke(app, list(arguments))

    return invoke


@pytest.fixture
def few_variants(monkeypatch):
    few = {name: VARIANTS[name] for name in ("plain", "gated-temporal")}
    monkeypatch.setattr(examination, "VARIANTS", few)


def break_gradient():
    """A backend whose gradient of k is one part in a thousand too large: the kind of thing no loss curve shows."""

    def backward(x, options, saved, grads):
        given = get_backend("blocked").backward(x, options, saved, grads)
        return given | {"k": given["k"] * 1.001}

    register_backend(replace(get_backend("blocked"), name="broken", backward=backward))


def test_info(run):
    result = run("info")
    assert result.exit_code == 0
    assert "torch" in result.output
    assert "blocked" in result.output
    register_backend(replace(get_backend("blocked"), name="absent", unusable=lambda: "no such device"))
    assert "no: no such device" in run("info").output


def test_doctor_finds_everything_right(run, few_variants):
    result = run("doctor", "--device", "cpu", "--dtype", "float32", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    assert result.output.count("right") == 2 * len(usable_backends())
    assert "all checks passed" in result.output
    assert "WRONG" not in result.output


def test_doctor_finds_a_wrong_gradient(run, few_variants):
    break_gradient()
    result = run("doctor", "--device", "cpu", "--dtype", "float32", "--backend", "broken")
    assert result.exit_code == 1
    assert "WRONG" in result.output
    assert "d k (plain)" in result.output


def test_doctor_survives_a_crash_and_tells_what_is_not_supported(run, few_variants):
    def crash(x, options, save):
        raise RuntimeError("illegal memory access")

    register_backend(replace(get_backend("blocked"), name="crashing", forward=crash))
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda p: "J must be 64"))
    result = run("doctor", "--device", "cpu", "--dtype", "float32", "--backend", "crashing", "--backend", "picky")
    assert result.exit_code == 1
    assert "plain: RuntimeError: illegal memory access" in result.output
    assert "J must be 64" in result.output


def test_bench_writes_what_it_prints(run, tmp_path):
    out = tmp_path / "new" / "op.json"
    result = run("bench", "op", "--shape", "B1 T70 H2 K8 V4 J2", "--repeats", "2", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [row["backend"] for row in record["rows"]] == usable_backends()
    assert all(row["total_ms"] > row["forward_ms"] > 0 for row in record["rows"])
    assert record["shape"] == {"B": 1, "T": 70, "H": 2, "K": 8, "V": 4, "J": 2}
    assert record["bytes_of_inputs_and_gradients"] == 2 * 4 * 70 * 2 * (8 + 8 + 4 + 3 * 2 * 4)
    assert {"torch", "commit", "cpu", "python", "date"} <= record["environment"].keys()


def test_bench_refuses_to_time_a_wrong_backend(run, tmp_path):
    break_gradient()
    out = tmp_path / "op.json"
    result = run("bench", "op", "--shape", "B1 T40 H1 K8 V4 J2", "--repeats", "1", "--out", str(out))
    assert result.exit_code == 1
    rows = {row["backend"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["broken"]["refused"].startswith("wrong: d k off by 1.0e-03")
    assert rows["broken"]["total_ms"] is None
    assert rows["blocked"]["total_ms"] > 0


def test_bench_checks_what_it_times(run, tmp_path):
    """A backend that is wrong only where no statistics are asked for, as in what is timed."""

    def forward(x, options, save):
        found, saved = get_backend("blocked").forward(x, options, save)
        return found if options.routing_stats else found._replace(output=found.output * 1.001), saved

    register_backend(replace(get_backend("blocked"), name="broken", forward=forward))
    out = tmp_path / "op.json"
    result = run("bench", "op", "--shape", "B1 T40 H1 K8 V4 J2", "--repeats", "1", "--out", str(out))
    assert result.exit_code == 1
    rows = {row["backend"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["broken"]["refused"].startswith("wrong: output off by 1.0e-03")
    assert rows["blocked"]["total_ms"] > 0


def test_bench_survives_a_crash_and_a_refusal(run, tmp_path):
    def crash(x, options, save):
        raise RuntimeError("illegal memory access")

    register_backend(replace(get_backend("blocked"), name="crashing", forward=crash))
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda p: "no statistics"))
    out = tmp_path / "op.json"
    result = run("bench", "op", "--shape", "B1 T40 H1 K8 V4 J2", "--repeats", "1", "--out", str(out))
    assert result.exit_code == 1
    rows = {row["backend"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["crashing"]["refused"] == "crashed: RuntimeError: illegal memory access"
    assert rows["picky"]["refused"] == "no statistics"
    assert not rows["picky"]["wrong"]
    assert rows["blocked"]["total_ms"] > 0
    assert max(row["times_faster"] for row in rows.values() if row["times_faster"]) > 1


def test_doctor_does_not_call_nothing_right(run, few_variants):
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda p: "J must be 64"))
    result = run("doctor", "--device", "cpu", "--dtype", "float32", "--backend", "picky")
    assert result.exit_code == 2
    assert "nothing was checked" in result.stderr


def test_version(run):
    assert run("--version").output.strip() == swila.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "op", "--shape", "B4 Q3"], "shape must be sizes such as 'B4 T1024 H4 K64 V64 J4', got 'B4 Q3'"),
        (["bench", "op", "--shape", "B0"], "got 'B0'"),
        (["bench", "op", "--variant", "fancy"], "variant must be one of plain, temporal, "),
        (["bench", "op", "--baseline", "GDN"], "baseline needs a GPU, and neither variant nor backend"),
        (["bench", "op", "--dtype", "int8"], "dtype must be one of float64, float32, bfloat16, float16, got 'int8'"),
        (
            ["bench", "op", "--backend", "fast"],
            "'blocked', 'reference', got 'fast'",
        ),
        (["bench", "op", "--device", "abacus"], "device 'abacus' cannot be used here"),
        (["bench", "op", "--out", "/"], "out must be a file, got the directory /"),
        (["bench", "op", "--out", "/proc/none/op.json"], "No such file or directory: '/proc/none'"),
        (["doctor", "--backend", "fast"], "backend must be 'auto' or one of"),
        (["doctor", "--device", "abacus"], "device 'abacus' cannot be used here"),
    ],
)
def test_mistakes_get_one_line(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_demo(run):
    result = run("demo")
    assert result.exit_code == 0, result.output
    assert "1, the delta rule" in result.output
    assert "map " in result.output


def test_help_names_the_commands():
    code = "import sys; from swila.cli.app import app; app(['--help'], standalone_mode=False)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    for command in ("info", "doctor", "bench", "demo"):
        assert command in shown


def test_missing_extra_is_named():
    code = "import sys; sys.modules['typer'] = None; from swila.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install 'swila[cli]'" in ended.stderr
