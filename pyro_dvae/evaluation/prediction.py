"""`predict`: one column of a table, given the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import ROWS
from pyro_dvae.displays import html_table, number
from pyro_dvae.evaluation.imputation import level_log_probs, level_numbers
from pyro_dvae.evaluation.incomplete import codes_to_draw, incomplete
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.observed import ObservedPosterior
from pyro_dvae.streams import RandomStream

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


class Prediction(NamedTuple):
    """One column c of N rows, predicted from the other columns r: p(x_c|x_r)."""

    values: Tensor
    """(N,) what the rows hold in the column; NaN where that is missing."""
    log_prob: Tensor
    """(N,) log p(x_c|x_r) of these values in nats, a density for real numbers; NaN where the value
    is missing."""
    mean: Tensor
    """(N,) E[x_c|x_r]."""
    probabilities: Tensor | None
    """(N, L) p(x_c = l|x_r) of each level l, of zeros and ones too; None for other numbers."""

    @property
    def best(self) -> Tensor:
        """(N,) the most probable level; the mean where there are no levels."""
        return self.mean if self.probabilities is None else self.probabilities.argmax(-1)

    @property
    def log_score(self) -> float:
        """Mean of `log_prob` over the values that are there, in nats per row."""
        return self.log_prob.nanmean().item()

    @property
    def accuracy(self) -> float | None:
        """Share of the values that are the most probable level; None where there are no levels."""
        if self.probabilities is None:
            return None
        known = ~self.values.isnan()
        return (self.best == self.values)[known].double().mean().item()

    @property
    def error(self) -> float:
        """Root mean square of the value minus the mean, over the values that are there."""
        return (self.values - self.mean).square().nanmean().sqrt().item()

    def __repr__(self) -> str:
        known = int((~self.values.isnan()).sum())
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.4f}, "
        return (
            f"Prediction of {len(self.values)} rows, {known} with a value: {accuracy}log score "
            f"{self.log_score:.4f} nats per row, root mean square error {self.error:.4g}"
        )

    def _repr_html_(self) -> str:
        """The figures as a table, for a notebook."""
        known = int((~self.values.isnan()).sum())
        figures = [
            ("accuracy", self.accuracy, "share of the values", "the most probable level is right"),
            ("log score", self.log_score, "nats per row", "mean of log p(x_c|x_r)"),
            ("root mean square error", self.error, "as the column", "of the mean E[x_c|x_r]"),
        ]
        rows = [
            [label, number(value), unit, meaning]
            for label, value, unit, meaning in figures
            if value is not None
        ]
        caption = f"Prediction of one column of {len(self.values)} rows, {known} with a value"
        heads = ["figure", "value", "unit", "meaning"]
        return html_table(heads, rows, numbers=(1,), caption=caption)


def predict(
    vae: DiscreteVAE,
    x: Any,
    column: int,
    labels: Any = None,
    *,
    exact: bool | None = None,
    importance_samples: int = 1000,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Prediction:
    """p(x_c|x_r) = sum_z p(z|x_r) p(x_c|z): one column c, given the other columns r that are there.

    p(z|x_r) is summed over all codes where they are few. Else codes are drawn and weighted; see
    `ObservedPosterior`.

    Args:
        vae: the model of a table. It is in eval mode meanwhile.
        x: (N, P) rows, with NaN for each missing value: a tensor, an array or a table. The values
            of the column itself are compared with the prediction, and may be missing.
        column: the number of the column, from 0.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        exact: True for a sum over all K^D codes, which needs K^D <= 65,536; False for drawn codes;
            None for a sum if it is cheap.
        importance_samples: codes drawn per row, if they are not summed over.
        batch_size: rows that are predicted at once.
        seed: seed of all draws.

    Raises:
        ValueError: the data are no rows, there is no such column, K^D is too large, or a value is
            outside the support.

    Example:
        >>> from pyro_dvae import predict
        >>> predict(vae, x, 2).probabilities.shape
        torch.Size([10, 2])
    """
    x, labels = incomplete(vae, x, None, labels)
    if x.dim() != 2:
        raise ValueError(f"Expected rows (N, P); got data of shape {tuple(x.shape)}. Flatten them.")
    at_least("column", column, 0)
    if column >= x.shape[1]:
        raise ValueError(
            f"Expected a column from 0 to {x.shape[1] - 1}; got {column}. Name another one."
        )
    given = x.clone()
    given[:, column] = torch.nan
    levels = torch.zeros(x.shape[1], dtype=torch.int64)
    levels[column] = level_numbers(vae.likelihood, tuple(x.shape[1:]))[column]
    stream = RandomStream(seed, x.device)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with evaluating(vae):
        num_draws, size = codes_to_draw(vae, x, labels, exact, importance_samples)
        size = min(size, batch_size)
        for start in range(0, len(x), size):
            some = slice(start, start + size)
            its = None if labels is None else labels[some]
            posterior = ObservedPosterior(vae, given[some], its, num_draws, stream)
            values = torch.where(x[some].isnan(), posterior.filled, x[some])
            log_prob = posterior.log_mean(values)[:, column]
            mean = posterior.mean(lambda p_x: p_x.mean)[:, column]
            each = [log_p[:, column].exp() for log_p in level_log_probs(posterior, levels)]
            probabilities = torch.stack(each, -1) if each else mean.new_empty(len(mean), 0)
            parts.append((log_prob, mean, probabilities))
    log_prob, mean, probabilities = (torch.cat(part) for part in zip(*parts, strict=True))
    values = x[:, column]
    return Prediction(
        values,
        log_prob.masked_fill(values.isnan(), torch.nan),
        mean,
        probabilities if probabilities.shape[1] else None,
    )
