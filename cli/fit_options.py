"""The options of model, training and run that `pdvae fit` alone has. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyro_dvae.defaults import ANNEALING, LABELLED_SHARE, LONG_RUN

from .options import DEFAULTS, model, run_option, training

NewRunArgument = Annotated[
    Path | None,
    typer.Argument(
        help="The new folder for the run. If left out: a folder in runs/ whose name tells the "
        "data, D, K and the estimator, such as runs/mnist-d4k8-snapshot-1."
    ),
]

# --- Model ---

LikelihoodOption = Annotated[
    str,
    model(
        metavar="NAME",
        help="p(x|z), which depends on the kind of values that the data have: bernoulli, "
        "continuous-bernoulli, beta, categorical, ordinal, logistic-mixture, normal, "
        "correlated-normal, laplace, poisson, negative-binomial, multinomial or mixed, "
        "masked:NAME for data with missing values, or MODULE:FACTORY for your own. 'pdvae data' "
        "says which can model your data. The README of pyro_dvae/likelihoods explains them.",
    ),
]
GuideOption = Annotated[
    str,
    model(
        metavar="NAME",
        help="q(z|x), the probability of a code given a datum: mean-field, in which the latents "
        "are independent; autoregressive, in which each depends on those before it; or "
        "MODULE:FACTORY for your own.",
    ),
]
NetworkOption = Annotated[
    str,
    model(
        metavar="NAME",
        help="The encoder and the decoder: mlp, which has fully connected layers; conv, which has "
        "convolutions; or conv-grid, which has convolutions and one latent per position of "
        "their last feature map. The README of pyro_dvae/networks explains them.",
    ),
]
EncoderOption = Annotated[
    str | None,
    model(
        metavar="MODULE:FACTORY",
        help="An encoder of your own in place of the network's. The module is imported, which "
        "runs its code.",
    ),
]
DecoderOption = Annotated[
    str | None,
    model(
        metavar="MODULE:FACTORY",
        help="A decoder of your own in place of the network's. The module is imported, which "
        "runs its code.",
    ),
]
HIDDEN = ",".join(map(str, DEFAULTS.hidden))
"""The default of --hidden."""
HiddenOption = Annotated[
    str,
    model(
        metavar="WIDTHS",
        help="The widths of the hidden layers of the mlp encoder, with commas between them. The "
        "decoder has the same layers in reverse order.",
    ),
]
AlphaOption = Annotated[
    float | None,
    model(
        help="Learn the classes from labels that some of the data have: the first latent is the "
        "class. The value is the weight of the loss of the classes; try 1. It needs labels and as "
        "many --categories as there are classes. If left out: labels play no part."
    ),
]
LabelledShareOption = Annotated[
    float | None,
    model(
        help="With --alpha and few labels, the data that have a label stand in an epoch several "
        f"times, so that at least this share of it has one. 0 makes no copies. If left out: "
        f"{LABELLED_SHARE}."
    ),
]
DropoutOption = Annotated[
    float,
    model(
        help="The share of the units of each hidden layer of the mlp that a training step leaves "
        "out, so that a small data set is not learned by heart."
    ),
]

# --- Training ---

GuideEpochsOption = Annotated[
    int,
    training(
        help="The largest number of further epochs in which the encoder alone is trained, by the "
        "ELBO. Decoder and prior stay as they are, and so does log p(x). If left out: a fifth of "
        "--epochs for the estimator marginal on few data, else 0."
    ),
]
EstimatorOption = Annotated[
    str,
    training(
        metavar="NAME",
        help="How the gradient of the ELBO is estimated: trace (Pyro's Trace_ELBO), reinforce, "
        "nvil, rloo, snapshot, disarm, carms, arsm, local-expectation, sum-first, rebar, relax, "
        "vimco, rws, jsa, straight-through, gumbel-softmax, st-gumbel, rao-gumbel, gapped-st, "
        "reinmax, reinmax-rao, exact, marginal, or MODULE:FACTORY for your own. If left out: "
        "marginal for few data with few codes; for many data, snapshot with at most 4,096 codes "
        "and the parts that are the defaults, reinmax with more than 65,536 codes, but "
        "for --network conv-grid; else rloo. The README of pyro_dvae/elbos explains them.",
    ),
]
ParticlesOption = Annotated[
    int | None,
    training(
        "--particles",
        help="S, the number of draws of z per datum and step. If left out: 4 for rloo, "
        "carms, vimco, rws and jsa, 2 for snapshot and sum-first, and 1 for all others. Where "
        "--estimator is left out too, rloo has 2 for many data, --network conv-grid and more than "
        "65,536 codes.",
    ),
]
DecoderParticlesOption = Annotated[
    int | None,
    training(
        help="At how many of its draws the estimator rloo or snapshot differentiates the decoder. "
        "Fewer take less time per step, where the guide is mean-field and the prior uniform or "
        "learned. If left out: all."
    ),
]
TemperatureOption = Annotated[
    float | None,
    training(
        help="The temperature of the softmax, for an estimator that has one. If left out: the "
        "default of the estimator."
    ),
]
BaselineOption = Annotated[
    str,
    training(
        help="The baseline of the estimator reinforce, which lowers the variance of its gradient: "
        "none, running_mean, or a number of nats."
    ),
]
BetaOption = Annotated[
    float,
    training(
        help="The weight of the KL term in the gradient. No figure that is reported depends on it."
    ),
]
AnnealingOption = Annotated[
    int | None,
    training(
        help="The number of epochs over which beta falls from --initial-beta to --beta. If left "
        f"out: {ANNEALING}, but at most a fifth of --epochs, or "
        "0 for the estimators trace and marginal, which have no beta, and for rloo where "
        "--reinmax-steps is 300 by default."
    ),
]
InitialBetaOption = Annotated[
    float,
    training(help="The initial value of beta. It falls to --beta over --annealing epochs."),
]
WarmupOption = Annotated[
    int,
    training(
        help="The number of epochs over which the learning rate grows linearly from 0 to --lr. If "
        "left out: 0. With many data: for reinmax as many as make 500 steps, at most a fifth of "
        "--epochs; for snapshot the same, at most a fiftieth; where --reinmax-steps is 300 by "
        "default, as long as these steps last; in all three at least 1.",
        show_default=False,
    ),
]
CooldownOption = Annotated[
    int,
    training(
        help="The number of last epochs over which the learning rate falls linearly to 0. A run "
        "that is resumed for more epochs goes back to --lr first. If left out: 0; but half of "
        "--epochs for many data, the estimator snapshot and 20,000 steps or more, unless "
        "--patience is named.",
        show_default=False,
    ),
]
ReinmaxStepsOption = Annotated[
    int,
    training(
        help="The number of first steps whose gradient is that of the estimator reinmax, whatever "
        "--estimator says: it leaves the plateau at the start sooner. If left out: 0; but for many "
        "data, --network conv-grid, more than 65,536 codes and the estimator rloo 300, at most a "
        "quarter of all steps.",
        show_default=False,
    ),
]
FreeBitsOption = Annotated[
    float,
    training(
        help="A number of nats. The gradient leaves out the KL of each latent whose KL is below "
        "it. No figure that is reported depends on it."
    ),
]
PatienceOption = Annotated[
    int,
    training(
        help="The training stops after this many epochs without a better validation ELBO. With 0 "
        "it never stops early. If left out: 0 where the learning rate falls in the last epochs, "
        "else 10, or as many as make 1,500 steps.",
        show_default=False,
    ),
]
LearningRateOption = Annotated[
    float,
    training(
        "--lr",
        help="The learning rate of the optimiser, which is Adam. If left out: 0.003 for few data; "
        "else 0.002 for the estimator snapshot, and for rloo where --reinmax-steps is 300 by "
        "default, and 0.001 for others.",
        show_default=False,
    ),
]
AveragingOption = Annotated[
    float,
    training(
        help="The decay, per step, of the running average of the weights. The average is what is "
        "validated and kept. 0 keeps the weights themselves."
    ),
]
CompileOption = Annotated[
    bool | None,
    training(
        "--compile/--no-compile",
        help="Compile the computation of the gradient. This takes some seconds, and then makes "
        "each step faster. If left out: compile where it is possible, on the CPU, if the run may "
        f"take {LONG_RUN:,} steps or more.",
    ),
]
Bfloat16Option = Annotated[
    bool,
    training(
        "--bfloat16",
        help="Compute the encoder and the decoder in bfloat16 in training steps. All figures are "
        "computed in float32.",
    ),
]

# --- Run ---

ResumeOption = Annotated[
    Path | None,
    run_option(
        help="The folder of a run to continue. It keeps its settings; only --epochs may be larger."
    ),
]
MaxTimeOption = Annotated[
    str | None,
    run_option(
        metavar="[D-]H:MM:SS",
        help="Save the run and stop after this time, with exit status 75. Continue with --resume.",
        show_default=False,
    ),
]
LogEveryOption = Annotated[
    int,
    run_option(
        help="The number of steps between further lines in metrics.jsonl. With 0 there is only "
        "one line per epoch."
    ),
]
TrackOption = Annotated[
    list[str] | None,
    run_option(
        metavar="NAME",
        help="Tell a tracker of each epoch too: tensorboard, which writes event files into the run "
        "folder; mlflow, which logs to the server or database of MLFLOW_TRACKING_URI; or "
        "MODULE:FACTORY for your own, whose code is run. The option may be given several times. "
        "A tracker that fails is left out, and the training goes on.",
        show_default=False,
    ),
]
TensorboardOption = Annotated[
    bool,
    run_option(
        "--tensorboard",
        help="Write event files for TensorBoard too. The package tensorboard must be installed.",
    ),
]
