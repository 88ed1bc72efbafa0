"""Evaluation of a model on data: the ELBO, tighter bounds, log p(x), and the use of codes."""

from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.evaluation.annealed import AnnealedBound, annealed_bound
from pyro_dvae.evaluation.anomaly import (
    AnomalyScore,
    anomaly_scorer,
    anomaly_scores,
    excess_log_probs,
    log_probs,
)
from pyro_dvae.evaluation.blocks import found_posteriors, posterior_blocks, posterior_sections
from pyro_dvae.evaluation.evaluation import evaluate, evaluate_with_terms
from pyro_dvae.evaluation.figures import Evaluation
from pyro_dvae.evaluation.groups import LEVEL, GroupFigures, compare_groups
from pyro_dvae.evaluation.imputation import impute, impute_blocks
from pyro_dvae.evaluation.incomplete import sums_over_codes
from pyro_dvae.evaluation.inference import (
    SWEEPS,
    Inference,
    PosteriorName,
    inference_of,
)
from pyro_dvae.evaluation.marginal import MAX_SUMMED_CODES, log_marginal
from pyro_dvae.evaluation.mixtures import Mixture, fit_mixture
from pyro_dvae.evaluation.ordering import is_far, ordering
from pyro_dvae.evaluation.plan import sums_cheaply
from pyro_dvae.evaluation.prediction import Prediction, predict
from pyro_dvae.evaluation.profile_figures import PROFILE_HEADER, Profile
from pyro_dvae.evaluation.profiles import profile
from pyro_dvae.evaluation.refinement import Refined, RefinedGuide, refine
from pyro_dvae.evaluation.scoring import datum_scores, datum_terms, exact_terms
from pyro_dvae.evaluation.simple import SimpleModels, independent_elements, simple_models
from pyro_dvae.evaluation.surprise import Surprise, conditional_surprise, explain
from pyro_dvae.evaluation.terms import DatumTerms
from pyro_dvae.evaluation.usage import ACTIVE_INFORMATION, describe_collapse, describe_unused

__all__ = [
    "ACTIVE_INFORMATION",
    "LEVEL",
    "MAX_CODES",
    "MAX_SUMMED_CODES",
    "PROFILE_HEADER",
    "SWEEPS",
    "AnnealedBound",
    "AnomalyScore",
    "DatumTerms",
    "Evaluation",
    "GroupFigures",
    "Inference",
    "Mixture",
    "PosteriorName",
    "Prediction",
    "Profile",
    "Refined",
    "RefinedGuide",
    "SimpleModels",
    "Surprise",
    "annealed_bound",
    "anomaly_scorer",
    "anomaly_scores",
    "compare_groups",
    "conditional_surprise",
    "datum_scores",
    "datum_terms",
    "describe_codes",
    "describe_collapse",
    "describe_unused",
    "evaluate",
    "evaluate_with_terms",
    "exact_terms",
    "excess_log_probs",
    "explain",
    "fit_mixture",
    "found_posteriors",
    "impute",
    "impute_blocks",
    "independent_elements",
    "inference_of",
    "is_far",
    "log_marginal",
    "log_probs",
    "num_codes",
    "ordering",
    "posterior_blocks",
    "posterior_sections",
    "predict",
    "profile",
    "refine",
    "simple_models",
    "sums_cheaply",
    "sums_over_codes",
]
