"""The figures of pretraining from made-up numbers: which curves are drawn, where axes end, and what is written."""

import math
import re
import sys
import warnings
from itertools import pairwise

import pytest

pytest.importorskip("matplotlib")

from matplotlib.text import Text

from swila.experiments.catalogue import LOOKS as LOOKS_OF_EXPERIMENTS
from swila.models.language.presets import ARCHITECTURES, SIZES
from swila.plots import (
    About,
    Look,
    RoutingSeries,
    Series,
    loss_figure,
    perplexity_figure,
    routing_layers_figure,
    routing_runs_figure,
)
from swila.plots.looks import LOOKS
from swila.plots.routing_over_training import DIAGNOSTICS
from swila.plots.smoothing import smooth, thin
from swila.plots.style import CONTEXT_COLOURS, readable, shade, short

RED, BLUE = Look("A", "#AA0000", "o"), Look("B", "#0000AA", "s")
ABOUT = About("Pretraining", ["data"], ["training"])


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def figures(monkeypatch):
    """Figures as they are before they are written."""
    for module in ("pretraining", "routing_over_training"):
        monkeypatch.setattr(sys.modules[f"swila.plots.{module}"], "save", lambda figure, path: figure)


def words(paths):
    """The texts of a figure, after a look at its files."""
    png, svg = paths
    assert png.read_bytes().startswith(b"\x89PNG")
    return re.findall(r"<text[^>]*>(?:<tspan[^>]*>)?([^<]+)<", svg.read_text(encoding="utf-8"))


def falling(end, points=200, tokens=1000):
    return [(tokens * (i + 1), end + 8 * math.exp(-i / 4) + (-1) ** i * 0.1) for i in range(points)]


def lines_of(axis, colour):
    return [line for line in axis.lines if line.get_color() == colour and len(line.get_xdata()) > 1]


def test_a_loss_has_a_pale_curve_of_all_values_and_a_bold_one_of_means(figures, tmp_path):
    figure = loss_figure([Series("run", RED, falling(3.0))], ABOUT, tmp_path / "loss.png")
    pale, bold = sorted(lines_of(figure.axes[0], RED.colour), key=lambda line: line.get_linewidth())
    assert list(zip(pale.get_xdata(), pale.get_ydata(), strict=True)) == falling(3.0)
    assert pale.get_alpha() < 0.5
    assert list(bold.get_ydata()) == [value for _, value in smooth(falling(3.0))]
    assert [text.get_text() for text in figure.axes[0].texts] == ["run  2.980"], "the mean of the last five"


def test_the_beginning_of_a_loss_is_above_the_axis(figures, tmp_path):
    figure = loss_figure([Series("run", RED, falling(3.0))], ABOUT, tmp_path / "loss.png")
    low, high = figure.axes[0].get_ylim()
    assert low < 3.0
    assert 3.1 < high < 5
    assert "the beginning is above the axis" in figure.get_supxlabel()
    spike = [(i, 9.0 if i == 90 else 3 + i % 2) for i in range(99)]
    spiked = loss_figure([Series("run", RED, spike)], ABOUT, tmp_path / "loss.png")
    assert "above the axis" not in spiked.get_supxlabel(), "not the beginning"
    even = loss_figure([Series("run", RED, [(i, 3 + i % 2) for i in range(99)])], ABOUT, tmp_path / "loss.png")
    assert "above the axis" not in even.get_supxlabel()
    low, high = even.axes[0].get_ylim()
    assert low < 3 < 4 < high, "the pale curve is inside too"


def test_short_runs_beside_long_ones_end_inside_the_axes(figures, tmp_path):
    runs = [Series("long", RED, falling(3.0, 400)), Series("short", BLUE, falling(6.0, 8))]
    for function in (loss_figure, perplexity_figure):
        axis = function(runs, ABOUT, tmp_path / "f.png").axes[0]
        assert axis.get_xlim() == (0, 400_000)
        for run in runs:
            drawn = lines_of(axis, run.look.colour)[-1].get_ydata()[-1]
            assert axis.get_ylim()[0] < drawn < axis.get_ylim()[1], run.label


