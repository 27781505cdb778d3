"""The figures from made-up numbers: what is written on them, and what is left out."""

import math
import re
import sys
import warnings
from functools import partial

import pytest

pytest.importorskip("matplotlib")

from swila.experiments.catalogue import LOOKS
from swila.plots import (
    About,
    Learning,
    Plateau,
    Point,
    RoutingPanel,
    StateSizeLine,
    StateSizePoint,
    accuracy_curves,
    progress_figure,
    routing_picture,
    sample_efficiency,
    state_size_figure,
)
from swila.plots.budget import budget_figure as figure_of_budgets
from swila.plots.caption import counts_note
from swila.plots.labels import spread
from swila.plots.style import ink, short

NAN = float("nan")
COLOURS = {name: look.colour for name, look in LOOKS.items()}
budget_figure = partial(figure_of_budgets, reference="attention")
PLATEAU = Plateau(0.25, "1/C", "knowing the values")


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def words(paths):
    """The texts of a figure, after a look at its files."""
    png, svg = paths
    assert (png.suffix, svg.suffix) == (".png", ".svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert min(png.stat().st_size, svg.stat().st_size) > 5000
    return re.findall(r"<text[^>]*>(?:<tspan[^>]*>)?([^<]+)<", svg.read_text(encoding="utf-8"))


def caption_of(paths):
    """The caption of a figure, its lines joined."""
    text = words(paths)
    first = next(i for i, t in enumerate(text) if t.startswith(("Task: ", "Training: ", "Legend: ")))
    return " ".join(text[first:])


def regression(budgets=range(6), seeds=3):
    """DeltaNet, SwiLA in every (H, J) with at most 16 mixtures, and attention; balanced ones are best."""
    points = [Point("attention", "", 0, 4_224, [0.99])]
    for b in budgets:
        base = 0.6 + 0.3 * (1 - math.exp(-b / 2))
        spread_of_seeds = [0.004 * seed for seed in range(seeds)]
        points.append(Point("deltanet", f"H{2**b}", 1024 * 2**b, 5_000 * 2**b, [base + s for s in spread_of_seeds]))
        for j in range(min(b, 4) + 1):
            mean = base + 0.06 - 0.02 * abs(j - b // 2)
            configuration = f"H{2 ** (b - j)}J{2**j}"
            size = 20_000 + 5_000 * 2 ** (b - j) + 1_000 * 2**j
            points.append(Point("swila", configuration, 1024 * 2**b, size, [mean + s for s in spread_of_seeds]))
    return points


BEST = ["H1J1", "H2J1", "H2J2", "H4J2", "H4J4", "H8J4"]


def test_the_best_configuration_of_each_budget_is_labelled(tmp_path):
    points = regression()
    assert len(points) == 27
    text = words(budget_figure(points, LOOKS, About("Approximation"), tmp_path / "b.png"))
    assert sorted(t for t in text if re.fullmatch(r"H\d+J\d+", t)) == sorted(2 * BEST)  # in both panels
    assert {"1,024", "2,048", "32,768", "10k", "100k", "recurrent state (scalars)", "parameters", "test R²"} <= set(
        text
    )
    assert text.count("SwiLA") == text.count("DeltaNet") == 2
    assert text.count("softmax attention  0.990") == 2
    others = [t for t in text if t in ("1", "2", "4", "8", "16")]
    assert len(others) == 20 - len(BEST)  # each by its number of mixtures, in the panel of states
    assert "Approximation" in text


def test_captions_tell_task_training_and_seeds(tmp_path):
    points = regression(range(3)) + [point for point in regression([3, 4], seeds=1) if point.model != "attention"]
    about = About("A", ["32 dims", "length 8"], ["10 epochs"])
    note = caption_of(budget_figure(points, LOOKS, about, tmp_path / "b.png"))
    assert note.startswith("Task: 32 dims; length 8. Training: 10 epochs. Legend: colours and markers: models; points")
    assert "seeds per point: 3 at 1,024 to 4,096, 1 at 8,192 to 16,384" in note
    assert "3 seeds per point" in caption_of(budget_figure(regression(), LOOKS, About("A"), tmp_path / "b.png"))
    curves = automata((1000, 2500))
    curves["swila"][2500] = curves["swila"][2500][:1]
    note = caption_of(sample_efficiency(curves, LOOKS, {}, About("R"), tmp_path / "s.png"))
    assert "points: mean over seeds; bars: lowest to highest seed" in note
    assert "seeds per point: 3 at 1,000, 1 to 3 at 2,500" in note
    panels = {"a": {"swila": [curve(0.9)]}}
    note = caption_of(progress_figure(panels, LOOKS, "x", "y", About("C", ["8 layers"]), tmp_path / "p.png"))
    assert "Task: 8 layers." in note
    assert counts_note("seed", {}) == ""
    assert counts_note("run", {"a": [1, 1]}) == "1 run per point"


def test_one_panel_has_only_the_best(tmp_path):
    text = words(budget_figure(regression(), LOOKS, About("Approximation"), tmp_path / "b.png", parameters=False))
    assert sorted(t for t in text if re.fullmatch(r"H\d+J\d+", t)) == sorted(BEST)
    assert not {"parameters", "1", "2", "4", "8", "16"} & set(text)


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize(
    "points",
    [
        regression([2]),
        regression([0], seeds=1),
        regression(seeds=1)[1:],  # no attention
        regression()[:1],  # nothing but attention
        [Point("deltanet", "H2", 2048, 5_000, [0.7])],
        [],
    ],
    ids=["one budget", "one budget and seed", "no attention", "only attention", "one point", "nothing"],
)
def test_few_points(tmp_path, points, parameters):
    text = words(budget_figure(points, LOOKS, About("Approximation"), tmp_path / "b.png", parameters=parameters))
    assert any("softmax attention" in t for t in text) == any(point.model == "attention" for point in points)
    assert ("DeltaNet" in text) == any(point.model == "deltanet" for point in points)


def test_the_best_may_be_chosen_beforehand(tmp_path):
    """By validation, say: then the line goes through it, though another has a higher score."""
    points = [
        Point("swila", "H4J1", 4096, 9_000, [0.7]),
        Point("swila", "H2J2", 4096, 8_000, [0.8], best=True),
        Point("swila", "H1J4", 4096, 7_000, [0.9]),
    ]
    text = words(budget_figure(points, LOOKS, About("Approximation"), tmp_path / "b.png"))
    assert [t for t in text if re.fullmatch(r"H\d+J\d+", t)] == ["H2J2", "H2J2"]


def test_diverged_runs_are_no_best(tmp_path):
    points = [
        Point("swila", "H4J1", 4096, 9_000, [NAN, math.inf]),
        Point("swila", "H2J2", 4096, 8_000, [0.7, NAN]),
        Point("swila", "H1J4", 4096, 7_000, []),
        Point("deltanet", "H4", 4096, 5_000, [0.6, 0.61]),
        Point("attention", "", 0, 4_224, [NAN]),
    ]
    text = words(budget_figure(points, LOOKS, About("Approximation"), tmp_path / "b.png"))
    assert [t for t in text if re.fullmatch(r"H\d+J\d+", t)] == ["H2J2", "H2J2"]
    assert not any("softmax attention" in t for t in text)
    assert "4 diverged runs are left out" in " ".join(text)


SIZES = (1000, 2500, 5000, 10_000, 20_000, 40_000)


def automata(sizes=SIZES, seeds=3):
    ends = {"temporal-swila": 0.95, "swila": 0.94, "deltanet": 0.92, "dn-mom": 0.945, "attention": 0.96}
    return {
        model: {n: [end - 120 / n + 0.005 * seed for seed in range(seeds)] for n in sizes}
        for model, end in ends.items()
    }


def test_sample_efficiency(tmp_path):
    yardsticks = {"1-gram": 0.48, "3-gram": 0.83}
    text = words(sample_efficiency(automata(), LOOKS, yardsticks, About("RegBench"), tmp_path / "s.png"))
    assert {"1k", "2.5k", "5k", "10k", "20k", "40k", "training automata", "RegBench", "3-gram"} <= set(text)
    assert {"Temporal SwiLA  0.952", "DeltaNet  0.922", "softmax attention  0.962"} <= set(text)
    assert "1-gram" not in text  # too far
    assert "off the scale: 1-gram 0.480" in " ".join(text)
    assert "test accuracy (higher is better)" in text


def test_models_that_lack_the_largest_size(tmp_path):
    curves = automata((1000, 2500))
    del curves["deltanet"][2500]
    curves["attention"][2500] = [NAN, NAN]
    curves["dn-mom"][2500] = []
    text = words(sample_efficiency(curves, LOOKS, {}, About("RegBench"), tmp_path / "s.png"))
    assert {"DeltaNet  0.805 (1k)", "softmax attention  0.845 (1k)", "DN-MoM  0.830 (1k)", "SwiLA  0.897"} <= set(text)
    assert "2 diverged runs are left out" in " ".join(text)


@pytest.mark.parametrize("seeds", [1, 3])
def test_with_one_training_size_models_are_categories(tmp_path, seeds):
    figure = automata((1000,), seeds)
    text = words(sample_efficiency(figure, LOOKS, {"3-gram": 0.83}, About("RegBench"), tmp_path / "s.png"))
    assert {"Temporal", "DeltaNet", "softmax", "3-gram", "models, each with 1,000 training automata"} <= set(text)
    assert f"{0.8 + 0.005 * (seeds - 1) / 2:.3f}" in text, "DeltaNet's mean"
    note = " ".join(text)
    assert "points: seeds; lines and numbers: mean" in note
    assert "bars" not in note


@pytest.mark.parametrize("curves", [{}, {"swila": {}}, {"swila": {1000: [NAN]}}, {"swila": {1000: [0.5]}}])
def test_hardly_any_scores(tmp_path, curves):
    words(sample_efficiency(curves, LOOKS, {}, About("RegBench"), tmp_path / "s.png", score="distance", better="lower"))


def curve(end, steps=8):
    return [(step, end * (1 - 0.5**step)) for step in range(1, steps + 1)]


def test_progress(tmp_path):
    panels = {
        "1,000 automata": {"swila": [curve(0.8), curve(0.9), curve(0.85, 5)], "attention": [curve(0.7)]},
        "2,500 automata": {
            "swila": [curve(0.9), [*curve(0.5, 3), (4, NAN), (5, 0.1)]],
            "deltanet": [[(1, NAN)]],
            "dn-mom": [[]],
        },
    }
    text = words(progress_figure(panels, LOOKS, "epochs", "validation accuracy", About("Curves"), tmp_path / "p.png"))
    assert {"1,000 automata", "2,500 automata", "epochs", "validation accuracy", "Curves"} <= set(text)
    assert f"SwiLA  {0.85 * (1 - 0.5**5):.3f} (×3)" in text  # as far as all three go
    assert f"SwiLA  {0.9 * (1 - 0.5**8):.3f} (×2)" in text  # without the one that diverged
    assert f"softmax attention  {0.7 * (1 - 0.5**8):.3f}" in text
    assert not any("DeltaNet" in t or "DN-MoM" in t for t in text)
    assert "2 diverged" in " ".join(text)


@pytest.mark.parametrize("models", [{}, {"swila": []}, {"swila": [[(3, 0.5)]]}, {"swila": [curve(0.9), [(20, 0.9)]]}])
def test_hardly_any_progress(tmp_path, models):
    words(progress_figure({"panel": models}, LOOKS, "steps", "loss", About("Curves"), tmp_path / "p.png"))


def test_models_differ_without_colours():
    for part in ("title", "colour", "marker", "line"):
        assert len({str(getattr(look, part)) for look in LOOKS.values()}) == len(LOOKS)


def test_labels_move_apart():
    heights = [0.9, 0.91, 0.5]
    assert spread(heights, gap=0.05) == pytest.approx([0.88, 0.93, 0.5]), "centred on their points"
    assert spread(heights, gap=0.05, top=0.92) == pytest.approx([0.87, 0.92, 0.5])
    assert spread([0.0, 0.01], gap=0.05, bottom=0.0) == pytest.approx([0.0, 0.05])
    assert spread([0.3, 0.1, 0.2], gap=0.05) == pytest.approx([0.3, 0.1, 0.2]), "nothing overlaps"
    assert spread([], gap=0.05) == []


def test_ink_is_dark_and_counts_are_short():
    assert ink("#000000") == "#000000"
    assert ink("#E69F00") != "#e69f00"
    assert [short(count) for count in (500, 1000, 2500, 40_000, 1_200_000)] == ["500", "1k", "2.5k", "40k", "1.2M"]


def recall_lines():
    def line(model, layers, heights, cache=False, first=10):
        points = [StateSizePoint(2 ** (first + 2 * i), [y, y - 0.1, y], y - 0.05) for i, y in enumerate(heights)]
        return StateSizeLine(model, layers, cache, points)

    return [
        line("temporal-swila", 1, [0.3, 0.99, 1.0]),
        line("swila", 1, [0.1, 0.2, 0.25]),
        line("swila", 2, [0.2, 0.25], first=11),
        line("attention", 1, [0.25], True, 16),
        line("attention", 2, [0.98], True, 17),
    ]


def test_accuracy_against_state_size(tmp_path):
    text = words(state_size_figure(recall_lines(), LOOKS, PLATEAU, About("CDAR"), tmp_path / "s.png"))
    for name in ("Temporal SwiLA", "SwiLA", "SwiLA, 2 layers", "softmax attention", "softmax attention, 2 layers"):
        assert text.count(name) == 2, "in both panels"
    assert text.count("1/C") == 2
    note = " ".join(text)
    for words_of_it in ("1/C = 0.25: knowing the values", "hollow points", "3 runs per point"):
        assert words_of_it in note
    assert not any(
        "1/C" in t for t in words(state_size_figure(recall_lines(), LOOKS, None, About("MQAR"), tmp_path / "s.png"))
    )


def test_no_runs_and_odd_sizes(tmp_path):
    state_size_figure([], LOOKS, PLATEAU, About("nothing yet"), tmp_path / "s.png")
    accuracy_curves({}, LOOKS, PLATEAU, About("nothing yet"), tmp_path / "c.png")
    odd = StateSizeLine("deltanet", 1, False, [StateSizePoint(192, [0.4], 0.4)])
    text = words(state_size_figure([odd], LOOKS, PLATEAU, About("one run"), tmp_path / "s.png"))
    assert "1 run per point" in " ".join(text)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_many_panels_are_wrapped(tmp_path, count, rows):
    panels = {f"panel {i}": [Learning("swila", 1 + i, [[(10, 0.2), (20, 0.3)]])] for i in range(count)}
    text = words(accuracy_curves(panels, LOOKS, None, About("CDAR"), tmp_path / "c.png"))
    assert [t for t in text if t.startswith("panel")] == list(panels)
    assert text.count("test accuracy") == rows
    assert [t for t in text if t.startswith("SwiLA")] == [
        "SwiLA  0.30",
        *(f"SwiLA, {i + 1} layers  0.30" for i in range(1, count)),
    ]
    assert not any("1/C" in t for t in text)


def heights(figure, panel, colour):
    """The y values of the line of one colour in one panel that has marks; bars have none."""
    marked = [line for line in figure.axes[panel].lines if line.get_marker() not in ("None", "")]
    lines = [line.get_ydata() for line in marked if line.get_color() == colour]
    return [float(y) for y in max(lines, key=len)]


@pytest.fixture
def figures(monkeypatch):
    """Figures as they are before they are written."""
    for module in ("budget", "curves", "progress", "routing", "sample_efficiency", "state_size"):
        monkeypatch.setattr(sys.modules[f"swila.plots.{module}"], "save", lambda figure, path: figure)


def test_best_and_mean_are_in_their_panels(figures, tmp_path):
    points = [StateSizePoint(2**10, [0.1, 0.3], 0.15), StateSizePoint(2**12, [0.5, 0.9], 0.6)]
    figure = state_size_figure(
        [StateSizeLine("swila", 1, False, points)], LOOKS, None, About("CDAR"), tmp_path / "s.png"
    )
    assert heights(figure, 0, COLOURS["swila"]) == [0.3, 0.9]
    assert heights(figure, 1, COLOURS["swila"]) == [0.15, 0.6]


def test_marks_of_caches_are_hollow(figures, tmp_path):
    points = [StateSizePoint(2**10, [0.1], 0.1), StateSizePoint(2**12, [0.5], 0.5)]
    lines = [StateSizeLine("swila", 1, False, points), StateSizeLine("attention", 2, True, points)]
    figure = state_size_figure(lines, LOOKS, None, About("CDAR"), tmp_path / "s.png")
    for axis in figure.axes:
        marked = {line.get_color(): line for line in axis.lines if line.get_marker() not in ("None", "")}
        faces = {colour: line.get_markerfacecolor() for colour, line in marked.items()}
        assert faces == {COLOURS["swila"]: COLOURS["swila"], COLOURS["attention"]: "white"}
        dotted = {colour: line.is_dashed() for colour, line in marked.items()}
        assert dotted == {COLOURS["swila"]: False, COLOURS["attention"]: True}, "one layer, two layers"


def test_lines_go_through_means(figures, tmp_path):
    figure = sample_efficiency({"swila": {10: [0.1, 0.3], 20: [0.4, 0.8]}}, LOOKS, {}, About("R"), tmp_path / "s.png")
    assert heights(figure, 0, COLOURS["swila"]) == pytest.approx([0.2, 0.6])
    points = [Point("swila", "H1J2", 1024, 9, [0.1, 0.3]), Point("swila", "H1J4", 2048, 9, [0.4, 0.8])]
    figure = budget_figure(points, LOOKS, About("A"), tmp_path / "b.png", parameters=False)
    assert heights(figure, 0, COLOURS["swila"]) == pytest.approx([0.2, 0.6])
    panels = {"a": {"swila": [[(1, 0.1), (2, 0.2), (3, 0.9)], [(1, 0.3), (2, 0.4)]]}}
    figure = progress_figure(panels, LOOKS, "epochs", "y", About("C"), tmp_path / "p.png")
    bold = max(figure.axes[0].lines, key=lambda line: (line.get_linewidth(), len(line.get_ydata())))
    assert list(bold.get_ydata()) == pytest.approx([0.2, 0.3]), "as far as both go"


def test_state_and_parameters_are_in_their_panels(figures, tmp_path):
    points = [Point("swila", "H1J2", 1024, 3000, [0.2]), Point("swila", "H1J4", 2048, 7000, [0.6])]
    figure = budget_figure(points, LOOKS, About("A"), tmp_path / "b.png")
    for axis, expected in zip(figure.axes, ([1024, 2048], [3000, 7000]), strict=True):
        marked = [line for line in axis.lines if line.get_marker() not in ("None", "")]
        assert [list(line.get_xdata()) for line in marked] == [expected]


def test_the_reference_is_at_its_best_mean(figures, tmp_path):
    points = [Point("attention", "", 0, 9, scores) for scores in ([0.5, 0.7], [0.8, 0.9], [0.1])]
    figure = budget_figure(points, LOOKS, About("A"), tmp_path / "b.png", parameters=False)
    assert [text.get_text() for text in figure.axes[0].texts] == ["softmax attention  0.850"]


def test_the_best_run_is_bold(figures, tmp_path):
    runs = [[(10, 0.2), (20, 0.9), (30, 0.5)], [(10, 0.6), (20, 0.7), (30, 0.8)]]
    figure = accuracy_curves({"a": [Learning("swila", 1, runs)]}, LOOKS, None, About("CDAR"), tmp_path / "c.png")
    bold = max(figure.axes[0].lines, key=lambda line: (len(line.get_ydata()), line.get_linewidth()))
    assert list(bold.get_ydata()) == [0.0, 0.2, 0.9, 0.5], "by its best evaluation"
    assert [text.get_text() for text in figure.axes[0].texts] == ["SwiLA  0.90 (×2)"]


def test_numbers_beside_names_are_those_of_the_means(figures, tmp_path):
    figure = sample_efficiency({"swila": {10: [0.1, 0.3], 20: [0.4, 0.8]}}, LOOKS, {}, About("R"), tmp_path / "s.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["SwiLA  0.600"]
    panels = {"a": {"swila": [[(1, 0.5), (2, 0.2)], [(1, 0.7), (2, 0.1)]]}}
    figure = progress_figure(panels, LOOKS, "epochs", "y", About("C"), tmp_path / "p.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["SwiLA  0.600 (×2)"], "the highest, not the last"


def test_bars_go_from_the_worst_to_the_best(figures, tmp_path):
    def bars(figure, panel):
        plain = [line for line in figure.axes[panel].lines if line.get_marker() in ("None", "")]
        return [list(line.get_ydata()) for line in plain if line.get_color() == COLOURS["swila"]]

    scores, expected = ([0.1, 0.3, 0.2], [0.8, 0.4]), [[0.1, 0.3], [0.4, 0.8]]
    points = [StateSizePoint(2**10, scores[0], 0.2), StateSizePoint(2**12, scores[1], 0.6)]
    figure = state_size_figure(
        [StateSizeLine("swila", 1, False, points)], LOOKS, None, About("CDAR"), tmp_path / "s.png"
    )
    assert (bars(figure, 0), bars(figure, 1)) == ([], expected)
    figure = sample_efficiency({"swila": {10: scores[0], 20: scores[1]}}, LOOKS, {}, About("R"), tmp_path / "e.png")
    assert bars(figure, 0) == expected
    points = [Point("swila", "H1J2", 1024, 9, scores[0]), Point("swila", "H1J4", 2048, 9, scores[1])]
    figure = budget_figure(points, LOOKS, About("A"), tmp_path / "b.png", parameters=False)
    assert bars(figure, 0) == expected


def test_tokens_and_mixtures_of_a_context_have_one_colour(figures, tmp_path):
    panel = RoutingPanel("writing", [[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]], [0])
    figure = routing_picture([panel], [1, 2, -1], None, 2, About("R"), [], tmp_path / "r.png")
    assert [list(axis.lines[0].get_xdata()) for axis in figure.axes] == [[1.5, 1.5]] * 2, "before the first query"
    strip, cells = (axis.images[0].get_array()[0].tolist() for axis in figure.axes)
    assert strip[0] != strip[1]
    for token, cell in zip(strip, cells, strict=True):
        assert cell == pytest.approx(token)
    assert cells[2] == pytest.approx([1, 1, 1]), "shared evenly"
