"""Sequence layers: SwiLA and its baselines with one interface."""

from swila.layers.attention import Attention as Attention
from swila.layers.attention import ForgettingAttention as ForgettingAttention
from swila.layers.auxiliary import collect_auxiliary_loss as collect_auxiliary_loss
from swila.layers.auxiliary import collect_routing_diagnostics as collect_routing_diagnostics
from swila.layers.cache import Cache as Cache
from swila.layers.delta_net import DeltaNet as DeltaNet
from swila.layers.delta_net import GatedDeltaNet as GatedDeltaNet
from swila.layers.delta_net import KimiDeltaAttention as KimiDeltaAttention
from swila.layers.load_balancing import RoutingDiagnostics as RoutingDiagnostics
from swila.layers.load_balancing import mutual_information_loss as mutual_information_loss
from swila.layers.load_balancing import routing_diagnostics as routing_diagnostics
from swila.layers.mixer import SequenceMixer as SequenceMixer
from swila.layers.mom import MixtureOfMemories as MixtureOfMemories
from swila.layers.recurrent import RecurrentMixer as RecurrentMixer
from swila.layers.registry import MIXERS as MIXERS
from swila.layers.registry import make_mixer as make_mixer
from swila.layers.registry import register_mixer as register_mixer
from swila.layers.swila import RoutingTrace as RoutingTrace
from swila.layers.swila import SwiLA as SwiLA

__all__ = [
    "MIXERS",
    "Attention",
    "Cache",
    "DeltaNet",
    "ForgettingAttention",
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "MixtureOfMemories",
    "RecurrentMixer",
    "RoutingDiagnostics",
    "RoutingTrace",
    "SequenceMixer",
    "SwiLA",
    "collect_auxiliary_loss",
    "collect_routing_diagnostics",
    "make_mixer",
    "mutual_information_loss",
    "register_mixer",
    "routing_diagnostics",
]
