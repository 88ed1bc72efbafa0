"""A trained model as graphs that run without this library: `export_run`."""

from pyro_dvae.exporting.export import TOLERANCE, Export, export_run
from pyro_dvae.exporting.formats import FORMATS, MissingOnnx
from pyro_dvae.exporting.graphs import SIZES

__all__ = ["FORMATS", "SIZES", "TOLERANCE", "Export", "MissingOnnx", "export_run"]
