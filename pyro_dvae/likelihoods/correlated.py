"""A likelihood of real numbers that are correlated given the code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pyro_dvae.displays import named
from pyro_dvae.likelihoods.real import _Gaussian, gaussian_log_prob

_MOST_ELEMENTS = 4096
"""The most elements of a datum: the matrix A has as many rows and columns."""
_MOST_ROWS = 2000
"""The most training data between which distances are computed."""


class CorrelatedNormal(_Gaussian):
    """log p(x|z) = sum_p log N(y_p; m_p, s_p^2) + log |A| - sum_p log spread_p, in nats.

    y = A (x - location) / spread. The lower-triangular matrix A is learned, and the same for all
    codes. So x is a Gaussian with the covariance A^-1 diag(s^2) A^-T in units of `spread`, and p(x)
    is a mixture of Gaussians with semi-tied covariances (Gales, 1999). m = params[..., 0] and s =
    exp(r), r = -7 + softplus(params[..., 1] + 7). Params are (..., *event, 2).

    `calibrate` sets location and spread as for `Normal`, and where A starts: a matrix that makes
    neighbouring data uncorrelated, since a code is to stand for data that are near each other. A is
    the product of it, `start`, and of a learned matrix with ones on its diagonal.

    Elements are not independent given z. So there is no `Masked(CorrelatedNormal(...))`, and such a
    model cannot `impute` or `predict`.

    Args:
        event_shape: shape of one datum, of P elements. A has P (P - 1) / 2 weights.

    Raises:
        ValueError: P is above 4,096.

    Example:
        >>> import torch
        >>> from pyro_dvae import CorrelatedNormal
        >>> likelihood = CorrelatedNormal((3,))
        >>> likelihood(torch.zeros(5, 3, 2), 1).log_prob(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    name = "correlated-normal"
    cost = 0
    start: Tensor

    def __init__(self, event_shape: Sequence[int] = ()) -> None:
        super().__init__(event_shape)
        size = math.prod(event_shape)
        if size > _MOST_ELEMENTS:
            raise ValueError(
                f"Expected at most {_MOST_ELEMENTS} elements for the {self.name} likelihood; got "
                f"{size}, of shape {tuple(event_shape)}. Use Normal, or fewer columns or pixels."
            )
        self.param_meanings = ("m, of y", "r before its lower bound")
        self.below_diagonal = nn.Parameter(torch.zeros(size * (size - 1) // 2))
        self.register_buffer("start", torch.eye(size))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(event_shape=tuple(self.location.shape))

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set `location`, `spread` and `start` from training data (N, *event).

        `start` is the inverse Cholesky factor of the covariance of the differences between each
        datum and the nearest other one. Each y_p then has a variance of about 1.

        Raises:
            ValueError: the shape of a datum is not event_shape, or a value is not finite.
        """
        super().calibrate(x)
        rows = x[:: -(-len(x) // _MOST_ROWS)].to(self.start)
        rows = self.features(rows).reshape(len(rows), -1).double()
        if len(rows) > 1:
            self.start.copy_(_decorrelating(rows))

    def factor(self, like: Tensor) -> Tensor:
        """A, (P, P), in the dtype of data (..., P).

        Raises:
            ValueError: the data have another number of elements.
        """
        size = len(self.start)
        if like.shape[-1] != size:
            raise ValueError(
                f"Expected data of {size} elements for {type(self).__name__}; got "
                f"{like.shape[-1]}. Build it with event_shape=({like.shape[-1]},)."
            )
        place = torch.tril_indices(size, size, -1, device=self.start.device)
        ones = torch.eye(size, dtype=self.start.dtype, device=self.start.device)
        learned = ones.index_put((place[0], place[1]), self.below_diagonal)
        return (learned @ self.start).to(like.dtype)

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of a datum in nats."""
        middle, scale = self._parameters_of(params)
        factor, spread = self.factor(x), self.spread.flatten()
        y = ((x - self.location.flatten()) / spread) @ factor.T
        return gaussian_log_prob(y, middle, scale) + (factor.diagonal().log() - spread.log()).sum()

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = location + spread A^-1 m."""
        return self._of_uncorrelated(self._parameters_of(params)[0])

    def draw(self, params: Tensor) -> Tensor:
        """Draws, in units of the data."""
        return self._of_uncorrelated(self._standard_draw(params))

    def _of_uncorrelated(self, y: Tensor) -> Tensor:
        """The x of numbers y, (..., P), in units of the data."""
        factor, columns = self.factor(y), y.reshape(-1, y.shape[-1]).T
        x = torch.linalg.solve_triangular(factor, columns, upper=False).T.reshape(y.shape)
        return self.location.flatten() + self.spread.flatten() * x


def _decorrelating(rows: Tensor) -> Tensor:
    """A lower-triangular A such that A (x - x') is uncorrelated for neighbours x, x' of the rows.

    A row more with variances of 1 keeps the matrix regular where columns repeat each other.
    """
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    nearest = torch.cdist(rows, rows).fill_diagonal_(math.inf).argmin(1)
    step = rows - rows[nearest]
    covariance = (step.T @ step / 2 + identity) / (len(rows) + 1)
    found = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), identity, upper=False)
    size = (rows @ found.T).std(0, correction=0, keepdim=True).T
    return found / torch.where(size > 0, size, 1)
