"""Running the programs again at other codes, whatever plates the sites lie in."""

from __future__ import annotations

import pytest
import torch
from oracle import assignments, log_probs
from zoo import PROGRAMS, tiny_data

from pyro_dvae import ReinforceELBO


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_at_the_drawn_codes_nothing_changes(name: str, particles: int) -> None:
    program, x = PROGRAMS[name][0](), tiny_data(3)
    elbo = ReinforceELBO(particles, analytic_kl=False)
    terms = elbo.terms(program.model, program.guide, (x,), {})
    sites = terms.pair.codes
    for site in sites.values():
        assert site.logits.shape[:2] == site.code.shape[:2] == (particles, 3)
        torch.testing.assert_close(site.logits.exp().sum(-1), torch.ones(site.logits.shape[:-1]))
        assert torch.equal(site.value(site.code).squeeze(), site.drawn.squeeze())
    same = elbo.split(terms.pair.at({n: site.code for n, site in sites.items()}))
    twice = elbo.split(
        terms.pair.at({n: site.code.expand(2, *site.code.shape) for n, site in sites.items()})
    )
    for i in range(4):
        torch.testing.assert_close(same[i], terms[i])
        torch.testing.assert_close(twice[i], terms[i].expand(2, particles, 3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_variants_are_the_assignments(name: str) -> None:
    """All joint codes of one datum as variants, against one run an assignment."""
    program, x = PROGRAMS[name][0](), tiny_data(1)
    elbo = ReinforceELBO(analytic_kl=False)
    terms = elbo.terms(program.model, program.guide, (x,), {})
    sites = terms.pair.codes
    every = list(assignments(program, x))
    values = {}
    for key, site in sites.items():
        num_categories = site.code.shape[-1]
        rows = [
            values[key]
            if values[key].is_floating_point()
            else torch.eye(num_categories)[values[key]]
            for values in every
        ]
        values[key] = torch.stack([row.reshape(site.code.shape) for row in rows])
    variants = elbo.split(terms.pair.at(values))
    for i, assignment in enumerate(every):
        log_lik, log_p, log_q = log_probs(program, x, assignment)
        torch.testing.assert_close(variants.log_likelihood[i].sum(), log_lik)
        torch.testing.assert_close(variants.kl[i].sum(), log_q - log_p)
        torch.testing.assert_close(variants.log_guide[i].sum(), log_q)


def test_redrawn_sites_follow_the_guide() -> None:
    program, x = PROGRAMS["hierarchy"][0](), tiny_data(1)
    elbo = ReinforceELBO(analytic_kl=False)
    pair = elbo.terms(program.model, program.guide, (x,), {}).pair
    code = pair.codes["z1"].code.expand(4000, *pair.codes["z1"].code.shape)
    again = pair.at({"z1": code}, redraw=["z2"])
    draws = again.codes["z2"].code
    assert torch.equal(again.codes["z1"].code, code)
    p = again.codes["z2"].logits.exp()[0, 0, 0]
    spread = (p * (1 - p) / 4000).sqrt()
    assert ((draws.mean((0, 1, 2, 3)) - p).abs() <= 4.5 * spread).all()
