"""Encoders, decoders and baselines; networks that a user wrote, and the trial of any network."""

from pyro_dvae.networks.convolution import ConvDecoder, ConvEncoder, grid_size
from pyro_dvae.networks.mlp import MLPBaseline, MLPControl, MLPDecoder, MLPEncoder

__all__ = [
    "ConvDecoder",
    "ConvEncoder",
    "MLPBaseline",
    "MLPControl",
    "MLPDecoder",
    "MLPEncoder",
    "grid_size",
]
