"""Figures: functions from numbers to files, with no knowledge of models. They need matplotlib (``swila[plots]``)."""

from swila.plots.curves import accuracy_curves as accuracy_curves
from swila.plots.routing import RoutingPanel as RoutingPanel
from swila.plots.routing import routing_picture as routing_picture
