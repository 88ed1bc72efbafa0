"""The ELBO by enumeration of every code: the oracle of the sampled estimators."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pyro.poutine as poutine
import torch
from pyro.distributions.util import is_identically_zero
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, code_logits, code_value, describe_codes, enumerate_codes
from pyro_dvae.elbos.base import DiscreteELBO, Program, Terms, trial_run
from pyro_dvae.elbos.plates import DataPlates, sample_sites


class EnumeratedELBO(DiscreteELBO):
    """sum_z q(z|x) (log p(x|z) + log p(z) - log q(z|x)) over all K^D codes, without a draw.

    The exact ELBO and its exact gradient, by one run of the model on all the codes, shaped
    (K^D, 1, D, K): a decoder sees each code once, whatever the batch. Several discrete sites are
    enumerated jointly; a continuous site beside them is drawn once, with its pathwise gradient.

    Args:
        max_codes: the most codes (over all discrete sites together) to enumerate.
        **options: `beta`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: when run, K^D exceeds `max_codes`; the message names K^D.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, *, max_codes: int = MAX_CODES, **options: Any) -> None:
        super().__init__(1, **options)
        self.max_codes = max_codes
        self._plates: DataPlates | None = None

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch), the exact objective itself."""
        return self.objective(terms)

    def terms(
        self, model: Program, guide: Program, args: Any, kwargs: Any
    ) -> tuple[Terms, DataPlates]:
        """Expectations over all codes, as if of one particle."""
        if self._plates is None:
            self._plates = trial_run(model, guide, args, kwargs)
        enumeration = _Enumeration(self._plates, self.max_codes)
        with enumeration:
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.replay(model, trace=guide_trace)
        model_trace = prune_subsample_sites(poutine.trace(replayed).get_trace(*args, **kwargs))
        guide_trace = prune_subsample_sites(guide_trace)
        model_trace.compute_log_prob()
        guide_trace.compute_score_parts()

        plates = DataPlates(model_trace, guide_trace)
        log_lik, kl, log_code = self._sums(model_trace, guide_trace, plates)
        code = log_code.exp()

        def expect(value: Tensor) -> Tensor:
            # A code of probability zero contributes nothing, though its log q is -inf.
            weighted = code * torch.where(code > 0, value, 0)
            enumerated = tuple(range(weighted.dim() - plates.nesting))
            return plates.flat(weighted.sum(enumerated) if enumerated else weighted) / plates.scale

        # Nothing is drawn, so there is no score and no signal.
        nothing = torch.zeros_like(kl.sum())
        return Terms(expect(log_lik), expect(kl), nothing, nothing), plates

    def _sums(
        self, model_trace: Any, guide_trace: Any, plates: DataPlates
    ) -> tuple[Tensor, Tensor, Tensor]:
        model_sites, guide_sites = sample_sites(model_trace), sample_sites(guide_trace)
        log_lik = kl = log_code = torch.zeros(())
        for name, site in model_sites.items():
            log_p = plates.per_datum(site["log_prob"])
            if site["is_observed"]:
                log_lik = log_lik + log_p
                continue
            log_q, score, _ = guide_sites[name]["score_parts"]
            kl = kl + plates.per_datum(log_q) - log_p
            if not is_identically_zero(score):
                log_code = log_code + plates.per_datum(score)
        return log_lik, kl, log_code


class _Enumeration(Messenger):
    """Give each discrete site of a guide all of its codes, each site in a dimension of its own."""

    def __init__(self, plates: DataPlates, max_codes: int) -> None:
        super().__init__()
        self.plates = plates
        self.max_codes = max_codes
        self.dims = plates.nesting
        self.total = 1

    def _pyro_sample(self, msg: Any) -> None:
        logits = code_logits(msg["fn"])
        if msg["is_observed"] or logits is None:
            return
        num_latents, num_categories = logits.shape[-2:]
        own = {f.dim: f.size for f in msg["cond_indep_stack"] if f.name not in self.plates.names}
        num_latents *= math.prod(own.values())
        self.total *= num_categories**num_latents
        if self.total > self.max_codes:
            raise ValueError(
                f"Expected at most {self.max_codes} codes to enumerate; got K^D = "
                f"{describe_codes(num_latents, num_categories)} at site '{msg['name']}'. Use a "
                "sampled estimator such as RlooELBO, or fewer latents or categories."
            )
        codes = enumerate_codes(
            num_latents, num_categories, device=logits.device, dtype=logits.dtype
        )
        value = code_value(msg["fn"], codes)
        batch = [own.get(dim, 1) for dim in range(-self.dims, 0)]
        msg["value"] = value.reshape(-1, *batch, *msg["fn"].event_shape)
        self.dims += 1
