"""Every setting of a run, with its meaning and its default: each default is written here alone.

`Config`, `Trainer`, `fit`, `fit_prior` and the options of the command line take them from here.
Those that depend on the size of the data are in `recipe`. Nothing is imported here, so that the
command line shows the defaults without waiting for torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ANNEALING = 10
"""The number of epochs of annealing, where the ELBO has a beta and the user names no number."""
PATIENCE = 10
"""The number of epochs without a better validation ELBO before the training stops."""
VALIDATION_SHARE = 0.05
"""The share of the training data that is kept apart for validation."""
TEST_SHARE = 0.1
"""The share of the data that is kept apart for testing, where the data have no test part and the
user names no amount."""
LEAST_VALIDATION = 200
"""The least number of data points for validation, where the user names no amount, but no more than
a fifth of the data: fewer would tell a good epoch from a bad one by luck."""
MOST_KEPT_ROWS = 10_000
"""The most data points that are kept apart, where the user names no amount."""
MOST_KEPT_BYTES = 2**26
"""The most memory that they may take as float32, 64 MiB, where the user names no amount."""
ANOMALY_SCORE: Literal["log-prob"] = "log-prob"
"""The score that data are ordered by, the most unusual first; see `anomaly_scores`. In
`examples/anomaly.py`, on twelve data sets, it was the best of ours together with "conditional"."""
LABELLED_SHARE = 0.1
"""The least share of the data of an epoch that have a label, for a new model with classes."""
STARTS = ("random", "mixture")
"""What `start` may be."""
LONG_RUN = 20_000
"""The number of training steps from which on compiling repays: it takes seconds, and saves a tenth
of each step."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of the training loop, which a model of any kind has."""

    epochs: int = 50
    """The most epochs to train."""
    guide_epochs: int = 0
    """The most further epochs, after those of the model, in which the guide q(z|x) alone is trained
    by the ELBO. Decoder, likelihood and prior stay fixed, so that log p(x) does not change."""
    patience: int | None = PATIENCE
    """Training stops after this many epochs without a better validation ELBO. None trains all
    epochs, as does a run without validation data."""
    batch_size: int = 100
    """B, the number of data points per step."""
    learning_rate: float = 1e-3
    """The learning rate of Adam."""
    averaging: float = 0.999
    """The decay of the average of the weights, which is what is validated and kept. 0 keeps the
    weights themselves."""
    annealing: int | None = None
    """The number of epochs over which beta, the weight of the KL term, falls linearly from
    `initial_beta` to the ELBO's own. None means 10 epochs, or 0 for an ELBO without beta. A run and
    `fit` take at most a fifth of the most epochs; see `recipe`."""
    initial_beta: float = 4.0
    """The weight of the KL term before the first step, where it is annealed."""
    warmup: int = 0
    """The number of epochs over which the learning rate grows linearly from 0 to its value."""
    cooldown: int = 0
    """The number of last epochs over which the learning rate falls linearly to 0."""
    reinmax_steps: int = 0
    """The number of first steps whose gradient is that of ReinMax, whatever the estimator."""
    validation: float | str = VALIDATION_SHARE
    """What is kept apart of the training data for the validation ELBO: a share (below 1) or a
    number of them, 0 for none, or the path of a file with other data. Where it is left out, at
    least 200 data points or a fifth are kept, and at most 10,000 or 64 MiB."""
    compile: bool | None = None
    """Whether the gradient of a full batch is computed by one compiled graph. None compiles on
    the CPU, where that is possible and at least 20,000 steps are to come."""
    bfloat16: bool = False
    """Whether the encoder and the decoder compute in bfloat16 in training steps."""
    start: str | None = None
    """Where the weights of a new model come from: "random", or "mixture" for those with which a
    model of one latent is a mixture fitted by EM. None means a mixture for fewer than 5 training
    data per category, where the objective is log p(x); see `start_from_mixture`."""
    seed: int = 0
    """The seed of the model and its training: of all that is random, except for the data."""
    split_seed: int = 0
    """The seed of the data: of the choice of the rows that are kept apart, and of their one draw
    as zeros and ones. Two runs of other seeds can be compared, for they have it in common."""


