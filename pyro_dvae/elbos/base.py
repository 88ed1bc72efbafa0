"""The base of every ELBO: trace once, split into terms, ask a subclass for its surrogate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import pyro.poutine as poutine
import torch
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from pyro.poutine import Trace
from torch import Tensor

from pyro_dvae.codes import code_logits, kl_divergence
from pyro_dvae.elbos.plates import DataPlates, sample_sites

Program = Callable[..., Any]


class Terms(NamedTuple):
    """The pieces of the ELBO, per particle and datum, in nats; S particles, batch of the plates."""

    log_likelihood: Tensor
    """(S, *batch) log p(x|z)."""
    kl: Tensor
    """(S, *batch) KL(q || p): in closed form where there is one, else log q(z|x) - log p(z)."""
    log_guide: Tensor
    """(S, *batch) log q(z|x) of the sites that have no reparametrised gradient."""
    learning_signal: Tensor
    """(S, *batch) the part of log p(x|z) - beta KL that depends on the drawn z."""


class DiscreteELBO(ELBO):
    """ELBO = E_q[log p(x|z)] - KL(q(z|x) || p(z)) (Eqs. 40 to 45 of [JL25]).

    For any Pyro program whose discrete latent sites are categorical; a subclass chooses how the
    expectation over z is differentiated. Use it as `SVI(model, guide, optim, loss=elbo)`, or as
    `elbo(model, guide)(x).backward()` with a torch optimiser. As Pyro's own ELBOs do, the loss
    sums over the data of a plate (times N/B where the plate subsamples): divide by the number of
    data for nats per datum. **The value is minus the bound, the gradient the surrogate's.**

    Args:
        num_particles: S, draws of z a datum, vectorised in one plate; the estimate is their mean
            (Eqs. 18 to 21).
        beta: weight of the KL term in the gradient, 1 for the ELBO; the value ignores it.
        analytic_kl: take a site's KL in closed form where guide and model draw from codes and the
            model's prior of the site depends on nothing the guide draws later; otherwise, and for
            every other site, by the draw.
        max_plate_nesting: as in Pyro; found by one trial run when left out.

    Raises:
        ValueError: num_particles < 1, or beta negative or not finite.
    """

    is_unbiased: ClassVar[bool]

    def __init__(
        self,
        num_particles: int = 1,
        *,
        beta: float = 1.0,
        analytic_kl: bool = True,
        max_plate_nesting: float = math.inf,
    ) -> None:
        if num_particles < 1:
            raise ValueError(f"Expected at least 1 particle; got {num_particles}. Raise it.")
        if not 0 <= beta < math.inf:
            raise ValueError(f"Expected a finite beta >= 0; got {beta}. Use 1 for the ELBO.")
        super().__init__(num_particles, max_plate_nesting, vectorize_particles=True)
        self.beta = beta
        self.analytic_kl = analytic_kl

    @abstractmethod
    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch), nats per datum, whose gradient estimates that of the (beta-weighted) ELBO."""

    def objective(self, terms: Terms) -> Tensor:
        """(*batch) mean over particles of log p(x|z) - beta KL, with its pathwise gradient.

        In the decoder's weights that is the whole gradient (Eqs. 49 to 58 of [JL25]).
        """
        return (terms.log_likelihood - self.beta * terms.kl).mean(0)

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, summed over the data, without gradients."""
        with torch.no_grad():
            terms, plates = self.terms(model, guide, args, kwargs)
            return -float(self._total(terms, plates))

    def differentiable_loss(
        self, model: Program, guide: Program, *args: Any, **kwargs: Any
    ) -> Tensor:
        """A scalar: minus the bound, summed over the data, with the surrogate's gradient."""
        terms, plates = self.terms(model, guide, args, kwargs)
        surrogate = plates.scale * self.surrogate(terms).sum()
        return surrogate.detach() - surrogate - self._total(terms, plates).detach()

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, summed over the data; adds the surrogate's gradient to the `.grad`s."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _total(self, terms: Terms, plates: DataPlates) -> Tensor:
        return plates.scale * (terms.log_likelihood - terms.kl).mean(0).sum()

    def terms(
        self, model: Program, guide: Program, args: Any, kwargs: Any
    ) -> tuple[Terms, DataPlates]:
        """Run guide and model once and split their log-probabilities."""
        if self.num_particles > 1 and self.max_plate_nesting == math.inf:
            self.max_plate_nesting = trial_run(model, guide, args, kwargs).nesting + 1
        model_trace, guide_trace = self._get_vectorized_trace(model, guide, args, kwargs)
        plates = DataPlates(model_trace, guide_trace)
        return self._split(model_trace, guide_trace, plates), plates

    def _split(self, model_trace: Trace, guide_trace: Trace, plates: DataPlates) -> Terms:
        model_sites, guide_sites = sample_sites(model_trace), sample_sites(guide_trace)
        closed = closed_form_sites(model_sites, guide_sites) if self.analytic_kl else []
        first = next(iter(guide_sites), None)

        def per_datum(value: Tensor) -> Tensor:
            return plates.flat(value) / plates.scale

        observed = [site for site in model_sites.values() if site["is_observed"]]
        log_likelihood = sum(per_datum(site["log_prob"]) for site in observed)
        kl = log_guide = drawn_kl = torch.zeros(())
        for name, site in guide_sites.items():
            score = site["score_parts"].score_function
            if not is_identically_zero(score):
                log_guide = log_guide + plates.flat(score)
            if name in closed:
                kl_site = per_datum(_closed_form_kl(model_sites[name], site))
            else:
                kl_site = per_datum(_drawn_kl(model_sites[name], site))
            kl = kl + kl_site
            if name not in closed or name != first:
                drawn_kl = drawn_kl + kl_site
        log_likelihood = cast(Tensor, log_likelihood) + torch.zeros_like(kl)
        return Terms(log_likelihood, kl, log_guide, log_likelihood - self.beta * drawn_kl)

    def _get_trace(
        self, model: Program, guide: Program, args: Any, kwargs: Any
    ) -> tuple[Trace, Trace]:
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)


