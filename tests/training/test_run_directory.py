"""A directory belongs to one run, and says so."""

import pytest

from swila.training import RunDirectory

CONFIG = {"training": {"lr": 0.01, "betas": (0.9, 0.999)}, "model": "swila"}


def test_the_same_run_is_welcome_again(tmp_path):
    RunDirectory(tmp_path / "a" / "b", CONFIG)
    RunDirectory(tmp_path / "a" / "b", CONFIG)


def test_another_run_is_not(tmp_path):
    RunDirectory(tmp_path, CONFIG).finish({"status": "finished"})
    other = {"training": {"lr": 0.02, "betas": (0.9, 0.999)}, "model": "swila"}
    with pytest.raises(ValueError, match=r"holds another run \(training.lr is 0.01 there and 0.02 here\); choose"):
        RunDirectory(tmp_path, other)
    with pytest.raises(ValueError, match=r"\(seed is only here\)"):
        RunDirectory(tmp_path, {**CONFIG, "seed": 1})
    assert RunDirectory(tmp_path, other, fresh=True).result is None


def test_what_a_crash_left_is_no_obstacle(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "environment.json").write_text("{}")
    (tmp_path / "a" / "config.tmp").write_text('{"tr')
    for fresh in (False, True):
        assert RunDirectory(tmp_path / "a", CONFIG, fresh=fresh).result is None


def test_somebody_elses_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    for fresh in (False, True):
        with pytest.raises(ValueError, match="is not empty and holds no run"):
            RunDirectory(tmp_path, CONFIG, fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "important"
    with pytest.raises(ValueError, match="is a file"):
        RunDirectory(tmp_path / "thesis.tex", CONFIG)
