"""A recipe as a torch module."""

from assay.model.backend import BACKENDS, UnsupportedBackend
from assay.model.build import build, materialise
from assay.model.cache import Cache, CacheFull, Room, State, UnsupportedCache
from assay.model.context import Context, Probe
from assay.model.decoder import Decoder, Features
from assay.model.init import initialise
from assay.model.loss import IGNORED, Loss, cross_entropy, mean
from assay.model.parts import Linear, Module, NamedParam, build_part, builds, named_params
from assay.model.weights import WeightsError, load_weights, save_weights

__all__ = [
    "BACKENDS",
    "IGNORED",
    "Cache",
    "CacheFull",
    "Context",
    "Decoder",
    "Features",
    "Linear",
    "Loss",
    "Module",
    "NamedParam",
    "Probe",
    "Room",
    "State",
    "UnsupportedBackend",
    "UnsupportedCache",
    "WeightsError",
    "build",
    "build_part",
    "builds",
    "cross_entropy",
    "initialise",
    "load_weights",
    "materialise",
    "mean",
    "named_params",
    "save_weights",
]
