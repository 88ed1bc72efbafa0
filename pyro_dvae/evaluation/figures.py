"""The figures of a model on a data set: what they are, and how they are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, NamedTuple

from pyro_dvae.displays import html_table, number
from pyro_dvae.evaluation.simple import SimpleModels

_SHOWN_LATENTS = 20
"""Largest number of latents that a notebook's table shows."""


class _Row(NamedTuple):
    """One line of a table of figures."""

    label: str
    value: float
    error: float | None
    unit: str
    meaning: str


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Means over N data, in nats per datum unless another unit is given.

    `evaluate` returns it. A notebook shows it as a table. Several of them make a data frame:
    `pandas.DataFrame([one.to_dict(), other.to_dict()])`.
    """

    elbo: float
    """log_likelihood - kl, a lower bound on log p(x)."""
    log_likelihood: float
    """E_q[log p(x|z)]; minus the binary cross-entropy for a Bernoulli likelihood."""
    log_prior: float
    """E_q[log p(z)]; -D log K for the uniform prior."""
    entropy: float
    """-E_q[log q(z|x)], from 0 to D log K."""
    kl: float
    """KL(q(z|x) || p(z)) = -log_prior - entropy."""
    log_marginal: float | None
    """log p(x), summed over all K^D codes; None if they were not summed over."""
    importance_bound: float | None
    """E[log 1/k sum_i p(x, z_i) / q(z_i|x)], the importance-weighted bound, between the ELBO and
    log p(x) in expectation; None if it was not computed."""
    importance_samples: int | None
    """k, the draws per datum of the importance-weighted bound; None without that bound."""
    posterior_gap: float | None
    """log_marginal - elbo = KL(q(z|x) || p(z|x)), 0 if q is the posterior."""
    importance_gap: float | None
    """importance_bound - elbo."""
    remaining_gap: float | None
    """log_marginal - importance_bound, which tends to 0 as k grows."""
    bits_per_dimension: float | None
    """-elbo / (P log 2), in bits, where P is the number of elements per datum, or of those that are
    observed; None if x is continuous."""
    standard_errors: dict[str, float]
    """Name of a figure above -> its standard error.

    It is the error from the draws of z. If log Z of a Boltzmann prior is an estimate, it includes
    the error of that estimate. A figure without an entry is exact.
    """
    kl_per_latent: tuple[float, ...] | None
    """KL(q(z_d|x) || p(z_d)), D numbers; None if the latents of prior or guide are dependent."""
    information_per_latent: tuple[float, ...]
    """I(x; z_d) = KL(q(z_d|x) || mean over the data of q(z_d|x)), D numbers (Hoffman & Johnson
    2016, "ELBO surgery")."""
    perplexity_per_latent: tuple[float, ...]
    """exp of the entropy of the mean over the data of q(z_d|x), from 1 to K, D numbers."""
    active_latents: int
    """Latents with an information of at least 0.01 nats (`ACTIVE_INFORMATION`)."""
    codes_used: int
    """Different codes among the most probable code of each datum."""
    code_perplexity: float
    """exp of the entropy of how often each of these codes is used, from 1 to `codes_used`."""
    num_data: int
    """N."""
    accuracy: float | None = None
    """The share of the data with a known class whose most probable class under q(y|x) is theirs;
    None unless the model is a `SemiSupervisedVAE` and labels were given."""
    observed_elements: float | None = None
    """Mean number of observed elements per datum; None if the likelihood takes no missing ones."""
    simple_models: SimpleModels | None = None
    """Log p(x) of simple models of the same data; None if no training data were given."""
    encoder_elbo: float | None = None
    """The ELBO of the guide's q(z|x); None, as all below, if posteriors were not compared."""
    refined_elbo: float | None = None
    """The ELBO of q(z|x) after `refined_sweeps` sweeps of coordinate ascent from the guide's."""
    refined_sweeps: int | None = None
    """The number of these sweeps."""
    family_gap: float | None = None
    """log_marginal less the largest ELBO of a factorised q(z|x) that was found: what no encoder of
    a mean-field guide can reach. None if the codes were not summed over."""
    encoder_gap: float | None = None
    """This largest ELBO less `encoder_elbo`: what the encoder loses. It can be negative if the
    latents of the guide depend on each other."""
    annealed_bound: float | None = None
    """The bound of annealed importance sampling, at most log p(x) in expectation; None, as all
    below, if it was not asked for. Its standard error is also that of the choice of the data."""
    annealed_gap: float | None = None
    """annealed_bound - elbo, the mean over `annealed_data` of the data."""
    annealed_sweeps: int | None = None
    """How often each latent of a chain was updated."""
    annealed_chains: int | None = None
    """The number of chains per datum."""
    annealed_data: int | None = None
    """The number of data for which chains were run."""
    unused_categories: tuple[int, ...] | None = None
    """How many categories of each latent have less than half a datum, sum_n q(z_d = k|x_n) < 1/2, D
    numbers; None if there are fewer than 10 data per category."""

    @property
    def log_prob(self) -> float:
        """Log p(x), or the best bound on it that is known, in nats per datum."""
        if self.log_marginal is not None:
            return self.log_marginal
        return self.elbo if self.importance_bound is None else max(self.elbo, self.importance_bound)

    @property
    def bits_saved(self) -> float | None:
        """(log_prob - log p(x) of independent elements) / log 2, in bits per datum.

        None if no training data were given, or if there is no such model.
        """
        return None if self.simple_models is None else self.simple_models.bits_saved(self.log_prob)

    @property
    def elbo_per_element(self) -> float | None:
        """ELBO / observed element, in nats; None if the likelihood takes no missing elements."""
        return self.elbo / self.observed_elements if self.observed_elements else None

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, with lists in place of tuples, as `json` reads and writes them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def __repr__(self) -> str:
        rows = self._rows()
        label = max(len(row.label) for row in rows)
        texts = [number(row.value) for row in rows]
        errors = ["" if row.error is None else f"± {row.error:.2g}" for row in rows]
        value, error = max(map(len, texts)), max(map(len, errors))
        lines = [f"Evaluation of {self.num_data} data, in nats per datum:"]
        for row, text, spread in zip(rows, texts, errors, strict=True):
            unit = "" if row.unit == "nats" else f" ({row.unit})"
            lines.append(
                f"  {row.label:{label}}  {text:>{value}} {spread:{error}}  {row.meaning}{unit}"
            )
        return "\n".join([*lines, f"  {self._usage()}"])

    def _repr_html_(self) -> str:
        """Tables for a notebook: the figures, and the information of each latent."""
        figures = [
            [
                row.label,
                number(row.value),
                "exact" if row.error is None else f"± {row.error:.2g}",
                row.unit,
                row.meaning,
            ]
            for row in self._rows()
        ]
        columns = {
            "KL": self.kl_per_latent,
            "information": self.information_per_latent,
            "perplexity": self.perplexity_per_latent,
        }
        known = {name: values for name, values in columns.items() if values is not None}
        latents = [
            [f"z{latent}", *(f"{value:.3f}" for value in values)]
            for latent, values in enumerate(zip(*known.values(), strict=True), 1)
        ]
        hidden = len(latents) - _SHOWN_LATENTS
        more = f"<p>and {hidden} more latents</p>" if hidden > 0 else ""
        heads = ["latent", *(name if name == "perplexity" else f"{name} (nats)" for name in known)]
        return (
            f"<div><p><b>Evaluation of {self.num_data} data</b>, means per datum</p>"
            + html_table(
                ["figure", "mean", "standard error", "unit", "meaning"], figures, numbers=(1, 2)
            )
            + f"<p>{escape(self._usage())}</p>"
            + html_table(heads, latents[:_SHOWN_LATENTS], numbers=(1, 2, 3))
            + f"{more}</div>"
        )

    def _rows(self) -> list[_Row]:
        """The known figures, in the order in which they are shown."""
        bound = f"bound({self.importance_samples})"
        rows = [
            ("ELBO", "elbo", self.elbo, "E_q[log p(x|z)] - KL"),
            ("log-likelihood", "log_likelihood", self.log_likelihood, "E_q[log p(x|z)]"),
            ("KL", "kl", self.kl, "KL(q(z|x) || p(z))"),
            ("entropy", "entropy", self.entropy, "-E_q[log q(z|x)]"),
            (
                "ELBO per observed element",
                "elbo_per_element",
                self.elbo_per_element,
                "ELBO / observed elements",
            ),
            ("ELBO, encoder", "encoder_elbo", self.encoder_elbo, "of the encoder's q(z|x)"),
            (
                "ELBO, refined",
                "refined_elbo",
                self.refined_elbo,
                f"after {self.refined_sweeps} sweeps of coordinate ascent",
            ),
            ("log p(x)", "log_marginal", self.log_marginal, "sum over all codes"),
            (bound, "importance_bound", self.importance_bound, "importance-weighted bound"),
            (
                f"annealed({self.annealed_sweeps})",
                "annealed_bound",
                self.annealed_bound,
                f"annealed importance sampling of {self.annealed_data} data",
            ),
            ("posterior gap", "posterior_gap", self.posterior_gap, "log p(x) - ELBO"),
            ("family gap", "family_gap", self.family_gap, "log p(x) - best factorised q(z|x)"),
            ("encoder gap", "encoder_gap", self.encoder_gap, "best factorised q(z|x) - encoder"),
            ("importance gap", "importance_gap", self.importance_gap, f"{bound} - ELBO"),
            ("remaining gap", "remaining_gap", self.remaining_gap, f"log p(x) - {bound}"),
            (
                "bits per dimension",
                "bits_per_dimension",
                self.bits_per_dimension,
                "-ELBO / (P log 2)",
            ),
        ]
        errors = self.standard_errors
        if self.simple_models is not None:
            simple, meaning = self.simple_models, "beyond independent elements"
            rows += [*simple.rows(), ("bits saved", "bits_saved", self.bits_saved, meaning)]
            errors = {**errors, **simple.standard_errors}
        return [
            _Row(label, value, errors.get(name), "bits" if "bits" in name else "nats", meaning)
            for label, name, value, meaning in rows
            if value is not None
        ]

    def _usage(self) -> str:
        classes = "" if self.accuracy is None else f"; class accuracy {self.accuracy:.4f}"
        return (
            f"{self.active_latents} of {len(self.information_per_latent)} latents active; "
            f"{self.codes_used} codes used, perplexity {self.code_perplexity:.1f}{classes}"
        )
