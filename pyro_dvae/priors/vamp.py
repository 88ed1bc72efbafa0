"""A prior that is a mixture of the guide at learned pseudo-inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_dvae.checks import at_least
from pyro_dvae.displays import named
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.mixture import MixtureCodes


class VampPrior(Prior):
    """p(z) = 1/C sum_c q(z|u_c), with learned pseudo-inputs u_1 ... u_C.

    This is the variational mixture of posteriors (Tomczak & Welling 2018, "VAE with a VampPrior").
    The best prior is the mean E_x[q(z|x)] over all data; here the mean is over C learned inputs.

    Args:
        num_components: C, the number of pseudo-inputs, at least 1.
        event_shape: the shape of one datum.
        bounded: whether a sigmoid keeps the pseudo-inputs in [0, 1]. Use it if what the encoder
            sees of the data lies in [0, 1].

    Raises:
        ValueError: C < 1.
    """

    sequential = True
    takes = "posterior"

    def __init__(
        self, num_components: int, event_shape: Sequence[int], *, bounded: bool = False
    ) -> None:
        super().__init__()
        at_least("components", num_components, 1)
        self.bounded = bounded
        self.free = nn.Parameter(torch.randn(num_components, *event_shape))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_components, *event_shape = self.free.shape
        return named(
            num_components=num_components, event_shape=tuple(event_shape), bounded=self.bounded
        )

    @property
    def pseudo_inputs(self) -> Tensor:
        """u, (C, *event), in the units of what the encoder sees (`Likelihood.features`)."""
        return self.free.sigmoid() if self.bounded else self.free

    def forward(self, posterior: Callable[[Tensor], Distribution]) -> MixtureCodes:
        """Return the distribution over codes, with event shape (D, K).

        Args:
            posterior: the function x -> q(z|x), from (C, *event) to a distribution with batch shape
                (C,) and event shape (D, K), factorised or sequential.
        """
        return MixtureCodes(self.free.new_zeros(len(self.free)), posterior(self.pseudo_inputs))
