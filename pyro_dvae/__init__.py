"""Discrete variational autoencoders in Pyro.

[JL25] is Jeffares & Liu, "An Introduction to Discrete Variational Autoencoders", arXiv:2505.10344.
"""

from pyro_dvae._version import __version__
from pyro_dvae.checkpoints import Run, load_run
from pyro_dvae.config import Config, build_elbo, build_vae
from pyro_dvae.data import BinaryImages, Images, load_images, split
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.exact import EnumeratedELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO
from pyro_dvae.evaluation import Evaluation, evaluate, log_marginal
from pyro_dvae.likelihoods import Bernoulli
from pyro_dvae.networks import MLPDecoder, MLPEncoder
from pyro_dvae.priors import UniformPrior
from pyro_dvae.training import EpochRecord, fit
from pyro_dvae.vae import DiscreteVAE

__all__ = [
    "Bernoulli",
    "BinaryImages",
    "Config",
    "DiscreteELBO",
    "DiscreteVAE",
    "EnumeratedELBO",
    "EpochRecord",
    "Evaluation",
    "Images",
    "MLPDecoder",
    "MLPEncoder",
    "ReinforceELBO",
    "RlooELBO",
    "Run",
    "Terms",
    "UniformPrior",
    "__version__",
    "build_elbo",
    "build_vae",
    "evaluate",
    "fit",
    "load_images",
    "load_run",
    "log_marginal",
    "split",
]
