"""The likelihood of the elements that are not missing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, cast

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn

from pyro_dvae.contracts import completed
from pyro_dvae.displays import one_line
from pyro_dvae.likelihoods.base import Likelihood, typical_of
from pyro_dvae.likelihoods.elements import HasDouble, element_log_probs, observed_log_prob
from pyro_dvae.likelihoods.linear import ExponentialFamily
from pyro_dvae.likelihoods.mixed import Columns, Mixed


class Masked(Likelihood):
    """log p(x_o|z) = sum_p log p(x_p|z) over the elements p that are observed; NaN is missing.

    The elements are independent given z. So this is the marginal over the missing elements,
    exactly, and they contribute neither a term nor a gradient. It is right where values are missing
    at random: whether one is missing may depend on what is observed, but not on the value itself.

    The encoder sees the features of the observed elements, zeros for the missing ones, and for each
    element whether it is missing. Build it for `feature_shape(event_shape)`: (2 P,) for rows of P
    columns, (2, H, W) for images.

    Args:
        likelihood: the likelihood of complete data. It can be any of the library but `Multinomial`
            and `CorrelatedNormal`, or one of your own whose elements are independent.

    Raises:
        ValueError: the elements of the likelihood are not independent given z, or it is a `Masked`
            itself.

    Example:
        >>> import torch
        >>> from pyro_dvae import Masked, Normal
        >>> likelihood = Masked(Normal())
        >>> likelihood.feature_shape((3,))
        (6,)
        >>> likelihood.features(torch.tensor([[2.0, torch.nan, 0.5]]))
        tensor([[2.0000, 0.0000, 0.5000, 0.0000, 1.0000, 0.0000]])
    """

    takes_missing = True
    likelihood: Likelihood

    def __init__(self, likelihood: nn.Module) -> None:
        super().__init__()
        its = completed(likelihood, Likelihood)
        refuse_dependent(its)
        self.likelihood = its
        self.num_params, self.kind, self.levels = its.num_params, its.kind, its.levels
        self.param_meanings = its.param_meanings
        blocks = its.blocks if isinstance(its, Mixed) else [its]
        by_product = all(isinstance(block, ExponentialFamily) for block in blocks)
        self.cost = its.cost if by_product else max(1, its.cost)
        self.support = _OrMissing(its.support)

    def extra_repr(self) -> str:
        """The likelihood, for `repr`."""
        return one_line(self.likelihood)

    def forward(self, params: Tensor, event_dim: int) -> TorchDistribution:
        """p(x_o|z), a distribution of batch shape (...) and event shape *event.

        Its draws and its mean are complete data.

        Args:
            params: the parameters of `likelihood`.
            event_dim: the number of dimensions of one datum.
        """
        return _MaskedDistribution(self.likelihood(params, event_dim), self)

    def feature_shape(self, event_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of `features` of one datum: twice as many rows, columns or channels."""
        shape = tuple(event_shape)
        return (2 * shape[0], *shape[1:]) if len(shape) in (1, 3) else (2, *shape)

    def features(self, x: Tensor) -> Tensor:
        """Features of the observed elements, zeros for the others, and 1 for each missing one."""
        missing = x.isnan()
        seen = self.likelihood.features(self.likelihood.filled(x)).masked_fill(missing, 0)
        both = (seen, missing.to(seen.dtype))
        return torch.cat(both, 1) if x.dim() in (2, 4) else torch.stack(both, 1)

    def filled(self, x: Tensor) -> Tensor:
        """The data (..., *event), with a value that the likelihood takes where one is missing."""
        return self.likelihood.filled(x)

    def check(self, x: Tensor) -> None:
        """Refuse an observed element that the likelihood does not take.

        Raises:
            ValueError: there is such an element.
        """
        self.likelihood.check(self.filled(x))

    def calibrate(self, x: Tensor) -> None:
        """Calibrate the likelihood from the observed elements of training data (N, *event)."""
        self.likelihood.calibrate(self.borrowed(x))

    def is_calibrated(self) -> bool:
        """Whether the likelihood is calibrated."""
        return self.likelihood.is_calibrated()

    def before_training(self, x: Tensor) -> None:
        """Call `before_training` of the likelihood, with data (N, *event) without gaps."""
        self.likelihood.before_training(self.borrowed(x))

    def cancelled(self, params: Tensor) -> Tensor:
        """Those of the likelihood."""
        return self.likelihood.cancelled(params)

    @torch.no_grad()
    def borrowed(self, x: Tensor) -> Tensor:
        """Data without gaps: a missing element has the value of the same element of other data.

        The observed values of an element are taken in turn, as often as each other, or some of them
        once more. So its frequencies and its moments stay about what they are. An element that is
        never observed has the value that `filled` gives it.

        Args:
            x: (N, *event).
        """
        flat = x.flatten(1).clone() if x.dim() > 1 else x.unsqueeze(-1).clone()
        for place in flat.isnan().any(0).nonzero().flatten().tolist():
            missing = flat[:, place].isnan()
            known, num = flat[~missing, place], int(missing.sum())
            if len(known):
                turns = torch.arange(num, device=x.device) * len(known) // num
                flat[missing, place] = known[turns]
        return self.filled(flat.reshape(x.shape))


