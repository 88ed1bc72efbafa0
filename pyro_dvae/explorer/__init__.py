"""The explorer: what a person asks of a model in a browser, and a page that asks it.

`Explorer` computes, and knows nothing of the page. The README of `pyro_dvae/explorer` shows both.
"""

from pyro_dvae.explorer.answers import Datum, Figure, Inferred, Step
from pyro_dvae.explorer.explorer import Explorer
from pyro_dvae.explorer.server import MissingGradio, serve
from pyro_dvae.explorer.views import View

__all__ = ["Datum", "Explorer", "Figure", "Inferred", "MissingGradio", "Step", "View", "serve"]