@dataclass(frozen=True)
class RunSettings(TrainingSettings):
    """All settings of a run: the data, the model, the estimator, and the training."""

    binarize: str = "dynamic"
    """How grey values become zeros and ones: one of `data.POLICIES`."""
    range: tuple[float, float] | None = None
    """The two stored values that stand for 0 and 1. None means 0 and 255 for uint8 data."""
    test: float | str | None = None
    """What is kept apart of the data for testing: a share, a number, or the path of a file, as for
    `validation`. None means the test part that the data set has."""
    split: str = "random"
    """How rows are kept apart: "random"; or "last", which keeps the last rows apart, or those of
    the latest times where the data have times."""
    group_copies: bool | None = None
    """Whether rows that are equal to one another are kept in one part, where the split is random.
    None means that they are, unless rows of such values are equal by chance."""
    drop_copies: bool = False
    """Whether training rows that are in validation or test data of their own too are left out."""
    num_latents: int = 4
    """D, the number of categorical variables in a code."""
    num_categories: int = 8
    """K, the number of categories of each of them."""
    prior: str = "uniform"
    """p(z), by its name in `priors.PRIORS`, with an argument after a colon where it takes one:
    "mixture:20"; or a prior of the user's own, as "module:factory"."""
    likelihood: str = "bernoulli"
    """p(x|z), by its name in `likelihoods.LIKELIHOODS`, as for `prior`."""
    guide: str = "mean-field"
    """q(z|x), by its name in `guides.GUIDES`, as for `prior`."""
    network: str = "mlp"
    """The encoder and the decoder, by their name in `parts.NETWORKS`, as for `prior`."""
    encoder: str | None = None
    """An encoder of the user's own in place of the network's, as "module:factory"."""
    decoder: str | None = None
    """A decoder of the user's own in place of the network's, as "module:factory"."""
    num_classes: int = 0
    """The number of classes of the labels; 0 for a prior that knows no labels."""
    alpha: float | None = None
    """If it is given, the first latent is the class of a datum, and is observed where the data
    have a label: the model is a `SemiSupervisedVAE`. The weight of log q(y|x) per labelled datum
    is alpha N / L, where L of the N training data have a label. None is a model without classes."""
    labelled_share: float | None = None
    """The least share of the data of an epoch that have a label, where `alpha` is given: with few
    labels, the data that have one stand in an epoch several times. Data that are read in blocks
    have no copies. None means 0.1 for a new run with `alpha`, else no copies."""
    hidden: tuple[int, ...] = (512, 256)
    """The widths of the MLP encoder's hidden layers. The decoder has the same in reverse order."""
    dropout: float = 0.0
    """The share of the units of each hidden layer of the MLPs that a training step leaves out."""
    estimator: str = "rloo"
    """How the gradient is estimated, by a name in `estimators.ESTIMATORS`; or an estimator of the
    user's own, as "module:factory"."""
    num_particles: int | None = None
    """S, the number of draws of z per data point and step. None means the estimator's default."""
    decoder_particles: int | None = None
    """The number of these draws at which the estimator "rloo" differentiates the decoder. None
    means all of them. Fewer take less time per step, and a few more steps."""
    baseline: str = "running_mean"
    """The baseline of the estimator "reinforce": "none", "running_mean", or a number of nats."""
    temperature: float | None = None
    """The temperature of a relaxation. None means the estimator's default."""
    beta: float = 1.0
    """The weight of the KL term in the gradient. No figure that is reported depends on it."""
    free_bits: float = 0.0
    """The gradient leaves out the KL of a latent below this number of nats. No figure that is
    reported depends on it."""
