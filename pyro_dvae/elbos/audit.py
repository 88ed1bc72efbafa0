"""What an ELBO accepts of a pair of programs; the rest is refused by name, before a number."""

from __future__ import annotations

from pyro.distributions.torch_distribution import MaskedDistribution

from pyro_dvae.elbos.distributions import describe
from pyro_dvae.elbos.pair import Pair


def check_programs(pair: Pair, *, marginal: bool = False) -> None:
    """Refuse what has no meaning, or a wrong gradient, in every ELBO that draws or sums codes.

    A latent of the model alone is drawn from its prior: as if the guide drew it from there, its KL
    is 0. That is right where its draw is reparametrised, or depends on no weights.

    Args:
        pair: the traces.
        marginal: the latents of the model alone are summed, not drawn.

    Raises:
        ValueError: another such latent; a site in the guide that is observed, or a factor, without
            a reparametrised gradient; draws of `.mask(False)`, to which Pyro gives no score; or a
            plate without a size. The message names it.
    """
    for name, site in (*pair.guide_sites.items(), *pair.model_sites.items()):
        for frame in site["cond_indep_stack"]:
            if frame.size < 0:
                raise ValueError(
                    f"Expected a size for plate '{frame.name}' around site '{name}'; got none. Use "
                    f'pyro.plate("{frame.name}", len(x)), say.'
                )
    for name, site in pair.guide_sites.items():
        fn = site["fn"]
        if isinstance(fn, MaskedDistribution) and fn._mask is False and not fn.has_rsample:
            raise ValueError(
                f"Expected a tensor as the mask of site '{name}', from {describe(fn)}; got False, "
                "under which Pyro scores no draw. Use .mask(torch.tensor(False))."
            )
        if site["is_observed"] and not fn.has_rsample:
            raise ValueError(
                f"Expected a guide that observes nothing; got site '{name}', from {describe(fn)}. "
                "Draw it, or use pyro.factor with has_rsample=True for what belongs to a "
                "reparametrised draw."
            )
    for name, site in pair.latents.items():
        if marginal or name in pair.guide_sites or site["fn"].has_rsample:
            continue
        if site["log_prob"].requires_grad:
            raise ValueError(
                f"Expected the guide to draw every latent whose prior is trained; got site "
                f"'{name}', from {describe(site['fn'])}, in the model alone. Draw it in the guide "
                "too, sum it out with MarginalELBO, or mask what is observed by poutine.mask in "
                "place of obs_mask."
            )


def check_free_bits(pair: Pair) -> None:
    """Refuse free bits for a site whose KL depends on earlier draws.

    The mean over the batch decides whether a KL counts. Where it depends on draws, that mean is
    known up to their noise alone, so each estimator, number of particles and chunk of codes would
    decide otherwise, and none would estimate the gradient of the same objective.

    Raises:
        ValueError: such a site; the message names it.
    """
    dependent = pair.dependent_sites() if len(pair.guide_sites) > 1 else []
    if dependent:
        raise ValueError(
            f"Expected a KL at site '{dependent[0]}' that depends on no earlier draw, for free "
            "bits; got one that does. Use free_bits=0, or a mean-field guide and a prior of "
            "independent latents (uniform or learned)."
        )
