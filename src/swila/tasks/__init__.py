"""Synthetic tasks, as data only: what a model reads, what it must say, and how it is drawn."""

from swila.tasks.cdar import CDAR as CDAR
from swila.tasks.examples import IGNORE as IGNORE
from swila.tasks.examples import Examples as Examples
from swila.tasks.examples import Task as Task
from swila.tasks.mqar import MQAR as MQAR
from swila.tasks.streams import stream as stream
