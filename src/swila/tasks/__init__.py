"""Synthetic tasks: random sequences with labels or targets."""

from swila.tasks.cdar import CDAR as CDAR
from swila.tasks.examples import IGNORE as IGNORE
from swila.tasks.examples import Examples as Examples
from swila.tasks.examples import ExampleTensors as ExampleTensors
from swila.tasks.examples import Task as Task
from swila.tasks.mqar import MQAR as MQAR
from swila.tasks.ngrams import ngram_distribution as ngram_distribution
from swila.tasks.regbench import AutomatonExamples as AutomatonExamples
from swila.tasks.regbench import RegBench as RegBench
from swila.tasks.regbench import legality as legality
from swila.tasks.regbench import total_variation as total_variation
from swila.tasks.softmax_regression import Pairs as Pairs
from swila.tasks.softmax_regression import SoftmaxRegression as SoftmaxRegression
