"""Checks of model and guide, before a loss is computed. Each error names the site."""

from __future__ import annotations

from pyro.distributions.torch_distribution import MaskedDistribution

from pyro_dvae.elbos.distributions import describe, is_masked
from pyro_dvae.elbos.pair import Pair


def check_programs(pair: Pair, *, marginal: bool = False) -> None:
    """Refuse programs for which every ELBO would be meaningless, or have a wrong gradient.

    A latent that the guide does not draw is drawn from its prior, and its KL is 0. Its gradient is
    right if the draw is reparametrised, or if the prior has no weights. Otherwise it is refused.

    Args:
        pair: the traces of model and guide.
        marginal: whether the latents that only the model has are summed over, and not drawn.

    Raises:
        ValueError: the guide does not draw a latent whose prior has weights; the guide observes a
            site, or has a factor, without a reparametrised gradient; a site has `.mask(False)`, for
            which Pyro gives no score; a discrete site has a mask in model or guide alone; or a
            plate has no size. The message names the site.
    """
    for name, site in (*pair.guide_sites.items(), *pair.model_sites.items()):
        for frame in site["cond_indep_stack"]:
            if frame.size < 0:
                raise ValueError(
                    f"Expected a size for plate '{frame.name}' around site '{name}'; got none. "
                    f'Use pyro.plate("{frame.name}", len(x)).'
                )
    for name, site in pair.guide_sites.items():
        fn = site["fn"]
        if isinstance(fn, MaskedDistribution) and fn._mask is False and not fn.has_rsample:
            raise ValueError(
                f"Expected a tensor as the mask of site '{name}', from {describe(fn)}; got False, "
                "for which Pyro gives no score. Use .mask(torch.tensor(False))."
            )
        if site["is_observed"] and not fn.has_rsample:
            raise ValueError(
                f"Expected a guide that observes nothing; got site '{name}', from {describe(fn)}. "
                "Draw it instead. If it is a factor of a reparametrised draw, use pyro.factor with "
                "has_rsample=True."
            )
    for name in pair.guide_sites.keys() & pair.latents.keys():
        in_model, in_guide = pair.latents[name], pair.guide_sites[name]
        if is_masked(in_model) != is_masked(in_guide) and not in_guide["fn"].has_rsample:
            which = "model" if is_masked(in_model) else "guide"
            raise ValueError(
                f"Expected a mask of site '{name}' in both model and guide, or in none; got one in "
                f"the {which} alone, so that one of log p and log q would count without the other. "
                "Draw it within poutine.mask(mask=...) in both. What obs_mask leaves unobserved "
                "has the mask ~obs_mask in the model."
            )
    for name, site in pair.latents.items():
        if marginal or name in pair.guide_sites or site["fn"].has_rsample:
            continue
        if site["log_prob"].requires_grad:
            raise ValueError(
                f"Expected the guide to draw every latent whose prior is trained; got site "
                f"'{name}', from {describe(site['fn'])}, in the model alone. Draw it in the guide "
                "too, sum over it with MarginalELBO, or mask observations with poutine.mask in "
                "place of obs_mask."
            )


def check_free_bits(pair: Pair) -> None:
    """Refuse free bits if the KL of a site depends on earlier draws.

    The KL of a latent counts only if its mean over the batch exceeds the free bits. If the KL
    depends on draws, this mean is noisy. Each estimator, number of particles and chunk of codes
    would then leave out other latents, and so optimise another objective.

    Raises:
        ValueError: the KL of a site depends on earlier draws. The message names the site.
    """
    dependent = pair.dependent_sites() if len(pair.guide_sites) > 1 else []
    if dependent:
        raise ValueError(
            f"Expected a KL at site '{dependent[0]}' that depends on no earlier draw, since free "
            "bits are set; got one that does. Use free_bits=0, or a mean-field guide and a prior "
            "with independent latents (uniform or learned)."
        )
