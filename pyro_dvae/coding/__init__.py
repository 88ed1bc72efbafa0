"""Lossless compression of discrete data by a model."""

from pyro_dvae.coding.codec import compress, decompress
from pyro_dvae.coding.container import Way
from pyro_dvae.coding.encoder import Compressed
from pyro_dvae.coding.stack import MissingConstriction

__all__ = ["Compressed", "MissingConstriction", "Way", "compress", "decompress"]
