"""A part that a user wrote has every member that the library asks for."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import zoo
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from zoo import D, K, P, make_vae, tiny_data, tiny_vae

import pyro_dvae
from pyro_dvae import (
    Config,
    DiscreteELBO,
    DiscreteVAE,
    LearnedPrior,
    MarginalELBO,
    RlooELBO,
    ScoreFunctionELBO,
    Trainer,
    build_elbo,
    evaluate,
)
from pyro_dvae.contracts import Contract, completed
from pyro_dvae.elbos.gumbel_softmax import ConditionalGumbelELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.rerun import RerunELBO
from pyro_dvae.elbos.summed import SummedELBO
from pyro_dvae.guides import GUIDES, Guide, MeanFieldGuide
from pyro_dvae.likelihoods import LIKELIHOODS, Likelihood, Mixed
from pyro_dvae.likelihoods.linear import ExponentialFamily
from pyro_dvae.priors import PRIORS, Prior
from pyro_dvae.runs.estimators import ESTIMATORS
from pyro_dvae.specs import Named
from pyro_dvae.training.fixed_model import FixedModelELBO

# What a subclass of `Likelihood` may write in place of `forward`.
FLAT = {"log_prob", "observed_log_prob", "element_log_probs", "mean", "typical", "draw"}


class PlainLikelihood(nn.Module):
    num_params = 2
    support = dist.constraints.positive

    def forward(self, params: Tensor, event_dim: int) -> Any:
        loc, scale = params.unbind(-1)
        return dist.LogNormal(loc, scale.exp()).to_event(event_dim)


class PlainPrior(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(D, K))

    def forward(self) -> Any:
        return dist.OneHotCategorical(logits=self.logits).to_event(1)


class PlainGuide(nn.Module):
    def forward(self, context: Tensor) -> Any:
        return dist.OneHotCategorical(logits=2 * context).to_event(1)


def plain_vae() -> Any:
    own = make_vae(likelihood="normal")
    return DiscreteVAE(own.encoder, own.decoder, PlainPrior(), PlainLikelihood(), PlainGuide())


@pytest.mark.parametrize("contract", [Prior, Guide, Likelihood])
def test_every_member_of_a_contract_is_optional_or_required(contract: type[Contract]) -> None:
    members = {name for name in vars(contract) if not name.startswith("_") and name.islower()}
    stated = {*contract.OPTIONAL, *contract.REQUIRED, "forward"}
    assert members - FLAT == stated & set(vars(contract))


def test_plain_modules_are_trained_and_evaluated() -> None:
    vae, x = plain_vae(), tiny_data(9) + 0.5
    names = set(vae.state_dict())
    for _ in range(2):
        for record in Trainer(vae, RlooELBO(2), x, batch_size=3, seed=0).run(1):
            assert record.train_elbo < 0
        assert evaluate(vae, x).log_marginal is not None
        assert set(vae.state_dict()) == names
        vae = pickle.loads(pickle.dumps(copy.deepcopy(vae)))
        assert vae.likelihood.check.args == (vae.likelihood,)


def test_data_outside_the_stated_support_are_refused() -> None:
    vae, x = plain_vae(), tiny_data(9)
    for use in (evaluate, DiscreteVAE.mode):
        with pytest.raises(ValueError, match=r"support of PlainLikelihood.*values from 0 to 1"):
            use(vae, x)


def test_a_part_that_is_exchanged_is_completed_too() -> None:
    vae = tiny_vae()
    assert not vae.takes_labels
    vae.prior, vae.posterior_family = PlainPrior(), PlainGuide()
    assert evaluate(vae, tiny_data(5)).log_marginal is not None
    assert not vae.is_sequential
    vae.prior.sequential = True
    assert vae.is_sequential


def test_columns_of_a_plain_likelihood() -> None:
    mixed = Mixed([(PlainLikelihood(), P)])
    x = tiny_data(3) + 1
    mixed.calibrate(x)
    mixed.before_training(x)
    assert torch.equal(mixed.features(x), x)
    with pytest.raises(ValueError, match="Column 0: Expected data in the support"):
        mixed.check(-x)


def test_parts_of_the_library_are_as_they_were() -> None:
    for part, contract in ((LearnedPrior(D, K), Prior), (MeanFieldGuide(), Guide)):
        before = dict(vars(part))
        assert completed(part, contract) is part  # type: ignore[type-var]
        assert vars(part) == before


def subclasses(contract: type) -> set[type]:
    """The library's own, but for those that others are made of."""
    found = {cls for child in contract.__subclasses__() for cls in {child, *subclasses(child)}}
    found -= {ExponentialFamily}
    return {c for c in found if c.__module__.startswith("pyro_dvae.") and c.__name__[0] != "_"}


@pytest.mark.parametrize(
    ("contract", "named", "tried"),
    [
        (Prior, PRIORS, [build() for build in zoo.PRIORS.values()]),
        (Guide, GUIDES, [build() for build, _ in zoo.GUIDES.values()]),
        (Likelihood, LIKELIHOODS, [row.build((P,)) for row in zoo.LIKELIHOODS.values()]),
    ],
)
def test_every_part_has_a_name_a_row_in_the_zoo_and_is_public(
    contract: type, named: dict[str, Named], tried: list[Any]
) -> None:
    """Whether the README has the name is for `test_readme`."""
    parts = subclasses(contract)
    assert {row.cls for row in named.values()} == parts, "a row in the table of names is missing"
    assert {type(part) for part in tried} == parts, "a row in tests/zoo.py is missing"
    assert {getattr(pyro_dvae, part.__name__, None) for part in parts} == parts, "not public"


def test_every_estimator_has_a_name_a_row_in_the_zoo_and_is_public() -> None:
    bases = {ScoreFunctionELBO, PathwiseELBO, ConditionalGumbelELBO, SummedELBO, RerunELBO}
    # One is made for a model that does not change, by `fit_guide` alone.
    elbos = subclasses(DiscreteELBO) - bases - {FixedModelELBO}
    named = {type(build_elbo(Config(estimator=name), (P,))) for name in ESTIMATORS}
    assert named - {Trace_ELBO} == elbos, "a row in ESTIMATORS is missing"
    tried = {type(build()) for build in zoo.ELBOS.values()}
    assert tried | {MarginalELBO} == elbos, "a row in tests/zoo.py is missing"
    assert {getattr(pyro_dvae, elbo.__name__, None) for elbo in elbos} == elbos, "not public"


def test_a_missing_member_is_told_in_one_line() -> None:
    own = tiny_vae()
    with pytest.raises(ValueError, match=r"^Expected a likelihood with the member num_params; got"):
        DiscreteVAE(own.encoder, own.decoder, own.prior, nn.Identity())
