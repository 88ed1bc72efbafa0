"""Joint stochastic approximation: a Markov chain of codes per datum, from step to step."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_dvae.elbos.kept_codes import KeptCodes
from pyro_dvae.elbos.multi_sample import log_mean_exp, scaled_log_guide
from pyro_dvae.elbos.pair import Pair, Program, scored_codes, trial_run
from pyro_dvae.elbos.terms import Terms
from pyro_dvae.elbos.wake_sleep import WakeSleepELBO


class JsaELBO(WakeSleepELBO):
    """1/(S-1) sum_t grad (log p(x, h_t) + log q(h_t|x)), h_t the states of a Markov chain.

    This is joint stochastic approximation (Ou & Song 2020, "Joint Stochastic Approximation and Its
    Application to Learning Discrete Latent Variable Models"), per datum. h_0 is the code that was
    kept at the last visit of the datum. Then S - 1 proposals z are drawn from q(z|x). One after
    another, each replaces the state h with probability min(1, w(z) / w(h)), w(z) = p(x, z) /
    q(z|x). This is a Metropolis independence sampler, which leaves p(z|x) invariant. h_t is the
    state after t proposals. The last state is kept for the next visit of the datum.

    If h_0 is a draw from p(z|x), so is each h_t. The mean is then the exact gradient of log p(x) in
    the weights of the model, and of sum_z p(z|x) log q(z|x) in those of the guide: that of
    `MarginalELBO`. In training h_0 only comes near to such a draw, since the weights change between
    two visits. So the gradient has a bias, which is small where they change slowly. Which proposals
    are accepted is not drawn: the gradient is the mean over all acceptances, given the proposals
    (Casella & Robert 1996, "Rao-Blackwellisation of sampling schemes"), which has less variance.
    Only the kept state is drawn.

    **The kept codes need the row number of each datum.** `Trainer` and `fit` tell them. With `SVI`,
    put all sites into a plate that holds a part of the data, such as `pyro.plate("data", N,
    subsample_size=B)`; or call the step inside `with elbo.at_rows(index, N)`. Without row numbers,
    as in `gradient_statistics`, and at the first visit, h_0 is a draw of q(z|x). The estimate is
    then a noisier `WakeSleepELBO`. The kept codes of all rows are in `state_dict()`. A
    `Trainer` of several processes refuses this ELBO, since the rows of a process change.

    **The value is the importance-weighted bound of the S - 1 proposals**, as that of `VimcoELBO`
    with S - 1 particles. h_0 does not count, since it is no draw of q(z|x).

    With beta != 1 the chain's target is the posterior of the likelihood p(x|z)^(1/beta), as in
    `WakeSleepELBO`: w(z) = p(x|z)^(1/beta) p(z) / q(z|x). log p(z) then has the weight beta in the
    gradient.

    Args:
        num_particles: S, at least 2: the start and S - 1 proposals. Each needs one decoder
            evaluation per datum.
        **options: `beta` > 0, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2, beta is 0, or free bits are given. When it is run: the guide
            has reparametrised draws, scales are as `VimcoELBO` refuses them, or codes are kept of
            another number of rows or of another model.
        TypeError: `analytic_kl` is given. When it is run: a site of the guide is not categorical.
            The message names the site.
    """

    is_unbiased: ClassVar[bool] = False
    keeps_codes: ClassVar[bool] = True

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        super().__init__(num_particles, **options)
        self.kept = KeptCodes()

    def at_rows(self, numbers: Tensor, total: int) -> AbstractContextManager[None]:
        """Inside, the data are these of all rows, for which codes are kept.

        Args:
            numbers: (B,) int64 on the device of the data, from 0 to N - 1, each at most once.
            total: N, the number of all rows.
        """
        return self.kept.at_rows(numbers, total)

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """See `DiscreteELBO`. The first particle is the kept code, where there is one."""
        if self.kept.columns is None and len(self.kept.codes):  # loaded from a state
            self.kept.find_columns(trial_run(model, guide, args, kwargs))
        return super().terms(model, guide, args, kwargs)

    def wrap(self, guide: Program) -> Program:
        """The guide, with its sampler, and with the kept codes as the first particle."""
        return self.kept.starting(super().wrap(guide))

    def split(self, pair: Pair) -> Terms:
        """The terms of the ELBO, from the traces of model and guide."""
        terms = super().split(pair)
        scored_codes(pair)  # refuses other sites
        self.kept.prepare(pair)
        return terms

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) the importance-weighted bound of the proposals, in nats per datum."""
        return log_mean_exp(self.log_weights(terms)[1:])

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate. This keeps the last state of the chain."""
        log_joint = terms.log_likelihood - terms.penalty  # with log q in it, detached
        visits, last = chain(log_joint.detach() / self.beta)
        self.kept.keep(terms.pair, last)
        # A code that is never a state may have p(x, z) = 0.
        return torch.where(visits > 0, visits * (log_joint + scaled_log_guide(terms)), 0).sum(0)


@torch.no_grad()
def chain(log_w: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of the states of a Metropolis independence sampler, given all draws.

    The chain begins at particle 0. Then it moves from its state j to particle t with probability
    min(1, w_t / w_j), for t = 1, 2, ..., S - 1.

    Args:
        log_w: (S, *batch).

    Returns:
        (S, *batch) the mean over t of P(h_t = particle), and (S, *batch) that of the last state.
    """
    state, visits = torch.zeros_like(log_w), torch.zeros_like(log_w)
    state[0] = 1
    for t in range(1, len(log_w)):
        # The chain leaves a state of weight 0 for any other.
        log_ratio = torch.where(log_w[:t] > -math.inf, log_w[t] - log_w[:t], 0)
        moves = state[:t] * log_ratio.clamp(max=0).exp()
        state[:t] -= moves
        state[t] = moves.sum(0)
        visits += state
    return visits / (len(log_w) - 1), state
