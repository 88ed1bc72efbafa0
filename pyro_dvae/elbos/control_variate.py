"""REBAR and RELAX: a control variate that is computed at relaxed codes."""

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
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.pair import Pair
from pyro_dvae.elbos.score_function import show_parameters_to_svi
from pyro_dvae.elbos.terms import Terms


class RelaxELBO(DiscreteELBO):
    """(f - c(z~)) grad log q(b|x) + grad c(z) - grad c(z~) (RELAX, Grathwohl et al. 2018).

    - b is the drawn one-hot code, and f its learning signal: the part of the objective that
      depends on b.
    - z = log pi + G: the logits log pi plus Gumbel noise G. The argmax of z is b.
    - z~ is a second draw of z, given that its argmax is b.
    - c is the control variate, any function.

    z and z~ are differentiable in the logits, and the last two terms have the mean of
    c(z~) grad log q(b|x). So the gradient is unbiased for any c. The better c predicts f, the lower
    the variance. Here c(z) = eta f(softmax(z / tau)): the programs run at relaxed codes (REBAR,
    Tucker et al. 2017). If a network is given, its output at the relaxed codes is added to c.

    eta, tau and the network are trained to minimise the second moment of the gradient in the
    logits. It is estimated from one draw: a sum over latents and categories, a mean over particles,
    and a sum over the data, scaled as the bound is. They get no other gradient. For a torch
    optimiser, they are in `elbo(model, guide).parameters()`. `SVI` finds them by itself.
    `elbo.requires_grad_(False)` keeps them constant.

    If there are several sites, c of a site is computed with the drawn codes of the sites before it,
    and with relaxed codes of the sites after it. Those follow from the relaxed code of the site and
    from the noise of the draw. c is 0 (REINFORCE) at a site, unless the site and everything that
    the guide draws after it are one-hot codes in guide and model. The programs must be smooth
    functions of the codes, without argmax or comparisons.

    Args:
        num_particles: S, draws of z per datum.
        eta: initial weight of the relaxed signal. With 0, training begins as REINFORCE.
        temperature: initial tau > 0 of the relaxed codes. The reported value does not depend on it.
        network: None, or a network. It is called with the codes of all sites side by side,
            (2, S, *batch, sum of D K), and with the arguments of model and guide. It returns
            (2, S, *batch) or (2, S, *batch, 1) nats. Its last layer should begin with zeros.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: the temperature is not positive or not finite, or eta is not finite. When it is
            run: the network does not return one number per code.
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
            raise ValueError(f"Expected a finite temperature > 0; got {temperature}. Use 0.5.")
        if not math.isfinite(eta):
            raise ValueError(f"Expected a finite eta; got {eta}. Use 1.0.")
        self.eta = nn.Parameter(torch.tensor(float(eta)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.network = network

    def extra_repr(self) -> str:
        """The settings, for `repr`. Torch adds the network, as a child."""
        return f"{super().extra_repr()}, eta and temperature learned"

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate, and that of its second moment in eta etc."""
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
        # The second moment depends on the programs' weights too, which must not be trained to
        # minimise it. So its gradient is computed here, and is divided evenly among the data.
        slopes = torch.autograd.grad(moment, learned, materialize_grads=True)
        linear = sum((slope * p).sum() for slope, p in zip(slopes, learned, strict=True))
        return surrogate - linear / surrogate.numel()

    def _gradients(self, terms: Terms) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits of each site, and the estimated gradient in them, (S, *batch, D, K) both."""
        sites = terms.pair.codes
        signal = terms.learning_signal.detach()[..., None, None]
        logits = {name: _finite(site.logits) for name, site in sites.items()}
        leaves = {name: value.detach().requires_grad_() for name, value in logits.items()}
        noise = {
            name: (conditional_gumbels(leaves[name], site.code) - leaves[name]).detach()
            for name, site in sites.items()
        }
        for name, site in sites.items():
            leaf, own = leaves[name], noise.pop(name)  # the noise of later sites is left
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
        # All later draws depend on the draw at this site. If they were constants in c, or if c were
        # not smooth in them, the terms with c would not have mean zero.
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
        """The control variate c of one site, (2, S, *batch) nats.

        Args:
            pair: the traces at the draws.
            name: of the site.
            z: (2, S, *batch, D, K) logits of the site plus noise.
            noise: Gumbel noise of each later site.
        """
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
                f"Expected a network output of shape {(*shape,)} or {(*shape, 1)}, one number per "
                f"code; got {(*correction.shape,)}. Change the network."
            )
        return correction.reshape(shape)


def _other_scores(pair: Pair) -> Tensor:
    """Log q of those draws that are neither codes nor reparametrised, (S, *batch) nats."""
    scores = [
        site["score_parts"].score_function
        for name, site in pair.guide_sites.items()
        if name not in pair.codes
    ]
    flat = (pair.plates.flat(score) for score in scores if not is_identically_zero(score))
    return total(flat)


class _LinearCodes(Messenger):
    """Define log p(z) = sum_k z_k log p_k for relaxed codes z at every one-hot site."""

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if not msg["is_observed"] and is_one_hot(fn):
            # Torch takes the argmax of z first, so its log-probability has no gradient in z.
            logits = cast(Tensor, code_logits(fn)).reshape(fn.batch_shape + fn.event_shape)
            msg["fn"] = _LinearCode(logits=logits).to_event(len(fn.event_shape) - 1)


class _RelaxedDraws(Messenger):
    """Give the sites that a guide draws anew relaxed codes softmax((log pi + G) / tau).

    Args:
        noise: site -> G, the Gumbel noise of its code.
        temperature: tau.
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
    has_rsample = True  # so Pyro keeps the gradient of log q in the code, where the KL needs draws

    def log_prob(self, value: Tensor) -> Tensor:
        return (value * _finite(self.logits)).sum(-1)


def _finite(log_p: Tensor) -> Tensor:
    # A category of probability zero is never drawn, but 0 * -inf would be NaN.
    return log_p.clamp(min=math.log(torch.finfo(log_p.dtype).tiny))
