"""A description of what was not finite in a training step."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.vae import DiscreteVAE


@torch.no_grad()
def describe_failure(vae: DiscreteVAE, x: Tensor, labels: Tensor | None = None) -> str | None:
    """The name of the term of the loss that is NaN or infinite; None if all terms are finite.

    It looks at the data, q(z|x) of each latent, p(z), p(x|z) at the most probable code, the
    weights, and the gradients that the weights hold, in this order.

    Args:
        vae: the model, at the weights before the step.
        x: (B, *event), the data of the batch.
        labels: (B,), if the prior takes labels.
    """
    if not x.isfinite().all():
        return "the data"
    context = vae.encode(x)  # (B, D, C), logits if the guide is mean-field
    # A logit of -inf excludes a category, which users may do on purpose.
    bad = context.isnan() | (context == torch.inf) | (context == -torch.inf).all(-1, keepdim=True)
    latents = [f"z{d + 1}" for d in range(bad.shape[-2]) if bad[:, d].any()]
    if latents:
        return f"the KL term, from the encoder's logits of {', '.join(latents)}"
    z = vae.mode(x)
    if not vae.prior_codes(labels).log_prob(z).isfinite().all():
        return "the KL term, from the prior"
    log_likelihood = vae.decode(z).log_prob(x)
    if not log_likelihood.isfinite().all():
        count = int((~log_likelihood.isfinite()).sum())
        return f"the reconstruction term, log p(x|z), of {count} of {len(x)} data"
    for name, weight in vae.named_parameters():
        if not weight.isfinite().all():
            return f"the weights {name}"
    for name, weight in vae.named_parameters():
        if weight.grad is not None and not weight.grad.isfinite().all():
            return f"the gradient of {name}"
    return None


def not_finite(what: str, step: int, steps: int, epoch: int) -> FloatingPointError:
    """The error of a step that was not taken.

    Args:
        what: where NaN or infinity is.
        step: the number of the step in its epoch.
        steps: the steps of an epoch.
        epoch: the number of the epoch.
    """
    return FloatingPointError(
        f"Expected a finite loss and gradient; got NaN or infinity in {what}, at step {step} of "
        f"{steps} of epoch {epoch}; the step was not taken. Lower the learning rate, or look at "
        "the range of the data."
    )
