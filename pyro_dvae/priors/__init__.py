"""Priors p(z): modules whose `forward` returns a distribution over codes, event (D, K).

A prior says of itself whether its latents follow one another (`sequential`: its distribution has
`conditional`), and what its `forward` takes: None for nothing, "labels" (B,) for p(z|y), or
"posterior", the function x -> q(z|x), for priors that are made of it.
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
