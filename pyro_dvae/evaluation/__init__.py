"""Evaluation of a model on data: the ELBO, tighter bounds, log p(x), and the use of codes."""

from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.evaluation.evaluation import evaluate
from pyro_dvae.evaluation.figures import Evaluation, ordering
from pyro_dvae.evaluation.imputation import impute
from pyro_dvae.evaluation.marginal import MAX_SUMMED_CODES, log_marginal
from pyro_dvae.evaluation.mixtures import Mixture, fit_mixture
from pyro_dvae.evaluation.observed import sums_over_codes
from pyro_dvae.evaluation.prediction import Prediction, predict
from pyro_dvae.evaluation.profile_figures import PROFILE_HEADER, Profile
from pyro_dvae.evaluation.profiles import profile
from pyro_dvae.evaluation.scoring import DatumTerms, datum_scores, datum_terms, exact_terms
from pyro_dvae.evaluation.simple import SimpleModels, independent_elements, simple_models
from pyro_dvae.evaluation.usage import ACTIVE_INFORMATION, describe_collapse

__all__ = [
    "ACTIVE_INFORMATION",
    "MAX_CODES",
    "MAX_SUMMED_CODES",
    "PROFILE_HEADER",
    "DatumTerms",
    "Evaluation",
    "Mixture",
    "Prediction",
    "Profile",
    "SimpleModels",
    "datum_scores",
    "datum_terms",
    "describe_codes",
    "describe_collapse",
    "evaluate",
    "exact_terms",
    "fit_mixture",
    "impute",
    "independent_elements",
    "log_marginal",
    "num_codes",
    "ordering",
    "predict",
    "profile",
    "simple_models",
    "sums_over_codes",
]
