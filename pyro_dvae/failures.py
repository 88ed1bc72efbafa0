"""What was not finite in a training step, in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def describe_failure(vae: Any, x: Tensor) -> str | None:
    """Name the term of the loss that is NaN or infinite; None if every one is finite.

    Looks at the data, q(z|x) by latent, p(z), p(x|z) at the most probable code, and the gradients
    that the parameters hold, in this order.

    Args:
        vae: a `DiscreteVAE`, at the weights before the step.
        x: (B, *event), the batch.
    """
    if not x.isfinite().all():
        return "the data"
    logits = vae.encode(x)  # (B, D, K)
    # -inf excludes a category; that is the user's to choose.
    bad = logits.isnan() | (logits == torch.inf) | (logits == -torch.inf).all(-1, keepdim=True)
    latents = [f"z{d + 1}" for d in range(bad.shape[-2]) if bad[:, d].any()]
    if latents:
        return f"the KL term, from the encoder's logits of {', '.join(latents)}"
    index = logits.argmax(-1, keepdim=True)
    z = torch.zeros_like(logits).scatter_(-1, index, 1)
    if not vae.prior().log_prob(z).isfinite().all():
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
