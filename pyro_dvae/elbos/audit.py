"""What an ELBO accepts of a pair of programs; the rest is refused by name, before a number."""

from __future__ import annotations

from pyro_dvae.elbos.pair import Pair


def check_latents(pair: Pair) -> None:
    """Refuse a latent of the model alone whose draw needs a score, which no ELBO here takes.

    Such a latent is drawn from its prior: as if the guide drew it from there, its KL is 0. That is
    right where its draw is reparametrised, or depends on no weights.

    Raises:
        ValueError: another such latent; the message names it.
    """
    for name, site in pair.latents.items():
        if name in pair.guide_sites or site["fn"].has_rsample:
            continue
        if site["log_prob"].requires_grad:
            raise ValueError(
                f"Expected the guide to draw every latent whose prior is trained; got site "
                f"'{name}', from {describe(site['fn'])}, in the model alone. Draw it in the guide "
                "too, sum it out with MarginalELBO, or mask what is observed by poutine.mask in "
                "place of obs_mask."
            )


def describe(fn: object) -> str:
    """The name of a site's distribution, for a message."""
    names = [type(fn).__name__]
    while (fn := getattr(fn, "base_dist", None)) is not None:
        names.append(type(fn).__name__)
    return " of ".join(names)
