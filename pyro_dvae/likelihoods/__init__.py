"""Likelihoods p(x|z): modules that turn a decoder's output into a distribution over x."""

from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.bernoulli import Bernoulli, IndependentBernoulli
from pyro_dvae.likelihoods.counts import Multinomial, NegativeBinomial, Poisson
from pyro_dvae.likelihoods.levels import Categorical, LogisticMixture
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.likelihoods.real import Laplace, Normal
from pyro_dvae.likelihoods.unit import Beta, ContinuousBernoulli

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "ContinuousBernoulli",
    "IndependentBernoulli",
    "Laplace",
    "Likelihood",
    "LogisticMixture",
    "Mixed",
    "Multinomial",
    "NegativeBinomial",
    "Normal",
    "Poisson",
]
