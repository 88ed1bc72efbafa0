"""Priors, guides and estimators of the user's own by the name `module:factory`.

`networks/plugins.py` does the same for networks and likelihoods, and says when code is imported.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer import ELBO

from pyro_dvae.contracts import completed
from pyro_dvae.guides import Guide
from pyro_dvae.networks.plugins import build_own, own_takes
from pyro_dvae.networks.trial import Subject, refuse
from pyro_dvae.priors import Prior
from pyro_dvae.streams import RandomStream


def own_prior(
    name: str,
    num_latents: int,
    num_categories: int,
    num_classes: int,
    event_shape: tuple[int, ...],
) -> Prior:
    """The prior of `module:factory`, tried once unless it needs the guide.

    Args:
        name: "module:factory"; the factory gets those of the other arguments, by keyword, that it
            has arguments for. One that has `num_classes` is a prior p(z|y), conditional on labels.
        num_latents: D.
        num_categories: K.
        num_classes: C, the number of different labels; 0 for a prior p(z).
        event_shape: shape of one datum.

    Raises:
        ValueError: it cannot be imported or built, or fails its trial; says what to change.
    """
    settings = {
        "num_latents": num_latents,
        "num_categories": num_categories,
        "num_classes": num_classes,
        "event_shape": event_shape,
    }
    subject = Subject("prior", name, settings)
    prior = completed(build_own(subject), Prior)
    if (prior.takes == "labels") != (num_classes > 0):
        what = (
            "have an argument num_classes, as a prior with takes = 'labels'"
            if prior.takes == "labels"
            else "have takes = 'labels', as a prior whose factory takes num_classes"
        )
        raise ValueError(f"Expected {subject} to {what}; got it without. Add it.")
    if prior.num_classes != num_classes:
        raise ValueError(
            f"Expected {subject} to have num_classes {num_classes}; got {prior.num_classes}. Set "
            "the attribute to the argument."
        )
    labels = torch.zeros(2, dtype=torch.int64, device="cpu")
    given = () if prior.takes is None else (labels,)
    if prior.takes != "posterior":
        batch = () if prior.takes is None else (2,)
        _try(subject, prior, given, batch, (num_latents, num_categories))
    return prior


def own_guide(name: str, num_latents: int, num_categories: int) -> Guide:
    """The guide of `module:factory`, tried on the context of two rows.

    Args:
        name: "module:factory"; the factory gets those of the other arguments, by keyword, that it
            has arguments for.
        num_latents: D.
        num_categories: K.

    Raises:
        ValueError: it cannot be imported or built, or fails its trial; says what to change.
    """
    settings = {"num_latents": num_latents, "num_categories": num_categories}
    subject = Subject("guide", name, settings)
    guide = completed(build_own(subject), Guide)
    context = torch.zeros(2, num_latents, guide.num_outputs or num_categories, device="cpu")
    _try(subject, guide, (context,), (2,), (num_latents, num_categories))
    return guide


def own_estimator(name: str, settings: dict[str, Any], sizes: dict[str, Any]) -> ELBO:
    """The ELBO of `module:factory`.

    Args:
        name: "module:factory", such as a subclass of `DiscreteELBO`. The factory gets those of the
            settings and sizes, by keyword, that it has arguments for.
        settings: name -> value, which the ELBO must have.
        sizes: name -> value, which a factory need not use.

    Raises:
        ValueError: it cannot be imported or built, or does not take a setting; says what to change.
    """
    subject = Subject("estimator", name, settings | sizes)
    elbo: ELBO = build_own(subject, ELBO)
    for setting, value in settings.items():
        taken = own_takes(name, "estimator", setting)
        if not taken and getattr(elbo, setting, _USUAL.get(setting)) != value:
            raise ValueError(
                f"Expected {subject} to take {setting} by keyword; got {setting}={value}, which "
                "it has no argument for. Leave it out."
            )
    return elbo


_USUAL = {"beta": 1.0, "free_bits": 0.0}
"""The settings of an ELBO that has no such attribute."""


def _try(
    subject: Subject,
    part: torch.nn.Module,
    given: tuple[torch.Tensor, ...],
    batch: tuple[int, ...],
    event: tuple[int, int],
) -> None:
    """Refuse a part that does not return a distribution over codes that scores its own draws."""
    with torch.no_grad(), RandomStream(0):
        try:
            codes = part(*given)
            shape = (tuple(codes.batch_shape), tuple(codes.event_shape))
            scored = codes.log_prob(codes.sample())
        except Exception as error:
            refuse(subject, "to return a distribution over codes", error)
    if not isinstance(codes, TorchDistributionMixin):
        raise ValueError(
            f"Expected {subject} to return a distribution of Pyro; got {type(codes).__name__}. Use "
            "the classes in pyro.distributions."
        )
    if shape != (batch, event):
        raise ValueError(
            f"Expected {subject} to return a distribution of batch shape {batch} and event shape "
            f"(num_latents, num_categories) = {event}; got {shape[0]} and {shape[1]}. Call "
            ".to_event(1) for latents that are independent."
        )
    if not scored.isfinite().all():
        raise ValueError(
            f"Expected {subject} to give its own draws a finite log-probability; got {scored}. "
            "Look at its first weights."
        )
