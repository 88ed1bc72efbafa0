"""The base class of every ELBO: it runs the programs, and splits the ELBO into its terms."""

from __future__ import annotations

import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, cast

import torch
from pyro.distributions.util import is_identically_zero
from pyro.infer import ELBO
from torch import Tensor, nn

from pyro_dvae.codes import code_logits, latent_kl_divergence, total
from pyro_dvae.elbos.audit import check_free_bits, check_programs
from pyro_dvae.elbos.layout import LayoutChanged, nesting, with_layout
from pyro_dvae.elbos.noise import GuideNoise
from pyro_dvae.elbos.pair import Pair, Program, trial_run
from pyro_dvae.elbos.particles import pair_of_particles
from pyro_dvae.elbos.sites import CodeDraws
from pyro_dvae.elbos.terms import Terms
from pyro_dvae.process import PROCESS_STATE
from pyro_dvae.processes import mean_of_all


class DiscreteELBO(ELBO, nn.Module):
    """ELBO = E_q[log p(x|z)] - KL(q(z|x) || p(z)) (Eqs. 40 to 45 of [JL25]).

    It works for any Pyro program. A subclass chooses how the expectation over z is differentiated.
    If the subclass cannot differentiate a site (because it is not categorical, for example), it
    raises an error that names the site.

    Use it as `SVI(model, guide, optim, loss=elbo)`, or as `elbo(model, guide)(x).backward()` with a
    torch optimiser. As in Pyro's own ELBOs, the loss is a sum over the data of a plate, times N/B
    if the plate subsamples B of N data. Divide it by the number of data for nats per datum. **The
    value of the loss is minus the bound. Its gradient is minus that of the surrogate.**

    It is a module. So the weights of a baseline or a control variate are saved, moved and trained
    like any weights.

    Args:
        num_particles: S, draws of z per datum. They are vectorised in one plate, and the estimate
            is their mean (Eqs. 18 to 21 of [JL25]).
        beta: weight of the KL term in the gradient, 1 for the ELBO. The value of the loss does not
            depend on it.
        free_bits: nats per latent, 0 for the ELBO. The gradient leaves out the KL of each latent
            whose mean over the batch is below it (Kingma et al. 2016). The value of the loss does
            not depend on it. The KL of a latent may then not depend on draws of other latents.
        analytic_kl: whether the KL of a site is computed in closed form, if there is one. There is
            one if guide and model both draw codes there, and if the model's prior of the site
            depends on nothing that the guide draws later. All other KLs are log q - log p at the
            draw.
        max_plate_nesting: the largest number of nested plates, as in Pyro. If it is left out, a
            trial run finds it; if it changes, another trial run finds it again.

    Raises:
        ValueError: num_particles < 1, or beta or free_bits is negative or not finite. When it is
            run: free bits are set, and the KL of a site is not in closed form or depends on
            earlier draws.
    """

    is_unbiased: ClassVar[bool] = True
    """Whether the mean of the surrogate's gradient is the gradient of the objective."""
    has_beta: ClassVar[bool] = True
    """Whether the objective has a KL term, whose weight `Trainer` can anneal."""
    reruns: ClassVar[bool] = False
    """Whether the surrogate runs the programs again (`Pair.at`)."""
    value_is_bound: bool = True
    """Whether `differentiable_loss` is minus a bound at exact draws, as `loss` always is."""
    keeps_codes: ClassVar[bool] = False
    """Whether it keeps codes from step to step, so that `Trainer` calls `at_rows`."""

    def __init__(
        self,
        num_particles: int = 1,
        *,
        beta: float = 1.0,
        free_bits: float = 0.0,
        analytic_kl: bool = True,
        max_plate_nesting: float = math.inf,
    ) -> None:
        nn.Module.__init__(self)
        if num_particles < 1:
            raise ValueError(f"Expected at least 1 particle; got {num_particles}. Raise it.")
        for name, value in (("beta", beta), ("free_bits", free_bits)):
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected a finite {name} >= 0; got {value}. Change it.")
        # For Pyro, the plate of particles is one of the nested plates.
        super().__init__(num_particles, max_plate_nesting, vectorize_particles=True)
        self.beta = beta
        self.free_bits = free_bits
        self.analytic_kl = analytic_kl
        self._nesting = max_plate_nesting

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, for copies and pickles, without the references of Pyro's store."""
        for parameter in self.parameters():
            parameter.__dict__.pop("unconstrained", None)
        return self.__dict__.copy()

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return (
            f"num_particles={self.num_particles}, beta={self.beta}, free_bits={self.free_bits}, "
            f"analytic_kl={self.analytic_kl}"
        )

    def at_rows(self, numbers: Tensor, total: int) -> AbstractContextManager[None]:
        """Inside, the data are these rows (B,) of `total` rows; see `keeps_codes`."""
        return nullcontext()

    @abstractmethod
    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats per datum. Its gradient is the estimate of that of the objective.

        Args:
            terms: of the programs at the guide's draws.
        """

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) nats per datum, the value to report."""
        return (terms.log_likelihood - terms.kl).mean(0)

    def objective(self, terms: Terms) -> Tensor:
        """(*batch) mean over particles of log p(x|z) - penalty, in nats per datum.

        Its gradient in the decoder's weights is the exact gradient at the draws (Eqs. 49 to 58 of
        [JL25]). In the guide's weights, the score-function term is missing.
        """
        return (terms.log_likelihood - terms.penalty).mean(0)

    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, summed over the data, in nats; without gradients."""
        with PROCESS_STATE, torch.no_grad():
            terms = self.terms(model, guide, args, kwargs)
            return -(terms.scale * self.bound(terms).sum()).item()

    def differentiable_loss(
        self, model: Program, guide: Program, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Minus the bound, summed over the data, in nats, a scalar tensor.

        Its gradient is that of minus the surrogate, summed over the data.
        """
        with PROCESS_STATE:
            terms = self.terms(model, guide, args, kwargs)
            surrogate = self.surrogate(terms).sum()
            with torch.no_grad():
                bound = self.bound(terms).sum()
        return terms.scale * (surrogate.detach() - surrogate - bound)

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, summed over the data, in nats; adds the gradients to each `.grad`."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """The terms of one run of guide and model, at the guide's draws.

        Args:
            model: a Pyro program.
            guide: a Pyro program.
            args: positional arguments of both.
            kwargs: keyword arguments of both.
        """

        def find() -> float:
            return nesting(trial_run(model, guide, args, kwargs))

        def run(most: float) -> Terms:
            noise = GuideNoise() if self.reruns else None
            own = guide if noise is None else noise(guide)
            pair = pair_of_particles(model, own, args, kwargs, self.num_particles, most, self.wrap)
            pair.noise = noise
            if not is_given and nesting(pair) != most:
                raise LayoutChanged.between(f"{most} nested plates", nesting(pair))
            check_programs(pair)
            terms = self.split(pair)
            if self.free_bits:
                check_free_bits(pair)
            return terms

        is_given = self.num_particles == 1 or self._nesting < math.inf
        return run(self._nesting) if is_given else with_layout(self, find, run)

    def _get_trace(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Any:
        pair = self.terms(model, guide, args, kwargs).pair
        return pair.model_trace, pair.guide_trace

    def wrap(self, guide: Program) -> Program:
        """The guide, with its sampler. Pathwise estimators set another sampler here."""
        return CodeDraws()(guide)

    def split(self, pair: Pair) -> Terms:
        """The terms of the ELBO, from the traces of model and guide."""
        plates, scale = pair.plates, self.loss_scale(pair)

        def per_datum(value: Tensor) -> Tensor:
            return plates.flat(value) / scale

        closed = self.closed_form_sites(pair)
        first = next(iter(pair.guide_sites), None)
        observed = [site for site in pair.model_sites.values() if site["is_observed"]]
        log_likelihood = total(per_datum(site["log_prob"]) for site in observed)
        kl = penalty = drawn_penalty = log_guide = torch.zeros((), device="cpu")
        for name, site in pair.guide_sites.items():
            score = site["score_parts"].score_function
            if not is_identically_zero(score):
                log_guide = log_guide + plates.flat(score)
            if name in closed:
                code = pair.codes[name]
                q, p, mask = code.logits, code.view(pair.model_sites[name]["fn"]), code.mask
                kl_latent = latent_kl_divergence(q, p) * (site["scale"] / scale)
                kl_latent = kl_latent if mask is None else torch.where(mask, kl_latent, 0)
                kl_site = kl_latent.sum(-1)
                penalty_site = (self.kl_weight(kl_latent) * kl_latent).sum(-1)
            else:
                if self.free_bits:
                    raise ValueError(
                        f"Expected a closed-form KL at site '{name}', since free bits are set; got "
                        "one that needs draws. Use free_bits=0, or a categorical guide and prior."
                    )
                kl_site = per_datum(_drawn_kl(pair.latents.get(name), site))
                penalty_site = self.beta * kl_site
            kl, penalty = kl + kl_site, penalty + penalty_site
            if name not in closed or name != first:
                drawn_penalty = drawn_penalty + penalty_site
        log_likelihood = log_likelihood + torch.zeros_like(kl)
        return Terms(
            log_likelihood,
            kl,
            penalty,
            log_guide,
            log_likelihood - drawn_penalty,
            scale,
            pair,
        )

    def loss_scale(self, pair: Pair) -> float:
        """The factor of the whole loss. `split` divides the terms of each datum by it."""
        return pair.plates.scale

    def kl_weight(self, kl_latent: Tensor) -> Tensor | float:
        """The weight of each latent's KL in the gradient, () or (D,): beta, or 0 by free bits.

        Args:
            kl_latent: (..., D) KL of each latent, in nats.
        """
        if not self.free_bits:
            return self.beta
        mean = mean_of_all(kl_latent.detach().flatten(0, -2).mean(0))
        return self.beta * (mean > self.free_bits).to(mean.dtype)

    def closed_form_sites(self, pair: Pair) -> set[str]:
        """The guide's sites whose KL to the model's prior has a closed form.

        Both distributions must be codes, with the same scalar scale and the same mask. The prior
        of the site may only depend on what the guide drew before the site. Otherwise the closed
        form would lack the mean over later draws.
        """
        if not self.analytic_kl:
            return set()
        latents = list(pair.latents)
        order = list(pair.guide_sites)
        closed = set()
        for i, (name, q) in enumerate(pair.guide_sites.items()):
            if name not in latents:  # an auxiliary variable, or a site that the model observes
                continue
            p = pair.latents[name]
            parents_drawn = set(latents[: latents.index(name)]) <= set(order[:i])
            codes = name in pair.codes and code_logits(p["fn"]) is not None
            if parents_drawn and codes and _have_one_weight(p, q):
                closed.add(name)
        return closed


def _have_one_weight(p: Any, q: Any) -> bool:
    """Whether two sites have the same scale, which is a scalar, and the same mask."""
    if any(isinstance(site["scale"], Tensor) and site["scale"].numel() > 1 for site in (p, q)):
        return False
    masks = p["mask"], q["mask"]
    is_one_mask = masks[0] is masks[1] or (
        all(isinstance(mask, Tensor) for mask in masks) and torch.equal(*masks)
    )
    return is_one_mask and float(p["scale"]) == float(q["scale"])


def _drawn_kl(model_site: Any, guide_site: Any) -> Tensor:
    """Log q - log p of a draw. It is log q if only the guide has the site, as in Pyro."""
    log_q, _, entropy_term = guide_site["score_parts"]
    # If the draw is not reparametrised, the gradient of log q is the score. The surrogate has it.
    log_q = log_q.detach()
    if not is_identically_zero(entropy_term):
        log_q = log_q + (entropy_term - entropy_term.detach())
    return cast(Tensor, log_q if model_site is None else log_q - model_site["log_prob"])
