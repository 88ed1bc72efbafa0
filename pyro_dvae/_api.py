"""The public names, each imported from where it is defined; `pyro_dvae` itself gives them."""

from pyro_dvae._version import __version__
from pyro_dvae.data import BinaryImages, Images, load_images, split
from pyro_dvae.diagnostics import GradientStatistics, gradient_statistics, reference_gradient
from pyro_dvae.elbos.arsm import ArsmELBO
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.carms import CarmsELBO
from pyro_dvae.elbos.control_variate import RelaxELBO
from pyro_dvae.elbos.coupled import DisarmELBO
from pyro_dvae.elbos.exact import EnumeratedELBO, MarginalELBO
from pyro_dvae.elbos.first_latent import SumFirstELBO
from pyro_dvae.elbos.gumbel_softmax import GumbelSoftmaxELBO, RaoGumbelELBO
from pyro_dvae.elbos.jsa import JsaELBO
from pyro_dvae.elbos.local_expectation import LocalExpectationELBO
from pyro_dvae.elbos.multi_sample import VimcoELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO, ReinMaxRaoELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO, ScoreFunctionELBO
from pyro_dvae.elbos.snapshot import SnapshotELBO
from pyro_dvae.elbos.straight_through import GappedStraightThroughELBO, StraightThroughELBO
from pyro_dvae.elbos.terms import Terms
from pyro_dvae.elbos.wake_sleep import WakeSleepELBO
from pyro_dvae.evaluation import (
    Evaluation,
    Prediction,
    Profile,
    Refined,
    RefinedGuide,
    datum_scores,
    evaluate,
    impute,
    log_marginal,
    predict,
    profile,
    refine,
)
from pyro_dvae.exporting import export_run
from pyro_dvae.guides import AutoregressiveGuide, Guide, MeanFieldGuide
from pyro_dvae.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    ContinuousBernoulli,
    CorrelatedNormal,
    Laplace,
    Likelihood,
    LogisticMixture,
    Masked,
    Mixed,
    Multinomial,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
)
from pyro_dvae.networks.convolution import ConvDecoder, ConvEncoder, grid_size
from pyro_dvae.networks.mlp import MLPBaseline, MLPControl, MLPDecoder, MLPEncoder
from pyro_dvae.priors import (
    AutoregressivePrior,
    BoltzmannPrior,
    ConditionalPrior,
    HierarchicalPrior,
    LearnedPrior,
    MixtureCodes,
    MixturePrior,
    Prior,
    UniformPrior,
    VampPrior,
)
from pyro_dvae.runs.config import Config, build_elbo, build_vae
from pyro_dvae.runs.run import Run, load_run
from pyro_dvae.runs.save import save_run
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.sequences import CausalCodes, CausalNetwork, SequentialCodes
from pyro_dvae.training.fitting import fit
from pyro_dvae.training.labelled import RepeatedLabels
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
from pyro_dvae.vae import DiscreteVAE

__all__ = [
    "ArsmELBO",
    "AutoregressiveGuide",
    "AutoregressivePrior",
    "Bernoulli",
    "Beta",
    "BinaryImages",
    "BoltzmannPrior",
    "CarmsELBO",
    "Categorical",
    "CausalCodes",
    "CausalNetwork",
    "ConditionalPrior",
    "Config",
    "ContinuousBernoulli",
    "ConvDecoder",
    "ConvEncoder",
    "CorrelatedNormal",
    "DisarmELBO",
    "DiscreteELBO",
    "DiscreteVAE",
    "EnumeratedELBO",
    "EpochRecord",
    "Evaluation",
    "GappedStraightThroughELBO",
    "GradientStatistics",
    "Guide",
    "GuideTrainer",
    "GumbelSoftmaxELBO",
    "HierarchicalPrior",
    "Images",
    "JsaELBO",
    "Laplace",
    "LearnedPrior",
    "Likelihood",
    "LocalExpectationELBO",
    "LogisticMixture",
    "MLPBaseline",
    "MLPControl",
    "MLPDecoder",
    "MLPEncoder",
    "MarginalELBO",
    "Masked",
    "MeanFieldGuide",
    "Mixed",
    "MixtureCodes",
    "MixturePrior",
    "Multinomial",
    "NegativeBinomial",
    "Normal",
    "Ordinal",
    "Poisson",
    "Prediction",
    "Prior",
    "PriorTrainer",
    "Profile",
    "RaoGumbelELBO",
    "Refined",
    "RefinedGuide",
    "ReinMaxELBO",
    "ReinMaxRaoELBO",
    "ReinforceELBO",
    "RelaxELBO",
    "RepeatedLabels",
    "RlooELBO",
    "Run",
    "ScoreFunctionELBO",
    "SemiSupervisedVAE",
    "SequentialCodes",
    "SnapshotELBO",
    "StraightThroughELBO",
    "SumFirstELBO",
    "Terms",
    "Trainer",
    "TrainingState",
    "UniformPrior",
    "VampPrior",
    "VimcoELBO",
    "WakeSleepELBO",
    "__version__",
    "build_elbo",
    "build_vae",
    "datum_scores",
    "evaluate",
    "export_run",
    "fit",
    "fit_guide",
    "fit_prior",
    "gradient_statistics",
    "grid_size",
    "impute",
    "load_images",
    "load_run",
    "log_marginal",
    "predict",
    "profile",
    "reference_gradient",
    "refine",
    "save_run",
    "split",
    "with_prior",
]