def trial_run(model: Program, guide: Program, args: Any, kwargs: Any) -> DataPlates:
    """The plates of a pair of programs, without moving the random stream or keeping a graph."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
    return DataPlates(model_trace, guide_trace)


def closed_form_sites(model_sites: dict[str, Any], guide_sites: dict[str, Any]) -> list[str]:
    """The guide's sites whose KL to the model's prior may be taken in closed form.

    Both distributions must be codes under one scale and mask, and p of the site may depend only on
    what the guide drew before the site: otherwise the average over the later draws is missing.
    """
    latents = [name for name, site in model_sites.items() if not site["is_observed"]]
    order = list(guide_sites)
    closed = []
    for i, name in enumerate(order):
        p, q = model_sites[name], guide_sites[name]
        parents_drawn = set(latents[: latents.index(name)]) <= set(order[:i])
        same_weight = p["scale"] is q["scale"] or bool(
            torch.as_tensor(p["scale"] == q["scale"]).all()
        )
        codes = code_logits(p["fn"]) is not None and code_logits(q["fn"]) is not None
        if parents_drawn and same_weight and p["mask"] is q["mask"] and codes:
            closed.append(name)
    return closed


def _closed_form_kl(model_site: Any, guide_site: Any) -> Tensor:
    q, p = code_logits(guide_site["fn"]), code_logits(model_site["fn"])
    kl = kl_divergence(cast(Tensor, q), cast(Tensor, p))
    return cast(Tensor, scale_and_mask(kl, guide_site["scale"], guide_site["mask"]))


def _drawn_kl(model_site: Any, guide_site: Any) -> Tensor:
    log_q, _, entropy_term = guide_site["score_parts"]
    # Without a reparametrised draw the gradient of log q is the score, which the surrogate holds.
    log_q = log_q.detach()
    if not is_identically_zero(entropy_term):
        log_q = log_q + (entropy_term - entropy_term.detach())
    return cast(Tensor, log_q - model_site["log_prob"])
