"""The figures of an evaluation for people: the end of `fit`, and `evaluate`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .naming import with_options
from .tables import (
    figure,
    gaps_table,
    indented,
    latents_table,
    posteriors_table,
    simple_models_table,
)

if TYPE_CHECKING:
    from pyro_dvae import Config, EpochRecord, Evaluation
    from pyro_dvae.data import Scan
    from pyro_dvae.runs import RunInfo


_DENSITY = "a bound on a log density, in the units of the values: it may be positive"


def datum_name(event_shape: Sequence[int]) -> str:
    """What a datum is called: an image, (H, W), (1, H, W) or (3, H, W), or a row."""
    from pyro_dvae.runs import is_image

    return "image" if is_image(event_shape) else "row"


def values(config: Config, dtype: Any = None) -> str:
    """What a run's likelihood takes: "dynamic binarisation", or the likelihood and its values.

    Args:
        config: the run's settings.
        dtype: the type of the stored values. If it is given, the text says how they become those
            that the likelihood takes.
    """
    from pyro_dvae.data import describe_kind, kind_of
    from pyro_dvae.runs import own_code

    within = "" if config.range is None else f" within {config.range[0]:g},{config.range[1]:g}"
    is_own = config.likelihood in own_code(config)  # its kind is not known without its code
    if not is_own and kind_of(config.likelihood) == "bits":
        return f"{config.binarize}{within} binarisation"
    if dtype is None or is_own:
        return f"{config.likelihood} likelihood{within}"
    how = describe_kind(config.likelihood, dtype, config.range)
    return f"{config.likelihood} likelihood of {how}"


def progress_of(config: Config, epochs: Sequence[EpochRecord]) -> str:
    """How far a training has come, such as "complete, 20 of 20 epochs, and 4 of 4 of the guide".

    Args:
        config: the run's settings.
        epochs: the records of the complete epochs.
    """
    from pyro_dvae.runs import training_status

    model = [record.epoch for record in epochs if not record.of_guide]
    done = f"{model[-1] if model else 0} of {config.epochs} epochs"
    if config.guide_epochs:
        done += f", and {len(epochs) - len(model)} of {config.guide_epochs} of the guide"
    return f"{training_status(config, epochs)}, {done}"


def stored_figures(run: RunInfo, part: str) -> tuple[Evaluation | None, str]:
    """The stored figures of a run's weights; or None, and a text that says how to get them.

    Args:
        run: the run.
        part: the part of its data, such as "test".

    Raises:
        ValueError: a file of the run is damaged.
    """
    from pyro_dvae.runs import stored_evaluation

    stored = stored_evaluation(run.folder, part)
    option = "" if part == "test" else f" --split {part}"
    todo = f"run pdvae evaluate {shlex.quote(str(run.folder))}{option}"
    if stored is None:
        return None, f"no {part} figures: {todo}"
    if stored.epoch != run.epoch:
        return None, f"{part} figures of epoch {stored.epoch}, weights of {run.epoch}: {todo}"
    return stored.evaluation, ""


def scanned(found: Scan, config: Config) -> str:
    """What the scan of all data found, in one line.

    Args:
        found: the scan.
        config: the run's settings, which say whether equal rows are kept in one part.
    """
    shape = " x ".join(map(str, found.event_shape)) or "a single number"
    distinct = "" if found.num_distinct is None else f" ({found.num_distinct} distinct)"
    classes = "" if found.classes is None else f", {len(found.classes)} classes"
    duplicates = f", {found.num_duplicates:,} duplicates" if found.num_duplicates else ""
    if duplicates and config.split == "random" and not config.group_copies:
        duplicates += " (not kept in one part)"
    gaps = "none missing or infinite"
    if found.num_missing:
        gaps = f"{found.num_missing:,} values missing, none infinite"
    return (
        f"data: {found.num_data:,} rows of {shape}, {found.dtype}, {found.low:g} to "
        f"{found.high:g}{distinct}{classes}{duplicates}, {gaps}"
    )


def print_figures(
    scores: Evaluation,
    part: str,
    config: Config,
    datum: str = "image",
    posterior: str = "encoder",
) -> None:
    """Print every figure, with ± one standard error if it comes from draws.

    Args:
        scores: the figures.
        part: the part of the data, such as "test".
        config: the run's settings.
        datum: what a datum is called.
        posterior: the q(z|x) of the figures.
    """
    from pyro_dvae.evaluation import ACTIVE_INFORMATION, ordering

    errors = scores.standard_errors
    summed = "log Z estimated" if "elbo" in errors else "exact"
    how = "by draws" if "log_likelihood" in errors else summed
    how += "" if posterior == "encoder" else f", {posterior} q(z|x)"
    prior = ("D log K", -1) if config.prior == "uniform" else ("E_q log p(z)", 1)
    fit = ("BCE", -1) if config.likelihood == "bernoulli" else ("E_q log p(x|z)", 1)
    print(
        f"{part} ELBO {figure(scores, 'elbo')} nats/{datum} ({how}; {values(config)}, "
        f"{scores.num_data} {datum}s)\n"
        f"  = entropy {figure(scores, 'entropy')}{_term(scores, 'log_prior', *prior)}"
        f"{_term(scores, 'log_likelihood', *fit)}"
    )
    if scores.elbo_per_element is not None:
        print(
            f"  = {scores.elbo_per_element:.4f} nats per observed value, of which a {datum} has "
            f"{scores.observed_elements:.4g} on average"
        )
    if scores.bits_per_dimension is None:
        print(f"  ({_DENSITY})")
    if config.num_classes:
        print("  (given the label y of each: p(z) is p(z|y), and p(x) is p(x|y))")
    if scores.accuracy is not None:
        print(f"  class accuracy {scores.accuracy:.4f} (of the {datum}s with a label, by q(y|x))")
    bound = f"bound({scores.importance_samples})"
    _print_bounds(scores, bound, datum)
    print(f"  {ordering(scores)}")
    if scores.refined_elbo is not None:
        print(indented(posteriors_table(scores)))
    print(indented(gaps_table(scores, bound, is_uniform=prior[1] < 0)))
    if posterior == "encoder" and config.alpha is None and _is_far(scores):
        print(f"  {_FAR} {_TRAINED if config.guide_epochs else _NOT_TRAINED}")
    if scores.standard_errors:
        log_z = config.prior.partition(":")[0] in ("boltzmann", "rbm")
        also = ", and of the estimate of log Z where it is not summed" if log_z else ""
        print(f"  (±: one standard error, over the draws of z for these {datum}s{also})")
        if scores.annealed_data not in (None, scores.num_data):
            print(f"  (± of annealed: also over the choice of {scores.annealed_data} {datum}s)")
    if scores.simple_models is not None:
        print(f"\n{indented(simple_models_table(scores, datum))}")
    print(f"\n{indented(latents_table(scores))}")
    print(
        f"  {scores.active_latents} of {len(scores.information_per_latent)} latents active "
        f"(information of {ACTIVE_INFORMATION:g} nats or more); {scores.codes_used} codes used, "
        f"perplexity {scores.code_perplexity:.1f}"
    )


def dead_parts(
    information: Sequence[Sequence[float]], scores: Evaluation | None, config: Config
) -> tuple[str | None, str | None]:
    """Which latents have collapsed, and which categories are unused: a line each, or None.

    Args:
        information: of each latent, one row per epoch, the last one of the weights.
        scores: the figures of the weights; None where there are none.
        config: the run's settings.
    """
    from pyro_dvae.evaluation import describe_collapse, describe_unused, num_codes

    number = num_codes(config.num_latents, config.num_categories)
    unused = None
    if scores is not None and config.prior == "uniform":
        unused = describe_unused(scores.unused_categories, config.num_categories)
    collapse, unused = (
        None if line is None else with_options(line)
        for line in (describe_collapse(information, number), unused)
    )
    return collapse, unused


def _print_bounds(scores: Evaluation, bound: str, datum: str) -> None:
    """Log p(x), and the bounds on it, a line each."""
    if scores.log_marginal is None:
        print("  log p(x): not summed over all codes")
    else:
        summed = "log Z estimated" if "log_marginal" in scores.standard_errors else "exact"
        print(f"  log p(x) {figure(scores, 'log_marginal')} ({summed}, all codes)")
    if scores.importance_bound is not None:
        print(f"  {bound} {figure(scores, 'importance_bound')} (importance-weighted)")
    if scores.annealed_bound is not None:
        print(
            f"  annealed({scores.annealed_sweeps}) {figure(scores, 'annealed_bound')} (annealed "
            f"importance sampling, {scores.annealed_chains} chains, {scores.annealed_data} of the "
            f"{datum}s)"
        )


_FAR = "The encoder's q(z|x) is far from p(z|x):"
_NOT_TRAINED = (
    "pdvae fit-guide trains it alone, by the ELBO, and leaves\n  log p(x) as it is; "
    "--posterior exact uses p(z|x) in its place."
)
_TRAINED = "--posterior exact uses p(z|x) in its place."


def _is_far(scores: Evaluation) -> bool:
    from pyro_dvae.evaluation import is_far

    gap, log_p = scores.posterior_gap, scores.log_marginal
    return gap is not None and log_p is not None and is_far(gap, log_p)


def _term(scores: Evaluation, name: str, label: str, sign: int) -> str:
    return f" {'-' if sign < 0 else '+'} {label} {figure(scores, name, sign=sign)}"


def setting(value: Any) -> str:
    """The value of a setting, as the command line would take it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
