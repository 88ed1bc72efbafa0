"""Codes and scores of data, block by block, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.displays import html_fields
from pyro_dvae.evaluation import Inference, datum_terms, posterior_sections
from pyro_dvae.posteriors import Posterior
from pyro_dvae.processes import in_turn
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.rows import PreparedRows, model_labels
from pyro_dvae.vae import DiscreteVAE

Bound = Literal["elbo", "importance", "exact"]
"""What data are scored by."""


def encode_blocks(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    *,
    probabilities: bool = False,
    inference: Inference | None = None,
    together: bool = False,
) -> Iterator[Tensor]:
    """The most probable code of each datum, or all of q(z|x), block by block on the CPU.

    Args:
        vae: the model.
        x: (N, *event_shape), what the likelihood takes: a tensor, or what serves rows by slices.
        labels: (N,) of `posterior_labels`; None if there are none.
        probabilities: yield the probabilities of the categories in place of codes.
        inference: how q(z|x) is found; None for the guide's.
        together: whether all processes of the process group call this with the same arguments. Each
            then computes its part of the blocks, and gets all of them.

    Yields:
        (B, D) categories 0 to K - 1, int64; or (B, D, K) probabilities, float32.
    """
    x = x.to(next(vae.parameters()))

    def shown(posterior: Posterior) -> Tensor:
        return (posterior.marginals().exp().float() if probabilities else posterior.mode()).cpu()

    num, section = posterior_sections(vae, x, labels, inference)

    def computed(number: int) -> list[Tensor]:
        return [shown(posterior) for posterior in section(number)]

    for blocks in in_turn(computed, num, together=together):
        yield from blocks


def posterior_labels(
    vae: DiscreteVAE, config: Config, rows: PreparedRows, inference: Inference
) -> Tensor | None:
    """The labels that q(z|x) depends on, on the model's device; None if there are none.

    Args:
        vae: the model.
        config: the run's settings.
        rows: the data.
        inference: how q(z|x) is found.

    Raises:
        ValueError: p(z) is conditional on labels, which the posterior needs and the data lack.
    """
    if inference.posterior == "encoder" or not vae.takes_labels:
        return None
    labels = model_labels(config, rows.labels, rows.name)
    return None if labels is None else labels.to(next(vae.parameters()).device)


class Scores(NamedTuple):
    """A score of each of N data, in nats."""

    values: Tensor
    """(N,) on the CPU."""
    variances: Tensor | None
    """(N,) of the estimates over the draws; None where nothing is drawn."""
    prior_error: float
    """Standard error of log Z, which moves all scores alike; 0 where log Z is known."""

    def _repr_html_(self) -> str:
        """What it holds, as a table for a notebook."""
        return html_fields(self, f"Scores of {len(self.values)} data, in nats")


def score_rows(
    vae: DiscreteVAE,
    config: Config,
    rows: PreparedRows,
    bound: Bound = "elbo",
    *,
    importance_samples: int = 100,
    seed: int | None = None,
    inference: Inference | None = None,
    together: bool = False,
) -> Scores:
    """The ELBO, the importance-weighted bound or log p(x) of each datum, in nats.

    Args:
        vae: the model.
        config: the run's settings.
        rows: the data.
        bound: "elbo"; "importance" for the importance-weighted bound; or "exact" for log p(x).
        importance_samples: k, the codes drawn per datum for the importance-weighted bound.
        seed: of the draws; None for the run's.
        inference: how q(z|x) is found; None for the guide's. Log p(x) does not depend on it.
        together: whether all processes of the process group call this with the same arguments. Each
            then computes its part of the data, and gets all scores.

    Raises:
        ValueError: the model takes labels, and does not get them; or there are too many codes for
            the exact log p(x).
    """
    names = {"elbo": "elbo", "importance": "importance_bound", "exact": "log_marginal"}
    one_of("bound", bound, names)
    weight = next(vae.parameters())
    labels = model_labels(config, rows.labels, rows.name)
    terms = datum_terms(
        vae,
        rows.x.to(weight),
        None if labels is None else labels.to(weight.device),
        exact=True if bound == "exact" else None,
        importance_samples=importance_samples if bound == "importance" else None,
        num_samples=16,
        batch_size=256,
        seed=config.seed if seed is None else seed,
        inference=inference,
        together=together,
    )
    known = {
        "elbo": terms.elbo,
        "importance_bound": terms.importance_bound,
        "log_marginal": terms.log_marginal,
    }
    values, variances = known[names[bound]], terms.variances.get(names[bound])
    assert values is not None
    return Scores(values.cpu(), None if variances is None else variances.cpu(), terms.prior_error)


def refuse_unused(bound: Bound | None, by: str | None) -> None:
    """Raise a ValueError if a posterior is named for a score that does not depend on it.

    Args:
        bound: the bound that data are scored by, or None.
        by: the score of `anomaly_scores`, or None.
    """
    if by is not None or bound == "exact":
        score = f"bound={bound!r}" if by is None else f"by={by!r}"
        raise ValueError(
            f"Expected bound='elbo' or bound='importance' with posterior=... or refine=...; got "
            f"{score}, which does not take one. Leave it out."
        )
