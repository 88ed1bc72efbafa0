"""Discrete variational autoencoders in Pyro.

The library has:

- a model, `DiscreteVAE`, which is made of an encoder, a decoder, a prior, a likelihood and a guide;
- gradient estimators for any Pyro program with categorical latent sites, the subclasses of
  `DiscreteELBO`;
- training: `fit`, or a `Trainer`, which can stop and continue; `fit_prior` for a second stage;
- figures of a model in nats per datum: `evaluate`, `datum_scores`, `log_marginal`;
- better q(z|x) than the encoder's: `refine`;
- data: `load_images`, `BinaryImages`, and more in `pyro_dvae.data`;
- the folders that the trainings of the command line leave: `load_run`, and more in
  `pyro_dvae.runs`.

In all docstrings, D is the number of latents of a code, K the number of categories of a latent, B
the number of data in a batch, and S the number of particles. [JL25] is Jeffares & Liu, "An
Introduction to Discrete Variational Autoencoders", arXiv:2505.10344.
"""

import warnings
from typing import TYPE_CHECKING

from pyro_dvae._version import __version__ as __version__

# Pyro imports tqdm, which warns in every notebook without ipywidgets. Nothing here needs them.
warnings.filterwarnings("ignore", "IProgress not found")

if TYPE_CHECKING:
    from pyro_dvae._api import *  # noqa: F403
    from pyro_dvae._api import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Import all public names, which `_api` lists, when the first of them is asked for.

        To import torch takes more than a second. The command line shows its help without it: it
        imports `pyro_dvae.defaults` alone to show the defaults of its options.
        """
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        api = import_module(f"{__name__}._api")
        globals().update({each: vars(api)[each] for each in api.__all__}, __all__=api.__all__)
        if name not in globals():  # where the modules that were imported are too
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        """The public names, for completion."""
        return sorted(__getattr__("__all__"))
