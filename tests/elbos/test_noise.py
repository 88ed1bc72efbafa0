"""Layers that draw (dropout) or take statistics of the batch, where programs run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import FixedDraws, assignments, gradient
from pyro.nn import pyro_method
from torch import Tensor, nn
from zoo import ELBOS, Hierarchy, IndependentSites, P, cat, tiny_data, tiny_vae

from pyro_dvae import (
    ArsmELBO,
    DisarmELBO,
    EnumeratedELBO,
    LocalExpectationELBO,
    MarginalELBO,
    RelaxELBO,
    RlooELBO,
)

RERUN: dict[str, Callable[..., Any]] = {
    "local expectation": LocalExpectationELBO,
    "local expectation, in parts": lambda **options: LocalExpectationELBO(chunk_size=1, **options),
    "disarm": DisarmELBO,
    "rebar": RelaxELBO,
    "arsm": ArsmELBO,
}
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def with_dropout(where: str = "encoder") -> Any:
    vae = tiny_vae()
    for weight in vae.parameters():
        nn.init.normal_(weight, std=0.7)
    before = [nn.Dropout(0.5)] if where in ("encoder", "both") else []
    vae.encoder = nn.Sequential(*before, vae.encoder)
    if where in ("decoder", "both"):
        vae.decoder.layers.insert(1, nn.Dropout(0.5))
    return vae.train()


def in_encoder(elbo: Any, vae: Any, x: Tensor, guide: Any = None) -> Tensor:
    """The gradient in the encoder's weights at a seed, which fixes the encoder's masks."""
    pyro.set_rng_seed(7)
    return gradient(elbo.differentiable_loss(vae.model, guide or vae.guide, x), vae.encoder)


def test_the_reference_drops_out() -> None:
    vae, x = with_dropout(), tiny_data()
    assert not torch.allclose(
        in_encoder(EnumeratedELBO(), vae, x), in_encoder(EnumeratedELBO(), vae.eval(), x)
    )


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("name", ["local expectation", "local expectation, in parts"])
def test_local_expectations_are_exact_under_the_masks_of_the_draw(
    name: str, analytic_kl: bool
) -> None:
    """The mean over all draws, at masks held by the seed, is the sum over all codes at these."""
    vae, x = with_dropout(), torch.ones(1, P)
    exact = in_encoder(EnumeratedELBO(), vae, x)
    pyro.set_rng_seed(7)
    log_q = vae.posterior(x)
    mean: Any = 0.0
    for values in assignments(vae, x):
        elbo = RERUN[name](analytic_kl=analytic_kl, max_plate_nesting=1)
        weight = log_q.log_prob(values["z"]).exp().detach()
        mean = mean + weight * in_encoder(elbo, vae, x, FixedDraws(values)(vae.guide))
    torch.testing.assert_close(mean, exact, **EXACT)


@pytest.mark.parametrize("where", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["local expectation", "disarm", "rebar", "arsm"])
def test_the_mean_gradient_over_masks_and_draws(name: str, where: str) -> None:
    """That of the sum over all codes, within 4.5 standard errors of many independent masks."""
    vae, x = with_dropout(where), torch.ones(2000, P)
    differences = []
    for seed in range(12):
        pair = []
        for elbo in (RERUN[name](), EnumeratedELBO()):
            pyro.set_rng_seed(seed)
            loss = elbo.differentiable_loss(vae.model, vae.guide, x) / len(x)
            pair.append(gradient(loss, vae.encoder))
        differences.append(pair[0] - pair[1])
    difference = torch.stack(differences)
    error = difference.std(0) / len(difference) ** 0.5
    assert (difference.mean(0).abs() <= 4.5 * error + 1e-9).all()
    assert error.norm() < 0.2 * pair[1].norm()


class DropoutOnCodes(Hierarchy):
    """q(z2|z1, x) drops out codes: other codes cannot meet the same masks."""

    def __init__(self) -> None:
        super().__init__()
        self.guide2 = nn.Sequential(nn.Dropout(0.5), self.guide2)


class DropoutBetween(Hierarchy):
    """Between the two sites the guide drops out data, which all codes meet alike."""

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            logits1 = self.guide1(x).unsqueeze(-2)
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=logits1).to_event(1))
            seen = nn.functional.dropout(x, 0.5, self.training)
            logits2 = self.guide2(cat(seen.unsqueeze(-2), z1))
            pyro.sample("z2", dist.OneHotCategorical(logits=logits2).to_event(1))


@pytest.mark.parametrize("name", RERUN)
def test_masks_between_two_sites_are_held(name: str) -> None:
    """The second site's law at other codes is under the masks of the draw."""
    program, x = DropoutBetween(), tiny_data(3)
    seen: list[Tensor] = []
    program.guide2.register_forward_pre_hook(lambda _, args: seen.append(args[0][..., :P]))
    RERUN[name](analytic_kl=False).differentiable_loss(program.model, program.guide, x)
    assert len(seen) > 1
    for again in seen[1:]:
        assert torch.equal(again, seen[0].expand_as(again))


