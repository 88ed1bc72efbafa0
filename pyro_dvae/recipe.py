"""The defaults that depend on the size of the data.

The rule was found on eight of the twelve real data sets that `examples/real_data.py` runs, on one
split of each. It was then measured on all twelve, on splits that nobody had looked at;
`examples/README.md` has the figures. For 60,000 images of 28 x 28 pixels it gives the constants of
`defaults`, but for the estimator and the learning rates that go with it, which were chosen on
MNIST, Fashion-MNIST and the bundled sample; `examples/benchmarks/README.md` has these figures.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal

from pyro_dvae.codes import FEW_CODES, MAX_CODES
from pyro_dvae.defaults import ANNEALING, PATIENCE, RunSettings

FEW_VALUES = 2_000_000
"""Data of at most so many values, N P, are few. Such data are learned by heart by a model that has
weights for many more, within a few epochs."""
LEAST_STEPS = 5_000
"""The least steps in the most epochs: an epoch of 178 rows has two steps."""
LEAST_PATIENCE = 1_500
"""The least steps without a better validation ELBO before the training stops."""
LEAST_ANNEALING = 400
"""The least steps of annealing, where the most epochs are not named."""
ANNEALED_SHARE = 5
"""Annealing takes at most a fifth of the most epochs. A training that ends while beta is high, or
soon after, has not used the nats that beta has kept from it: the more of them a code can hold, the
more it loses. `examples/published/README.md` has the figures."""
WARMED_RATE = 2e-3
"""The learning rate of Adam for many data and `SnapshotELBO` or a grid. It needs a warm-up."""
REINMAX_STEPS = 300
"""The number of steps by ReinMax at the start of a grid, all others being of RLOO: they leave the
plateau, where the code tells nothing yet. The learning rate grows in the meantime."""
REINMAX_SHARE = 4
"""They are at most a quarter of all steps."""
WARMUP_STEPS = 500
"""The steps in which the learning rate grows, where they are no more than a share of all."""
WARMUP_SHARE = 50
"""With "snapshot" the learning rate grows in at most a fiftieth of the most epochs, but at least in
one: ten of 50 epochs of 48 steps gained nothing."""
REINMAX_WARMUP_SHARE = 5
"""With ReinMax it is at most a fifth."""
COOLED_STEPS = 20_000
"""The least steps of a training whose learning rate falls at its end: a shorter one has not learnt
enough by then."""
COOLDOWN_SHARE = 2
"""The learning rate falls in the last half of the most epochs."""
MOST_NUMBERS = 2**18
"""The most numbers, K^D P, for which a training step sums over all codes: some milliseconds."""
MOST_SCORED = 2**22
"""The same where one matrix product scores the data of a step under all codes."""
SCORED_BY_PRODUCT = ("bernoulli", "multinomial", "poisson")
"""The likelihoods for which `MOST_SCORED` was measured. A normal one is scored by a product too.
But on 1,000 patches of 1,728 real numbers the encoder did not follow a model that was trained by
sums: log p(x) rose from 1,850 to 2,864 nats, and the ELBO fell from 1,688 to 553."""
FEW_PER_CATEGORY = 5
"""With fewer training data per category than this, a model of one latent starts from a mixture."""
GUIDE_SHARE = 0.2
"""The epochs in which the guide alone is trained, as a share of those of the model."""
_NEEDS_BETA = ("beta", "free_bits", "annealing", "initial_beta")
_NEEDS_DRAWS = ("num_particles", "decoder_particles", "temperature", "baseline", "compile")


def is_few(num_data: int, num_elements: int) -> bool:
    """Whether data of N rows of P elements are few."""
    return num_data * num_elements <= FEW_VALUES


def training_recipe(
    num_data: int,
    num_elements: int,
    batch_size: int,
    *,
    anneals: bool,
    by_snapshot: bool = False,
    by_reinmax: bool = False,
    by_grid: bool = False,
    epochs: int | None = None,
    patience: int | Literal["auto"] | None = "auto",
    cooldown: int | None = None,
) -> dict[str, Any]:
    """The settings of the training loop: each counts epochs, but never means few steps.

    Args:
        num_data: N, the number of data to train on.
        num_elements: P, the number of elements of a datum.
        batch_size: B, the number of data points per step.
        anneals: whether beta falls, as for an ELBO that has one.
        by_snapshot: whether the estimator is `SnapshotELBO`. Its little noise allows a larger
            learning rate for many data, after a warm-up. With RLOO it gained nothing on MNIST, and
            a model of grey levels, of the bundled sample, did not learn its codes.
        by_reinmax: whether the estimator is `ReinMaxELBO`. For many data it has a warm-up too:
            with 20 x 10 codes on MNIST that gains 2.2 nats in 10 epochs (one seed), and a grid of
            49 x 64 fell below independent pixels without one (one seed of three). Where an epoch
            has few steps it takes several: on the bundled sample, 50 epochs of 48 steps, 20 x 10
            gains 2 nats by 7 epochs or 11 in place of 1 (three seeds).
        by_grid: whether RLOO trains a network whose latents share their categories, such as
            "conv-grid", with more codes than can be summed. For many data it has the larger
            learning rate too, no annealing, and begins with steps of ReinMax. The rate grows during
            these, also where they take several epochs: with a warm-up of one epoch of 102 steps,
            one of three seeds lost all latents of colour patches.
        epochs: the most epochs, if the user names them; None by the rule.
        patience: the patience, if the user names one; None if it is never to stop early. "auto" by
            the rule.
        cooldown: the epochs of the cool-down, if the user names them; None by the rule.

    Returns:
        `epochs`, `patience`, `averaging`, `annealing`, `learning_rate`, `warmup`, `cooldown` and
        `reinmax_steps`.
    """
    steps = max(1, math.ceil(num_data / max(1, batch_size)))

    def epochs_of(least: int, usual: int) -> int:
        return max(usual, math.ceil(least / steps))

    averaged = min(1_000, max(100, 2 * steps))
    few = is_few(num_data, num_elements)
    most = epochs_of(LEAST_STEPS, RunSettings.epochs) if epochs is None else epochs
    if few:
        by_snapshot = by_reinmax = by_grid = False
    rate, warmup, falls = 3e-3 if few else RunSettings.learning_rate, 0, 0
    if by_snapshot or by_grid:
        rate = WARMED_RATE
    first = min(REINMAX_STEPS, steps * most // REINMAX_SHARE) if by_grid else 0
    if by_grid:
        warmup = max(1, math.ceil(first / steps))
    elif by_snapshot or by_reinmax:
        share = WARMUP_SHARE if by_snapshot else REINMAX_WARMUP_SHARE
        warmup = max(1, min(math.ceil(WARMUP_STEPS / steps), most // share))
    if by_snapshot and steps * most >= COOLED_STEPS and patience in ("auto", None):
        falls = most // COOLDOWN_SHARE
    cooldown = falls if cooldown is None else cooldown
    if patience == "auto":
        # The ELBO is best at the end of a cool-down, which no early end is to cut off.
        patience = None if cooldown else epochs_of(LEAST_PATIENCE, PATIENCE)
    annealing = min(epochs_of(LEAST_ANNEALING, ANNEALING), most // ANNEALED_SHARE)
    return {
        "epochs": most,
        "patience": patience,
        # The average is over about two epochs, and over 100 to 1,000 steps.
        "averaging": min(RunSettings.averaging, round(1 - 1 / averaged, 6)),
        "annealing": annealing if anneals and not by_grid else 0,
        "learning_rate": rate,
        "warmup": warmup,
        "cooldown": cooldown,
        "reinmax_steps": first,
    }


def model_recipe(num_data: int, num_elements: int, named: Collection[str]) -> dict[str, Any]:
    """The settings of the model and of the estimator for few data; nothing for more.

    A code of few latents lets a step sum over all codes. So the gradient of log p(x) itself is
    exact, no latent collapses, and the networks of 128 hidden units may leave 30 % of them out.

    Args:
        num_data: N, the number of data to train on.
        num_elements: P, the number of elements of a datum.
        named: the settings that the user names, which win.

    Returns:
        Settings of `Config`, by name; none of them is named.
    """
    if not is_few(num_data, num_elements):
        return {}
    found: dict[str, Any] = {}
    if not {"num_latents", "num_categories"} & set(named):
        found |= {"num_latents": 2, "num_categories": 16}
    if not {"network", "encoder", "decoder", "hidden"} & set(named):
        found |= {"hidden": (128,), "dropout": 0.3}
    return {name: value for name, value in found.items() if name not in named}


def estimator_recipe(
    num_data: int,
    num_elements: int,
    num_codes: int,
    named: Collection[str],
    *,
    by_product: bool,
    by_snapshot: bool,
    by_grid: bool = False,
) -> dict[str, Any]:
    """The estimator, and the prior, by the size of the data and of the code.

    Few data with few codes are trained by sums over all codes. Many data with few codes, up to
    4,096, are trained by RLOO with an earlier model as control variate, "snapshot"; for MNIST with
    4 latents of 8 categories it is 1.3 nats ahead of RLOO after 50 epochs. For many data with more
    codes than can be summed (`MAX_CODES`), it is ReinMax: the variance of a score function grows
    with the number of latents, and the bias of ReinMax costs less. With 20 latents of 10 categories
    on MNIST it is 6 nats ahead of RLOO after 50 epochs, in half of the time. But where the latents
    of a grid share their categories, the bias costs more, and it is RLOO with two draws, of which
    the decoder is differentiated at one. The figures are in `examples/benchmarks/README.md` and
    `examples/published/README.md`. All else is left to the default, RLOO.

    Args:
        num_data: N, the number of data to train on.
        num_elements: P, the number of elements of a datum.
        num_codes: K^D.
        named: the settings that the user names, which win. One of an estimator that has a beta or
            draws is left to such an estimator.
        by_product: whether a step scores its data under all codes by one matrix product in single
            precision, as for bits and counts, a mean-field guide, and a uniform or learned prior.
        by_snapshot: whether the model is one that "snapshot" was measured with: of bits without
            gaps, and else as for `by_product`.
        by_grid: whether the network is one whose latents share their categories, with a mean-field
            guide and a uniform or learned prior.

    Returns:
        Settings of `Config`, by name; none of them is named.
    """
    if not is_few(num_data, num_elements):
        if {"estimator", "baseline"} & set(named):
            return {}
        if num_codes > MAX_CODES:
            if not by_grid or "num_particles" in named:  # which may be 1
                return {"estimator": "reinmax"}
            found = {"estimator": "rloo", "num_particles": 2, "decoder_particles": 1}
            return {name: value for name, value in found.items() if name not in named}
        fits = by_snapshot and num_codes <= FEW_CODES and num_codes * num_elements <= MOST_SCORED
        return {"estimator": "snapshot"} if fits and "decoder_particles" not in named else {}
    few = num_codes * num_elements <= (MOST_SCORED if by_product else MOST_NUMBERS)
    if not few or {"estimator", *_NEEDS_BETA, *_NEEDS_DRAWS} & set(named):
        return {}
    found = {"estimator": "marginal", "prior": "learned"}
    return {name: value for name, value in found.items() if name not in named}


def guide_recipe(
    num_data: int, num_elements: int, num_codes: int, epochs: int, *, by_marginal: bool
) -> int:
    """The setting `guide_epochs`: how long the guide is trained alone, after the model.

    The objective log p(x) of the estimator "marginal" does not contain the guide, which only
    follows p(z|x). So its ELBO is far below log p(x), until the guide is trained by the ELBO.

    Args:
        num_data: N, the number of data to train on.
        num_elements: P, the number of elements of a datum.
        num_codes: K^D.
        epochs: the most epochs of the model.
        by_marginal: whether the objective of the model is log p(x).

    Returns:
        A number of epochs; 0 for more data or codes, and for other objectives.
    """
    few = is_few(num_data, num_elements) and num_codes * num_elements <= MOST_SCORED
    return math.ceil(GUIDE_SHARE * epochs) if few and by_marginal else 0


def starts_from_mixture(num_data: int, num_elements: int, num_categories: int) -> bool:
    """Whether a model of one latent starts from a mixture, by the size of few data.

    With few data per category, the networks learn the training data by heart before each category
    has found its part of them. With more, a random start is as good or slightly better.

    Args:
        num_data: N, the number of data to train on.
        num_elements: P, the number of elements of a datum.
        num_categories: K.
    """
    return is_few(num_data, num_elements) and num_data < FEW_PER_CATEGORY * num_categories
