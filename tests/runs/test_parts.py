"""Parts by their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_dvae import Config, build_vae
from pyro_dvae.guides import GUIDES
from pyro_dvae.likelihoods import LIKELIHOODS
from pyro_dvae.networks import ENCODERS
from pyro_dvae.priors import PRIORS
from pyro_dvae.specs import build_named, name_and_argument


def _config(**settings: object) -> Config:
    code = {"num_latents": 2, "num_categories": 3, "hidden": (5,), "num_classes": 2}
    return Config(**{**code, **settings})  # type: ignore[arg-type]


def test_names_and_arguments() -> None:
    assert name_and_argument("mixture") == ("mixture", None)
    assert name_and_argument("mixture:20") == ("mixture", "20")
    assert name_and_argument("hierarchical:4x8") == ("hierarchical", "4x8")


def test_text_after_the_colon_is_of_the_type_of_the_default() -> None:
    def build(spec: str) -> Any:
        return build_named("prior", spec, PRIORS, {"num_latents": 2, "num_categories": 3})

    assert len(build("mixture").logits) == 20
    assert len(build("mixture:7").logits) == 7
    with pytest.raises(ValueError, match=r"Expected a whole number after mixture:; got 'x'"):
        build("mixture:x")
    with pytest.raises(ValueError, match=r"Expected number after mixture: of at least 1; got 0"):
        build("mixture:0")


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", PRIORS)
def test_every_prior_and_guide_builds_by_name(prior: str, guide: str) -> None:
    vae = build_vae(_config(prior=prior, guide=guide), (4,))
    labels = torch.tensor([0, 1]) if vae.takes_labels else None
    assert vae.prior_codes(labels).event_shape == (2, 3)
    assert vae.posterior(torch.zeros(2, 4)).event_shape == (2, 3)


@pytest.mark.parametrize(
    ("part", "known"),
    [("prior", PRIORS), ("likelihood", LIKELIHOODS), ("guide", GUIDES), ("network", ENCODERS)],
)
def test_unknown_names(part: str, known: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"Expected {part} to be one of {next(iter(known))}, "):
        _config(**{part: "other"})


@pytest.mark.parametrize("spec", ["uniform", "learned"])
def test_an_argument_that_a_part_does_not_take(spec: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {spec} alone; got {spec}:3"):
        build_vae(_config(prior=f"{spec}:3"), (4,))
