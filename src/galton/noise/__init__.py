"""C^-1 z as a stream with explicit state. `CorrelatedNoise` draws it, `NoiseRun` binds it to a folder."""

from galton.noise.checkpoint import load_state, save_state
from galton.noise.journal import Journal, NoiseReused
from galton.noise.keys import fresh_key, key_from_seed
from galton.noise.run import NoiseRun
from galton.noise.stream import CorrelatedNoise, NoiseState

__all__ = [
    "CorrelatedNoise",
    "Journal",
    "NoiseReused",
    "NoiseRun",
    "NoiseState",
    "fresh_key",
    "key_from_seed",
    "load_state",
    "save_state",
]