@pytest.mark.parametrize(("last", "scale"), [(60.0, "log"), (70.0, "linear")])
def test_perplexities_over_a_wide_range_have_a_logarithmic_axis(figures, tmp_path, last, scale):
    curve = [(1000, 130.0), (2000, 90.0), (3000, last)]
    figure = perplexity_figure([Series("run", RED, curve)], ABOUT, tmp_path / "p.png")
    assert figure.axes[0].get_yscale() == scale
    assert ("logarithmic" in figure.get_supxlabel()) == (scale == "log")
    assert list(lines_of(figure.axes[0], RED.colour)[0].get_ydata()) == [130.0, 90.0, last]
    assert [text.get_text() for text in figure.axes[0].texts] == [f"run  {last:.2f}"]


def test_perplexities_are_readable_numbers(tmp_path):
    runs = [
        Series("first", RED, [(1000, 5000.0), (2000, 1631.7)]),
        Series("second", BLUE, [(1000, 900.0), (2000, 12.34)]),
    ]
    text = words(perplexity_figure(runs, ABOUT, tmp_path / "p.png"))
    assert {"first  1,631.7", "second  12.34", "1k", "2k", "100", "1,000", "training tokens"} <= set(text)
    assert [readable(x) for x in (3.2e6, 1631.71, 123.44, 99.999, 12.344, 1.0)] == [
        "3.2e+06",
        "1,631.7",
        "123.4",
        "100.0",
        "12.34",
        "1.00",
    ]
    assert short(15e9) == "15B"


@pytest.mark.parametrize("curve", [[(2048, 1631.7)], [(1, 5.0), (2, 5.0)], [(1, 7.0), (2, 1e30)]])
@pytest.mark.parametrize("function", [loss_figure, perplexity_figure])
def test_hardly_any_values(tmp_path, function, curve):
    words(function([Series("run", RED, curve), Series("none", BLUE, [])], ABOUT, tmp_path / "f.png"))


@pytest.mark.parametrize("count", [1, 13, 25])
def test_labels_do_not_overlap(figures, tmp_path, count):
    losses = [Series(f"run {i}", RED, falling(3.0 + 0.001 * i)) for i in range(count)]
    scores = [Series(f"run {i}", RED, [(1000, 2000.0), (2000, 20 + 0.1 * i)]) for i in range(count)]
    for function, runs in ((loss_figure, losses), (perplexity_figure, losses), (perplexity_figure, scores)):
        figure = function(runs, ABOUT, tmp_path / "f.png")
        figure.draw_without_rendering()
        boxes = sorted((Text.get_window_extent(text) for text in figure.axes[0].texts), key=lambda box: box.y0)
        assert len(boxes) == count
        for below, above in pairwise(boxes):
            assert above.y0 > below.y0 + 0.8 * below.height, "no more than the descenders"


def diagnostics(value, points=50):
    return {name: [(1000 * (i + 1), value + 0.01 * k) for i in range(points)] for k, name in enumerate(DIAGNOSTICS)}


def panels_of(figure):
    """The six panels by the names of their diagnostics, query side first."""
    return dict(zip(DIAGNOSTICS, figure.axes[:6], strict=True))


