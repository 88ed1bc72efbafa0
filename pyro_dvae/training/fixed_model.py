"""The exact ELBO as an objective of the guide alone: all codes are decoded once, and kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.exact import EnumeratedELBO
from pyro_dvae.elbos.pair import Program
from pyro_dvae.elbos.score_function import RlooELBO
from pyro_dvae.evaluation.joint import Joint
from pyro_dvae.evaluation.plan import sums_cheaply
from pyro_dvae.posteriors import posterior_of
from pyro_dvae.vae import DiscreteVAE

PARTICLES = 8
"""Draws of z per datum and step, where there are too many codes to sum over."""


class FixedModelELBO(EnumeratedELBO):
    """sum_z q(z|x) (log p(x, z) - log q(z|x)), for a model whose p(x, z) does not change.

    It is `EnumeratedELBO` without a gradient in the weights of the decoder, the likelihood and the
    prior. So p(x|z) of all codes is decoded in the first step, and kept where memory allows it.
    A step then costs one product of the data with all decoded codes. The value is the ELBO.

    Args:
        vae: the model. Only `vae.encoder` and `vae.posterior_family` may change between calls.
        num_rows: the number of data per step, for which the codes are divided into chunks that fit
            into memory.
    """

    def __init__(self, vae: DiscreteVAE, num_rows: int = 1) -> None:
        super().__init__()
        self._held = (vae,)  # in a tuple, since the model is no part of this module
        self._joint: Joint | None = None
        self._num_rows = num_rows

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the ELBO, summed over the data, in nats; without gradients."""
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def differentiable_loss(
        self, model: Program, guide: Program, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Minus the ELBO, summed over the data, in nats, a scalar tensor.

        Its gradient is that of minus the ELBO in which the KL term has the weight beta.
        """
        x, labels = args if len(args) > 1 else (args[0], None)
        (vae,) = self._held
        with torch.no_grad():
            log_prior, log_likelihood = self._joint_of(vae, x, labels).all_codes(x, self._num_rows)
            log_prior = log_prior if labels is None else log_prior[labels]
        q = posterior_of(vae.posterior(x), tabulate=True)
        # KL = -E_q[log p(z)] - H(q), with the weight beta in the gradient alone
        surrogate = q.expectation(log_likelihood + self.beta * log_prior) + self.beta * q.entropy()
        bound = surrogate.detach()
        if self.beta != 1:
            with torch.no_grad():
                bound = q.expectation(log_likelihood + log_prior) + q.entropy()
        return (surrogate.detach() - surrogate - bound).sum()

    def _joint_of(self, vae: DiscreteVAE, x: Tensor, labels: Tensor | None) -> Joint:
        if vae.decoder.training:  # a trial run, in which some units may be left out
            return Joint(vae, x, labels)
        if self._joint is None:
            self._joint = Joint(vae, x, labels)
        return self._joint


def guide_objective(vae: DiscreteVAE, x: Tensor, num_rows: int = 1) -> DiscreteELBO:
    """The objective for the guide of a fixed model: exact where the sum over all codes is cheap.

    Args:
        vae: the model.
        x: (B, *event), some data.
        num_rows: the number of data per step.

    Returns:
        `FixedModelELBO`, or `RlooELBO` of 8 particles where a sum over all codes is too dear.
    """
    with torch.no_grad():
        num_latents, num_categories = vae.posterior(x).event_shape
    exact = sums_cheaply(vae, (num_latents, num_categories), x.shape[1:])
    return FixedModelELBO(vae, num_rows) if exact else RlooELBO(PARTICLES, max_plate_nesting=1)
