"""Evaluation: exact figures and bounds of a model on data."""

from pyro_dvae.evaluation.evaluation import Evaluation, datum_scores, evaluate
from pyro_dvae.evaluation.marginal import log_marginal

__all__ = ["Evaluation", "datum_scores", "evaluate", "log_marginal"]