def unmasked(likelihood: Likelihood) -> Likelihood:
    """The likelihood of complete data that a `Masked` holds; any other likelihood itself."""
    return likelihood.likelihood if isinstance(likelihood, Masked) else likelihood


def refuse_dependent(likelihood: Likelihood, purpose: str = "data with missing values") -> None:
    """Raise a ValueError where the elements of a likelihood are not independent given z.

    Args:
        likelihood: the likelihood of complete data.
        purpose: what independent elements are needed for, as the message says it.
    """
    if isinstance(likelihood, Masked):
        raise ValueError("Expected a likelihood of complete data; got Masked. Mask it once.")
    for each in likelihood.blocks if isinstance(likelihood, Mixed) else [likelihood]:
        if is_dependent(cast(Likelihood, each)):
            raise ValueError(
                "Expected a likelihood whose elements are independent given z, for "
                f"{purpose}; got {type(each).__name__}. Use Poisson or NegativeBinomial for "
                "counts and Normal for real numbers, fill in the missing values, or define "
                "element_log_probs in a likelihood of your own."
            )


def is_dependent(likelihood: Likelihood) -> bool:
    """Whether a likelihood has only `log_prob`, since its elements depend on each other given z."""
    kind = type(likelihood)
    is_flat = kind.forward is Likelihood.forward
    return is_flat and kind.element_log_probs is Likelihood.element_log_probs


class _OrMissing(constraints.Constraint):
    """A value that a likelihood takes, or NaN; checked element by element."""

    def __init__(self, base: constraints.Constraint) -> None:
        self.base, self.is_discrete = base, base.is_discrete

    def check(self, value: Tensor) -> Tensor:
        base = self.base
        inside = base.inside(value) if isinstance(base, Columns) else base.check(value)
        return inside | value.isnan()


class _MaskedDistribution(TorchDistribution):
    """The distribution of the observed elements of one datum."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: TorchDistribution, likelihood: Masked) -> None:
        self.base, self.likelihood = base, likelihood
        super().__init__(base.batch_shape, base.event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """The support of the likelihood, or NaN, for every element."""
        return constraints.independent(self.likelihood.support, self.event_dim)

    @property
    def mean(self) -> Tensor:
        """E[x], (*batch, *event), of complete data."""
        return self.base.mean

    @property
    def typical(self) -> Tensor:
        """A value that stands for complete data, (*batch, *event)."""
        return typical_of(self.base)

    def expand(self, batch_shape: Any, _instance: Any = None) -> _MaskedDistribution:
        """The same distribution with a larger batch shape."""
        new = copy(self)
        new.base = self.base.expand(batch_shape)
        new._batch_shape = torch.Size(batch_shape)
        return new

    def cancelled(self) -> Tensor:
        """Nats of terms that cancel in `log_prob`, (*batch)."""
        return (
            self.base.cancelled()
            if isinstance(self.base, HasDouble)
            else torch.zeros((), device="cpu")
        )

    def double(self) -> _MaskedDistribution:
        """The same distribution, with parameters and sums in double precision."""
        new = copy(self)
        if isinstance(self.base, HasDouble):
            new.base = cast(TorchDistribution, self.base.double())
        return new

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Complete data, (*sample_shape, *batch, *event)."""
        return self.base.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability or log-density of the observed elements of data (..., *event), in nats.

        The leading dimensions of the data are broadcast against the batch shape.
        """
        split = value.dim() - self.event_dim
        if value.shape[split:] != self.event_shape or self._validate_args:
            self.likelihood.check(value)
        shape = broadcast_shape(value.shape[:split], self.batch_shape)
        filled = self.likelihood.filled(value)
        return observed_log_prob(self.base, filled, ~value.isnan()).expand(shape)

    def element_log_probs(self, value: Tensor) -> Tensor:
        """Those of the elements of data (..., *event), (..., *event), 0 for a missing one."""
        found = element_log_probs(self.base, self.likelihood.filled(value))
        # The gradient of a missing element is 0, since its value was replaced before it was scored.
        return torch.where(value.isnan(), 0, found)
