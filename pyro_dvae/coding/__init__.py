"""Lossless compression of discrete data by a model."""

from pyro_dvae.coding.baselines import baseline_sizes
from pyro_dvae.coding.codec import compress, decompress
from pyro_dvae.coding.container import Way
from pyro_dvae.coding.encoder import Compressed
from pyro_dvae.coding.files import compress_rows, decompress_file, write_values
from pyro_dvae.coding.report import CodecReport, codec_report, promised_sizes
from pyro_dvae.coding.stack import MissingConstriction

__all__ = [
    "CodecReport",
    "Compressed",
    "MissingConstriction",
    "Way",
    "baseline_sizes",
    "codec_report",
    "compress",
    "compress_rows",
    "decompress",
    "decompress_file",
    "promised_sizes",
    "write_values",
]