@pytest.mark.parametrize("name", ["local expectation", "rebar"])
def test_dropout_on_codes_is_refused(name: str) -> None:
    program, x = DropoutOnCodes(), tiny_data(3)
    with pytest.raises(TypeError, match=r"^Expected a guide that draws the same .* site 'z2'"):
        RERUN[name](analytic_kl=False).differentiable_loss(program.model, program.guide, x)
    program.eval()
    RERUN[name]().differentiable_loss(program.model, program.guide, x)


def test_the_sum_over_codes_has_one_mask_whatever_the_chunks() -> None:
    vae, x = with_dropout(), tiny_data(3)
    found = []
    for chunk in (8192, 3):
        found.append(in_encoder(EnumeratedELBO(chunk_size=chunk), vae, x))
    torch.testing.assert_close(*found, **EXACT)


def test_a_chunk_is_made_again_as_it_was() -> None:
    """The gradient of the chunks is that of the value, masks of the decoder too."""
    vae, x = with_dropout("both"), tiny_data(3)
    weight = vae.decoder.layers[-1].bias
    values = []
    for step in (1e-5, -1e-5, 0.0):
        with torch.no_grad():
            weight[0] += step
        pyro.set_rng_seed(7)
        loss = EnumeratedELBO(chunk_size=4).differentiable_loss(vae.model, vae.guide, x)
        values.append(loss)
        if step:
            with torch.no_grad():
                weight[0] -= step
    slope = torch.autograd.grad(values[2], weight)[0][0]
    torch.testing.assert_close(slope, (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-6)


def test_log_marginal_refuses_a_model_that_draws() -> None:
    x = tiny_data(3)
    for where in ("decoder", "both"):
        vae = with_dropout(where)
        with pytest.raises(TypeError, match=r"^Expected a model that draws nothing but"):
            MarginalELBO().loss(vae.model, vae.guide, x)
        MarginalELBO().loss(vae.eval().model, vae.guide, x)
    vae = with_dropout("encoder")
    MarginalELBO().differentiable_loss(vae.model, vae.guide, x)


class Switch(nn.Module):
    """Passes all codes on, or none: m = 1 or 0, each with probability 1/2, unless it is set."""

    m: float | None = None

    def forward(self, z: Tensor) -> Tensor:
        return z * (torch.randint(2, ()) if self.m is None else self.m)


def test_the_log_marginal_of_a_noisy_model_is_that_given_one_draw() -> None:
    """The 20 values are log p(x|m = 0) and log p(x|m = 1), whatever the chunks."""
    x, vae, switch = tiny_data(3), with_dropout("none"), Switch()
    vae.decoder.layers.insert(0, switch)
    for size in (2, 100):
        elbo = MarginalELBO(noisy=True, chunk_size=size)
        values = {round(elbo.loss(vae.model, vae.guide, x), 9) for _ in range(20)}
        expected = set()
        for m in (0.0, 1.0):
            switch.m = m
            expected.add(round(MarginalELBO().loss(vae.model, vae.guide, x), 9))
        switch.m = None
        assert values == expected


SUMS = {"enumerated": EnumeratedELBO, "marginal": MarginalELBO}


@pytest.mark.parametrize("name", [*RERUN, *SUMS])
def test_statistics_of_the_batch_are_refused(name: str) -> None:
    vae, x = tiny_vae(), tiny_data(3)
    vae.decoder.layers.insert(1, nn.BatchNorm1d(5))
    build = {**RERUN, **SUMS}[name]
    flat = vae.decoder

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = flat

        def forward(self, z: Tensor) -> Tensor:
            out: Tensor = self.decoder(z.flatten(0, -3))
            return out.reshape(*z.shape[:-2], P)

    vae.decoder = Flat()
    with pytest.raises(TypeError, match=r"^Expected layers without statistics.* got BatchNorm1d"):
        build().differentiable_loss(vae.model, vae.guide, x)
    vae.eval()
    build().differentiable_loss(vae.model, vae.guide, x)


def test_other_estimators_are_not_asked() -> None:
    """They run the guide once: dropout on codes is as good as any other."""
    program, x = DropoutOnCodes(), tiny_data(3)
    for name in ("reinforce", "rloo", "vimco", "gumbel-softmax"):
        ELBOS[name]().differentiable_loss(program.model, program.guide, x)


def test_a_step_without_dropout_draws_what_it_drew() -> None:
    """Holding the random numbers moves none where nothing is drawn between the sites."""
    program, x = IndependentSites(), tiny_data(3)
    for name in RERUN:
        pyro.set_rng_seed(5)
        RERUN[name]().differentiable_loss(program.model, program.guide, x)
        after = torch.rand(1)
        pyro.set_rng_seed(5)
        elbo = RERUN[name]()
        type(elbo).reruns, kept = False, type(elbo).reruns
        try:
            elbo.differentiable_loss(program.model, program.guide, x)
        finally:
            type(elbo).reruns = kept
        assert torch.equal(after, torch.rand(1))
    RlooELBO(2).loss(program.model, program.guide, x)