def test_routing_has_queries_above_and_keys_below(figures, tmp_path):
    assert DIAGNOSTICS[:3] == ("query_utilization_entropy", "query_routing_entropy", "query_dead_fraction")
    runs = [RoutingSeries("first", RED, diagnostics(0.5)), RoutingSeries("second", BLUE, diagnostics(0.3))]
    figure = routing_runs_figure(runs, ABOUT, tmp_path / "r.png")
    axes = panels_of(figure)
    for run in runs:
        for name, axis in axes.items():
            (line,) = lines_of(axis, run.look.colour)
            assert line.get_ydata()[-1] == pytest.approx(run.curves[name][-1][1]), name
    assert [axis.get_title(loc="left") for axis in figure.axes[:3]] == [
        "utilisation entropy",
        "routing entropy",
        "dead-expert fraction",
    ]
    assert [axis.get_ylabel() for axis in figure.axes[:6:3]] == ["query side", "key-value side"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second"]
    for above, below in zip(figure.axes[:3], figure.axes[3:6], strict=True):
        assert above.get_ylim() == below.get_ylim()


def test_limits_of_routing_show_one_and_zero(figures, tmp_path):
    figure = routing_runs_figure([RoutingSeries("run", RED, diagnostics(0.0))], ABOUT, tmp_path / "r.png")
    for name, axis in panels_of(figure).items():
        low, high = axis.get_ylim()
        assert low < 0 if "dead" in name else high > 1
        assert low < 0.05 < high


def test_layers_have_the_colours_of_the_bar(figures, tmp_path):
    layers = {2: diagnostics(0.2), 0: diagnostics(0.9), 7: diagnostics(0.4)}
    figure = routing_layers_figure(layers, ABOUT, tmp_path / "r.png")
    axis = panels_of(figure)["key_dead_fraction"]
    colours = [line.get_color() for line in axis.lines]
    assert [line.get_ydata()[-1] for line in axis.lines] == pytest.approx([0.95, 0.25, 0.45]), "in their order"
    bar = figure.axes[6]
    assert bar.get_ylabel() == "layer, counted from 0"
    assert bar.get_ylim() == (0, 7)
    assert len({tuple(colour) for colour in colours}) == 3
    brightness = [sum(colour[:3]) for colour in colours]
    assert brightness == sorted(brightness)


def test_one_layer_and_missing_curves(tmp_path):
    partial = {name: curve for name, curve in diagnostics(0.5).items() if "key" in name}
    words(routing_layers_figure({3: partial}, ABOUT, tmp_path / "l.png"))
    text = words(routing_runs_figure([RoutingSeries("run\nperplexity 3.00", RED, partial)], ABOUT, tmp_path / "r.png"))
    assert {"run", "perplexity 3.00", "key-value side"} <= set(text)


def test_running_means():
    curve = [(i, float(i % 2)) for i in range(100)]
    assert [x for x, _ in smooth(curve)] == list(range(100))
    assert smooth(curve)[50] == (50, pytest.approx(2 / 5)), "two neighbours on either side"
    assert smooth(curve)[0] == (0, pytest.approx(1 / 3))
    assert smooth(curve)[-1] == (99, pytest.approx(2 / 3))
    assert smooth([]) == []
    assert smooth([(5, 7.0)]) == [(5, 7.0)]


def test_thin_curves_are_means_of_neighbours():
    curve = [(i, 10.0 * i) for i in range(10)]
    assert thin(curve, 5) == [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0), (6.5, 65.0), (8.5, 85.0)]
    assert thin(curve, 10) == thin(curve, 99) == curve
    assert len(thin(curve, 4)) == 4
    assert thin([], 4) == []


def lab(colour):
    """CIE L*a*b* of ``#RRGGBB``."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("size", SIZES)
def test_architectures_of_a_size_can_be_told_apart(size):
    names = list(SIZES[size].widths)
    assert len({LOOKS[name].marker for name in names}) == len(names)
    for i, name in enumerate(names):
        for other in names[:i]:
            assert math.dist(lab(LOOKS[name].colour), lab(LOOKS[other].colour)) > 25, (name, other)


def test_architectures_have_their_titles_and_the_colours_of_the_experiments():
    for name, architecture in ARCHITECTURES.items():
        assert LOOKS[name].title == architecture.title
    for name, look in LOOKS_OF_EXPERIMENTS.items():
        same = {"attention": "transformer", "gated-deltanet": "gdn"}.get(name, name)
        assert (LOOKS[same].colour, LOOKS[same].marker) == (look.colour, look.marker)
    assert not {look.colour for look in LOOKS.values()} & set(CONTEXT_COLOURS)


def test_shades():
    assert shade("#204060", 0.0) == "#204060"
    assert shade("#204060", 1.0) == "#FFFFFF"
    assert shade("#204060", -0.5) == "#102030"
