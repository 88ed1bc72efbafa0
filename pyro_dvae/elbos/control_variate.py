"""REBAR and RELAX: the programs at relaxed codes as a control variate of the score function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import pyro.distributions as dist
import torch
from pyro.distributions.util import is_identically_zero
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dvae.codes import code_logits, conditional_gumbels, is_one_hot, total
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.pair import Pair
from pyro_dvae.elbos.score_function import show_parameters_to_svi


class RelaxELBO(DiscreteELBO):
    """(f - c(z~)) grad log q(b|x) + grad c(z) - grad c(z~) (RELAX, Grathwohl et al. 2018).

    b is the draw, f its learning signal; z = log pi + G are the logits with the Gumbel noise whose
    argmax is b, z~ another such given b. Both are differentiable in the logits, so that the last
    two terms have the mean of c(z~) grad log q(b|x) whatever c is: the gradient is unbiased, and
    varies less the better c foretells f. Here c(z) = eta f(softmax(z / tau)), the programs at
    relaxed codes (REBAR, Tucker et al. 2017), plus a network of the relaxed codes, where given.

    eta, tau and the network descend the second moment of the gradient in the logits (one draw, sum
    over latents and categories, mean over particles, summed over the data and times N/B as the
    bound is), and get no other gradient. They are in `elbo(model, guide).parameters()` for a torch
    optimiser; `SVI` finds them by itself; `elbo.requires_grad_(False)` keeps them.

    With several sites, the codes before a site are those drawn, the codes after it relaxed, from
    the logits that follow from the relaxed code and the noise of the draw. A site has c = 0
    (REINFORCE) unless it and everything the guide draws after it are one-hot codes in guide and
    model. The programs must be smooth in the codes: no argmax or comparison of them.

    Args:
        num_particles: S, draws of z a datum.
        eta: initial weight of the relaxed signal; 0 is REINFORCE until it is trained.
        temperature: initial tau > 0 of the relaxed codes; the reported value never depends on it.
        network: None, or a network called with the codes of all sites side by side, (2, S, *batch,
            sum of D K), and the arguments of model and guide, that gives (2, S, *batch) or
            (2, S, *batch, 1) nats. Begin with a last layer of zeros.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: temperature not positive or not finite, or eta not finite; when run, a network
            that does not give one number a code.
    """

    is_unbiased: ClassVar[bool] = True
    reruns: ClassVar[bool] = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        eta: float = 1.0,
        temperature: float = 0.5,
        network: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        if not 0 < temperature < math.inf:
            raise ValueError(f"Expected a finite temperature > 0; got {temperature}. Use 0.5, say.")
        if not math.isfinite(eta):
            raise ValueError(f"Expected a finite eta; got {eta}. Use 1, say.")
        self.eta = nn.Parameter(torch.tensor(float(eta)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.network = network

    def extra_repr(self) -> str:
        """The settings, for `repr`; a network follows as a child."""
        return f"{super().extra_repr()}, eta and temperature learned"

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator, and that of its second moment."""
        surrogate, moment = self.objective(terms), torch.zeros((), device="cpu")
        if not torch.is_grad_enabled():
            return surrogate
        show_parameters_to_svi(self)
        for logits, gradient in self._gradients(terms):
            surrogate = surrogate + (gradient.detach() * logits).sum((-1, -2)).mean(0)
            moment = moment + gradient.square().sum() / self.num_particles
        surrogate = surrogate + (terms.learning_signal.detach() * _other_scores(terms.pair)).mean(0)
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not (learned and moment.requires_grad):
            return surrogate
        # The second moment depends on the programs' weights too, which must not descend it: take
        # the slopes here, and give each datum an equal share of them.
        slopes = torch.autograd.grad(moment, learned, materialize_grads=True)
        descent = sum((slope * p).sum() for slope, p in zip(slopes, learned, strict=True))
        return surrogate - descent / surrogate.numel()

    def _gradients(self, terms: Terms) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits of each site and the gradient in them, (S, *batch, D, K)."""
        sites = terms.pair.codes
        signal = terms.learning_signal.detach()[..., None, None]
        logits = {name: _finite(site.logits) for name, site in sites.items()}
        leaves = {name: value.detach().requires_grad_() for name, value in logits.items()}
        noise = {
            name: (conditional_gumbels(leaves[name], site.code) - leaves[name]).detach()
            for name, site in sites.items()
        }
        for name, site in sites.items():
            leaf, own = leaves[name], noise.pop(name)  # what stays is of the sites after this one
            score = site.code - leaf.detach().exp()
            if not self._can_relax(terms.pair, name):
                yield logits[name], signal * score
                continue
            z = torch.stack([leaf + own, conditional_gumbels(leaf.log_softmax(-1), site.code)])
            control = self._control(terms.pair, name, z, noise)
            (slope,) = torch.autograd.grad(
                (control[0] - control[1]).sum(), leaf, create_graph=True, materialize_grads=True
            )
            yield logits[name], (signal - control[1][..., None, None]) * score + slope

    def _can_relax(self, pair: Pair, name: str) -> bool:
        # What is drawn after the site depends on the draw: were it kept in c, or c not smooth in
        # it, the terms in c would not have mean zero.
        drawn = list(pair.guide_sites)
        return all(
            is_one_hot(pair.guide_sites[key]["fn"])
            and key in pair.latents
            and is_one_hot(pair.latents[key]["fn"])
            for key in drawn[drawn.index(name) :]
        ) and all(
            key in pair.guide_sites or site["fn"].has_rsample for key, site in pair.latents.items()
        )

    def _control(self, pair: Pair, name: str, z: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """c, (2, S, *batch), at perturbed logits z (2, S, *batch, D, K) of one site."""
        temperature = self.log_temperature.exp()
        perturbations = {key: pair.codes[key].value(value) for key, value in noise.items()}
        draws = _RelaxedDraws(perturbations, temperature)
        with _LinearCodes():
            relaxed = pair.at({name: (z / temperature).softmax(-1)}, redraw=noise, sampler=draws)
        control = self.eta * self.split(relaxed).learning_signal
        if self.network is not None:
            control = control + self._correction(self.network, relaxed, control.shape)
        return control

    def _correction(self, network: nn.Module, pair: Pair, shape: torch.Size) -> Tensor:
        _, _, args, kwargs, _ = pair.programs
        codes = [site.code.flatten(-2).expand(*shape, -1) for site in pair.codes.values()]
        correction: Tensor = network(torch.cat(codes, -1), *args, **kwargs)
        if correction.shape not in (shape, (*shape, 1)):
            raise ValueError(
                f"Expected a network output of shape {(*shape,)} or {(*shape, 1)}, one number a "
                f"code; got {(*correction.shape,)}. Change the network."
            )
        return correction.reshape(shape)


def _other_scores(pair: Pair) -> Tensor:
    """Log q of the draws that are neither codes nor reparametrised, (S, *batch)."""
    scores = [
        site["score_parts"].score_function
        for name, site in pair.guide_sites.items()
        if name not in pair.codes
    ]
    flat = (pair.plates.flat(score) for score in scores if not is_identically_zero(score))
    return total(flat)


class _LinearCodes(Messenger):
    """Make every one-hot site take relaxed codes: log p(z) = sum_k z_k log p_k, smooth in z."""

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if not msg["is_observed"] and is_one_hot(fn):
            # torch's own log-probability is that of the argmax: it jumps, without a gradient in z.
            logits = cast(Tensor, code_logits(fn)).reshape(fn.batch_shape + fn.event_shape)
            msg["fn"] = _LinearCode(logits=logits).to_event(len(fn.event_shape) - 1)


class _RelaxedDraws(Messenger):
    """Let a guide go on with relaxed codes at the sites that it draws anew.

    Args:
        noise: site -> Gumbel noise of its code.
        temperature: of the codes.
    """

    def __init__(self, noise: Mapping[str, Tensor], temperature: Tensor) -> None:
        super().__init__()
        self.noise = noise
        self.temperature = temperature

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.noise:
            fn = msg["fn"]
            logits = cast(Tensor, code_logits(fn)).reshape(fn.batch_shape + fn.event_shape)
            perturbed = _finite(logits) + self.noise[msg["name"]]
            msg["value"] = (perturbed / self.temperature).softmax(-1)


class _LinearCode(dist.OneHotCategorical):
    has_rsample = True  # what keeps the gradient of log q through the code in the KL by draws

    def log_prob(self, value: Tensor) -> Tensor:
        return (value * _finite(self.logits)).sum(-1)


def _finite(log_p: Tensor) -> Tensor:
    # A category of probability zero is never drawn, but 0 times its -inf would be NaN.
    return log_p.clamp(min=math.log(torch.finfo(log_p.dtype).tiny))
