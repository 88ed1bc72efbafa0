"""Likelihoods p(x|z): modules that turn a decoder's output into a distribution over x."""

from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.bernoulli import Bernoulli, IndependentBernoulli
from pyro_dvae.likelihoods.correlated import CorrelatedNormal
from pyro_dvae.likelihoods.counts import Multinomial, NegativeBinomial, Poisson
from pyro_dvae.likelihoods.levels import Categorical, LogisticMixture
from pyro_dvae.likelihoods.masked import Masked
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.likelihoods.ordinal import Ordinal
from pyro_dvae.likelihoods.real import Laplace, Normal
from pyro_dvae.likelihoods.unit import Beta, ContinuousBernoulli
from pyro_dvae.specs import Named

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "ContinuousBernoulli",
    "CorrelatedNormal",
    "IndependentBernoulli",
    "Laplace",
    "Likelihood",
    "LogisticMixture",
    "Masked",
    "Mixed",
    "Multinomial",
    "NegativeBinomial",
    "Normal",
    "Ordinal",
    "Poisson",
]

LIKELIHOODS = {
    "bernoulli": Named(Bernoulli),
    "continuous-bernoulli": Named(ContinuousBernoulli),
    "beta": Named(Beta),
    "categorical": Named(Categorical, "levels"),
    "ordinal": Named(Ordinal, "levels"),
    "logistic-mixture": Named(LogisticMixture, "components"),
    "normal": Named(Normal, "scale"),
    "correlated-normal": Named(CorrelatedNormal),
    "laplace": Named(Laplace, "scale"),
    "poisson": Named(Poisson),
    "negative-binomial": Named(NegativeBinomial),
    "multinomial": Named(Multinomial),
    "mixed": Named(Mixed, "blocks"),
    "masked": Named(Masked, "likelihood"),
}
"""The names that `Config`, `Preparation` and the command line know.

`names` reads what stands after `mixed:` and `masked:`.
"""
