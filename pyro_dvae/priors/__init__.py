"""Priors p(z): modules whose `forward` returns a distribution over codes, with event shape (D, K).

D is the number of latents of a code, K the number of categories of a latent. All codes are one-hot.
`Prior` says what else a prior may define.
"""

from pyro_dvae.priors.autoregressive import AutoregressivePrior
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.boltzmann import BoltzmannPrior
from pyro_dvae.priors.conditional import ConditionalPrior
from pyro_dvae.priors.hierarchical import HierarchicalPrior
from pyro_dvae.priors.learned import LearnedPrior
from pyro_dvae.priors.mixture import MixtureCodes, MixturePrior
from pyro_dvae.priors.uniform import UniformPrior
from pyro_dvae.priors.vamp import VampPrior
from pyro_dvae.specs import Named

__all__ = [
    "AutoregressivePrior",
    "BoltzmannPrior",
    "ConditionalPrior",
    "HierarchicalPrior",
    "LearnedPrior",
    "MixtureCodes",
    "MixturePrior",
    "Prior",
    "UniformPrior",
    "VampPrior",
]

PRIORS = {
    "uniform": Named(UniformPrior),
    "autoregressive": Named(AutoregressivePrior, "width"),
    "learned": Named(LearnedPrior),
    "mixture": Named(MixturePrior, "num_components"),
    "vamp": Named(VampPrior, "num_components", {"num_components": 50}),
    "hierarchical": Named(HierarchicalPrior, "upper"),
    "conditional": Named(ConditionalPrior, "width"),
    "boltzmann": Named(BoltzmannPrior),
    "rbm": Named(BoltzmannPrior, settings={"pairs": "bipartite"}),
}
"""The names that `Config` and the command line know."""
