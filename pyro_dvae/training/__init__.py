"""Training: the loop, the gradient of a step, its state, and the second stage."""

from pyro_dvae.processes import ProcessError
from pyro_dvae.training.batches import Batch, TrainingData
from pyro_dvae.training.fitting import fit
from pyro_dvae.training.labelled import RepeatedLabels
from pyro_dvae.training.mixture_start import start_from_mixture
from pyro_dvae.training.progress import Progress
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.resume import TrainingState
from pyro_dvae.training.second_stage import (
    GuideTrainer,
    PriorTrainer,
    fit_guide,
    fit_prior,
    with_prior,
)
from pyro_dvae.training.trainer import Trainer

__all__ = [
    "Batch",
    "EpochRecord",
    "GuideTrainer",
    "PriorTrainer",
    "ProcessError",
    "Progress",
    "RepeatedLabels",
    "Trainer",
    "TrainingData",
    "TrainingState",
    "fit",
    "fit_guide",
    "fit_prior",
    "start_from_mixture",
    "with_prior",
]
