"""Figures: functions from numbers to files, and the looks of the models. They need matplotlib (``swila[plots]``)."""

from swila.plots.budget import Point as Point
from swila.plots.budget import budget_figure as budget_figure
from swila.plots.caption import About as About
from swila.plots.curves import Curve as Curve
from swila.plots.curves import Learning as Learning
from swila.plots.curves import accuracy_curves as accuracy_curves
from swila.plots.pretraining import Series as Series
from swila.plots.pretraining import loss_figure as loss_figure
from swila.plots.pretraining import perplexity_figure as perplexity_figure
from swila.plots.progress import progress_figure as progress_figure
from swila.plots.routing import RoutingPanel as RoutingPanel
from swila.plots.routing import routing_picture as routing_picture
from swila.plots.routing_over_training import RoutingSeries as RoutingSeries
from swila.plots.routing_over_training import routing_layers_figure as routing_layers_figure
from swila.plots.routing_over_training import routing_runs_figure as routing_runs_figure
from swila.plots.sample_efficiency import sample_efficiency as sample_efficiency
from swila.plots.state_size import StateSizeLine as StateSizeLine
from swila.plots.state_size import StateSizePoint as StateSizePoint
from swila.plots.state_size import state_size_figure as state_size_figure
from swila.plots.style import Look as Look
from swila.plots.style import Looks as Looks
from swila.plots.style import Plateau as Plateau
from swila.plots.throughput import ThroughputLine as ThroughputLine
from swila.plots.throughput import throughput_figure as throughput_figure
