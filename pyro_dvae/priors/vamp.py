"""A prior made of the guide itself, at learned pseudo-inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_dvae.checks import at_least
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.mixture import MixtureCodes


class VampPrior(Prior):
    """p(z) = 1/C sum_c q(z|u_c), u_1 ... u_C learned pseudo-inputs.

    The variational mixture of posteriors of Tomczak & Welling (2018, "VAE with a VampPrior"): the
    best prior is the aggregate posterior E_x[q(z|x)], and this is one over C learned data. Under an
    autoregressive guide the components are themselves sequential. Support: one-hot codes.

    Args:
        num_components: C, at least 1.
        event_shape: shape of one datum.
        bounded: keep pseudo-inputs in [0, 1], by a sigmoid, where what the encoder sees of data
            lies there.

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

    @property
    def pseudo_inputs(self) -> Tensor:
        """u, (C, *event): what the encoder sees of data, `Likelihood.features`."""
        return self.free.sigmoid() if self.bounded else self.free

    def forward(self, posterior: Callable[[Tensor], Distribution]) -> MixtureCodes:
        """The distribution over codes, batch (), event (D, K).

        Args:
            posterior: x -> q(z|x), batch (C,), event (D, K), factorised or sequential.
        """
        return MixtureCodes(self.free.new_zeros(len(self.free)), posterior(self.pseudo_inputs))
