"""Networks: encoders, decoders, baselines; the user's own, and the trial of any."""

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
