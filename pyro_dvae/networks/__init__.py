"""Encoders, decoders and baselines; networks that a user wrote, and the trial of any network."""

from pyro_dvae.networks.convolution import ConvDecoder, ConvEncoder, grid_size
from pyro_dvae.networks.mlp import MLPBaseline, MLPControl, MLPDecoder, MLPEncoder
from pyro_dvae.specs import Named

__all__ = [
    "ConvDecoder",
    "ConvEncoder",
    "MLPBaseline",
    "MLPControl",
    "MLPDecoder",
    "MLPEncoder",
    "grid_size",
]

ENCODERS = {
    "mlp": Named(MLPEncoder),
    "conv": Named(ConvEncoder, "width"),
    "conv-grid": Named(ConvEncoder, "width", {"grid": True}),
}
"""The names that `Config` and the command line know."""
DECODERS = {
    "mlp": Named(MLPDecoder),
    "conv": Named(ConvDecoder, "width"),
    "conv-grid": Named(ConvDecoder, "width", {"grid": True}),
}
"""The decoder that goes with each encoder."""
