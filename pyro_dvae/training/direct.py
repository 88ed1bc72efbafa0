"""The gradient of a step without Pyro's traces, by formulas for the guide (Eqs. 84 and 85)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.codes import code_logits, log_exponentials, one_hot
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.snapshot import at_codes, conditional_means
from pyro_dvae.guides import MeanFieldGuide
from pyro_dvae.priors import LearnedPrior, UniformPrior
from pyro_dvae.vae import DiscreteVAE


class Pulled(NamedTuple):
    """The way of a gradient from the decoder's input to the guide's logits."""

    value: Tensor
    """The codes that the decoder got, as a leaf of its graph."""
    pull: Callable[[Tensor], Tensor]
    """From the gradient in `value` to that in the guide's logits."""


class OutputGradients(NamedTuple):
    """A loss, and its gradients in outputs of the networks, from which autograd goes on."""

    loss: Tensor
    """Minus the ELBO, summed over the data, in nats; without a graph."""
    outputs: tuple[Tensor, ...]
    """Outputs of the networks and of the prior, with their graphs: log p(x|z), the logits of the
    guide, and log p(z). Those without a weight that is trained are left out."""
    gradients: tuple[Tensor, ...]
    """The gradient of the mean loss per datum in each of the outputs."""
    pulled: Pulled | None = None
    """For a pathwise ELBO: how the logits get the rest of their gradient. The first two outputs are
    log p(x|z) and the logits then."""

    def backward(self) -> None:
        """Add the gradient in each weight to its `.grad`."""
        outputs, gradients = self.outputs, self.gradients
        if self.pulled is not None:
            torch.autograd.backward(outputs[0], gradients[0])
            outputs, gradients = outputs[1:], self._left(self.pulled, self.pulled.value.grad)
        torch.autograd.backward(outputs, gradients)

    def in_weights(self, weights: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """The gradient in each weight; None if the loss does not depend on it."""
        grad = partial(torch.autograd.grad, allow_unused=True)
        if self.pulled is None:
            return grad(self.outputs, weights, self.gradients)
        likelihood, *outputs = self.outputs
        in_value, *first = grad(likelihood, [self.pulled.value, *weights], self.gradients[0])
        second = grad(outputs, weights, self._left(self.pulled, in_value))
        both = zip(first, second, strict=True)
        return tuple(b if a is None else a if b is None else a + b for a, b in both)

    def _left(self, pulled: Pulled, in_value: Tensor | None) -> tuple[Tensor, ...]:
        """The gradients in all outputs but log p(x|z), from the one in the decoder's input."""
        _, in_logits, *others = self.gradients
        if in_value is None:  # the decoder does not use the code
            return in_logits, *others
        with torch.no_grad():
            return in_logits + pulled.pull(in_value), *others


def gradient_without_traces(
    vae: DiscreteVAE,
    elbo: Any,
    args: Sequence[Tensor],
    log_e: Callable[[Tensor], Tensor] = log_exponentials,
    known: Tensor | None = None,
) -> OutputGradients | None:
    """The gradient of -1/B sum_b [1/S sum_s log p(x|z_s) - sum_d w_d KL_d], at drawn codes z_s.

    The codes are drawn by the Gumbel-max trick. The gradient is -1/(M B) in log p(x|z_s) for s <= M
    and 0 for the other draws, where M is the number of the ELBO's decoder particles, S if it has
    none. It is -w_d q / B in log p(z), and in the guide's logits of a latent it is

        1/B [w_d q (log q - log p - KL_d) - 1/S sum_s A_s (z_s - q)].

    Where c(z) is known of all codes, A_s is that of f_s - c(z_s), and the logits also have the
    gradient -1/B q (E[c|z_d] - E[c]), with means over the other latents of q(z|x).

    A pathwise ELBO has no A_s. The gradient in log p(x|z_s) goes on through the decoder to the
    code, and from there to the logits by `PathwiseELBO.pull`.

    Against the traces this saves 17 % of a REINFORCE step, 11 % of an RLOO step with 4 particles,
    and 13 to 20 % of a ReinMax step (examples/benchmarks/code_sizes.py); against autograd of the
    same loss, 1 to 3 % of the first two (examples/benchmarks/step_pieces.py).

    Args:
        vae: a model that `needs_no_traces`.
        elbo: a `ScoreFunctionELBO` or a `PathwiseELBO`, with S, M, w and A or `pull`.
        args: x (B, *event), and labels (B,) if the prior takes them.
        log_e: a function that draws log E, E ~ Exp(1), in the shape of a tensor.
        known: c(z), (K^D, B) in nats, of `SnapshotELBO.known`; or None.

    Returns:
        The loss and its gradients; None if the guide or the prior is no product of categoricals.
    """
    x, *labels = args
    num, size = elbo.num_particles, x.shape[0]
    logits, log_p = _guide_logits(vae, x), _log_p(vae, labels)
    if logits is None or log_p is None:
        return None
    with torch.no_grad():
        # For small K this takes half the time of log_softmax.
        log_q = logits - logits.logsumexp(-1, keepdim=True)
        each = log_q.expand(num, *log_q.shape) if num > 1 else log_q
        perturbed = each - log_e(each)
        index = perturbed.argmax(-1)
        code = one_hot(index, log_q.shape[-1], dtype=log_q.dtype)
    is_pathwise = isinstance(elbo, PathwiseELBO)
    own = num if is_pathwise else elbo.decoder_particles or num
    value = code[:own] if own < num else code
    if is_pathwise:
        value = elbo.value(code, perturbed).detach().requires_grad_(logits.requires_grad)
    log_likelihood = vae.decode(value).log_prob(x)
    with torch.no_grad():
        signal = log_likelihood.detach()
        if own < num:
            signal = torch.cat([signal, vae.decode(code[own:]).log_prob(x)])
        q = log_q.exp()
        # A category of probability 0 contributes nothing, although its logarithm is -inf.
        log_ratio = (log_q - log_p).masked_fill_(q == 0, 0)
        kl_latent = (q * log_ratio).sum(-1)  # (B, D)
        weight = elbo.kl_weight(kl_latent) / size
        if isinstance(weight, Tensor) and weight.dim():
            weight = weight.unsqueeze(-1)
        in_logits = (log_ratio - kl_latent.unsqueeze(-1)).mul_(q).mul_(weight)
        if known is not None:
            means = conditional_means(q.unbind(1), known.T.contiguous())
            in_logits.addcmul_(q, torch.stack(means, 1), value=-1 / size)
        if not is_pathwise:
            left = signal
            if known is not None:
                drawn, sizes = index.unbind(-1), [q.shape[-1]] * q.shape[-2]
                left = signal - at_codes(known, drawn, sizes)
            advantage = elbo.advantage(left if num > 1 else left[None]) / (num * size)
            score = (code - q).mul_(advantage.reshape(*code.shape[:-2], 1, 1))
            in_logits -= score.sum(0) if num > 1 else score
        loss = kl_latent.sum() - signal.sum() / num
        in_likelihood = torch.full_like(log_likelihood, -1 / (own * size))
        found = [(log_likelihood, in_likelihood), (logits, in_logits)]
        if isinstance(log_p, Tensor) and log_p.requires_grad:
            found.append((log_p, (q * -weight).sum_to_size(log_p.shape)))
    pulled = None
    if is_pathwise and logits.requires_grad and log_likelihood.requires_grad:
        pulled = Pulled(value, partial(_pull, elbo, log_q, code, perturbed))
    found = [pair for pair in found if pair[0].requires_grad]
    outputs, gradients = zip(*found, strict=True) if found else ((), ())
    return OutputGradients(loss, outputs, gradients, pulled)


def _pull(elbo: PathwiseELBO, log_q: Tensor, code: Tensor, perturbed: Tensor, g: Tensor) -> Tensor:
    """The gradient in the logits, (B, D, K), from that in the codes, (B, D, K) or (S, B, D, K)."""
    pulled = elbo.pull(g, log_q, code, perturbed)
    return pulled.sum(0) if pulled.dim() > log_q.dim() else pulled


def _guide_logits(vae: DiscreteVAE, x: Tensor) -> Tensor | None:
    if type(vae.posterior_family) is MeanFieldGuide:
        return vae.encode(x)
    return code_logits(vae.posterior(x))


def _log_p(vae: DiscreteVAE, labels: list[Tensor]) -> Tensor | float | None:
    """Log p(z_d = k), (D, K) or (B, D, K), or one number for all; None if it is no table."""
    prior: Any = vae.prior
    if type(prior) is UniformPrior and not labels:
        return -math.log(prior.logits.shape[-1])
    logits = prior.logits if type(prior) is LearnedPrior else code_logits(vae.prior_codes(*labels))
    return None if logits is None else logits.log_softmax(-1)
