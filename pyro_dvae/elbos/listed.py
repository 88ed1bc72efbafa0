"""The log-probabilities of a site at a list of codes, from its logits alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions.score_parts import ScoreParts
from torch import Tensor

from pyro_dvae.codes import code_logits, total, unwrap

_LOG_PROBS = (dist.OneHotCategorical.log_prob, dist.Categorical.log_prob)
"""The methods that score a code by its logits."""


class ListedCodes(NamedTuple):
    """The C codes that a site has at once, in a dimension on the left of all plates."""

    value: Tensor
    """(C, 1, ..., 1, *event), as the site gets them."""
    digits: Tensor
    """(C, D), the categories of each code."""

    def log_prob(self, fn: Any) -> Tensor | None:
        """sum_d log q(z_d) of all codes, (C, *batch), as `fn.log_prob` of the value.

        `fn.log_prob` expands its logits to (C, *batch, D, K), which took more time and memory than
        all else in a step. Here no tensor is larger than (C, *batch). A distribution that is the
        same for all data, such as most priors, is scored once.

        Args:
            fn: the distribution of the site.

        Returns:
            The log-probabilities; None if the distribution has no logits of such codes.
        """
        logits = code_logits(fn)
        inside: Any = unwrap(fn)[0]
        place = self.value.dim() - fn.event_dim  # of the codes, counted from the right
        if logits is None or type(inside).log_prob not in _LOG_PROBS:
            return None  # such as a class of the user's own
        if fn.event_shape != self.value.shape[place:]:
            return None  # torch may broadcast it
        if logits.dim() - 2 >= place and logits.shape[-2 - place] != 1:
            return None
        batch = logits.shape[:-2]
        batch = torch.Size([1] * (place - len(batch))) + batch
        logits = logits.expand(*batch, *logits.shape[-2:])
        for dim, step in enumerate(logits.stride()[:-2]):
            if step == 0:  # the logits are expanded there
                logits = logits.narrow(dim, 0, 1)
        latents = logits.movedim((-2, -1), (0, 1))
        log_p = total(
            latent.index_select(0, digit)
            for latent, digit in zip(latents, self.digits.unbind(-1), strict=True)
        )
        # (C, ..., 1, ...): the codes take the place that is kept for them.
        log_p = log_p.transpose(0, -place).squeeze(0)
        return log_p.expand(*batch[:-place], len(self.digits), *batch[len(batch) - place + 1 :])


def score_listed(sites: Mapping[str, Any], codes: Mapping[str, ListedCodes]) -> None:
    """Set the log-probabilities of the sites of a trace that have all of their codes at once.

    Pyro leaves out what is set already.

    Args:
        sites: of the trace.
        codes: site -> its codes.
    """
    for name in sites.keys() & codes.keys():
        site = sites[name]
        log_p = codes[name].log_prob(site["fn"]) if site["value"] is codes[name].value else None
        if log_p is None:
            continue
        score = ScoreParts(log_p, log_p, 0)  # type: ignore[arg-type]  # as Pyro calls it
        parts = score.scale_and_mask(site["scale"], site["mask"])
        site.update(unscaled_log_prob=log_p, log_prob=parts.log_prob, score_parts=parts)
