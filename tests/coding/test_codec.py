"""Data come back bit by bit, and take as many bits as an independent sum says."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from zoo import GUIDES, LIKELIHOODS, PRIORS, D, K, P, make_vae, tiny_data, tiny_vae

from pyro_dvae import (
    AutoregressivePrior,
    BoltzmannPrior,
    DiscreteVAE,
    LearnedPrior,
    Mixed,
    MixturePrior,
    MLPDecoder,
    MLPEncoder,
    Normal,
    UniformPrior,
)
from pyro_dvae.coding import compress, decompress

WAYS = ("code", "bits-back", "exact")
DISCRETE = (
    "bernoulli",
    "categorical",
    "ordinal",
    "logistic-mixture",
    "poisson",
    "negative-binomial",
)

PRIORS_OF: dict[str, Any] = {
    "uniform": UniformPrior,
    "learned": LearnedPrior,
    "autoregressive": AutoregressivePrior,
    "mixture": MixturePrior,
    "boltzmann": BoltzmannPrior,
}


def trip(vae: Any, values: Any, **options: Any) -> Any:
    """Compress, decompress, and compare; return what was compressed."""
    found = compress(vae, values, **options)
    again = decompress(vae, found.content)
    assert (again.dtype, again.shape) == (values.dtype, values.shape)
    assert again.tobytes() == np.ascontiguousarray(values).tobytes()
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prior", sorted(PRIORS.keys() - {"conditional"}))
def test_every_prior(prior: str, way: Any) -> None:
    torch.manual_seed(1)
    trip(make_vae(prior), tiny_data(50).numpy().astype(np.uint8), way=way)


@pytest.mark.parametrize("guide", GUIDES)
def test_every_guide(guide: str) -> None:
    torch.manual_seed(2)
    trip(make_vae(guide=guide), tiny_data(50).numpy().astype(bool), way="bits-back")


@pytest.mark.parametrize("name", DISCRETE)
def test_every_discrete_likelihood(name: str) -> None:
    torch.manual_seed(3)
    vae = make_vae(likelihood=name)
    values = LIKELIHOODS[name].data((40, P)).numpy().astype(np.int64)
    for way in WAYS:
        trip(vae, values, way=way)


def test_a_table_without_real_columns() -> None:
    torch.manual_seed(4)
    vae = make_vae()
    vae.likelihood = Mixed(
        [(LIKELIHOODS[name].build((1,)), 1) for name in ("bernoulli", "categorical", "poisson")]
        + [(LIKELIHOODS["ordinal"].build((1,)), 1)]
    )
    vae.decoder = nn.Sequential(nn.Flatten(-2), nn.Linear(D * K, 20), nn.Unflatten(-1, (4, 5)))
    columns = [LIKELIHOODS[name].data((30, 1)) for name in ("bernoulli", "categorical", "poisson")]
    table = torch.cat([*columns, LIKELIHOODS["ordinal"].data((30, 1))], 1)
    trip(vae, table.numpy().astype(np.float64))


@pytest.mark.parametrize("dtype", ["?", ">i4", "<u8", ">f2", "<f4", "|i1"])
def test_the_type_and_the_byte_order_come_back(dtype: str) -> None:
    trip(tiny_vae(), np.asfortranarray(tiny_data(9).numpy().astype(dtype)))


@pytest.mark.parametrize("most", [5, 4095, 4096, 1_000_000])
def test_counts_of_any_size(most: int) -> None:
    vae = make_vae(likelihood="negative-binomial")
    values = np.array([[0, 1, most, 3], [0, 0, most - 1, most]], dtype=np.uint32)
    trip(vae, values)


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 100), marks=pytest.mark.slow)], ids=["3", "97"]
)
def test_round_trips_of_many_seeds(seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        generator = np.random.default_rng(seed)
        latents, categories = int(generator.integers(2, 4)), int(generator.integers(2, 7))
        elements, number = int(generator.integers(1, 12)), int(generator.integers(1, 80))
        prior, likelihood = str(generator.choice(list(PRIORS_OF))), str(generator.choice(DISCRETE))
        params = LIKELIHOODS[likelihood].build((elements,))
        vae = DiscreteVAE(
            MLPEncoder((elements,), latents, categories, hidden=(5,)),
            MLPDecoder((elements,), latents, categories, (5,), params.num_params),
            PRIORS_OF[prior](latents, categories),
            params,
        )
        with torch.no_grad():
            for weight in vae.parameters():
                weight.mul_(generator.uniform(1, 20))  # certain of what is false, too
        values = LIKELIHOODS[likelihood].data((number, elements)).numpy()
        trip(vae, values, way=str(generator.choice(WAYS)))


def _log2_p(vae: Any, x: np.ndarray) -> float:
    """-sum log2 p(x) of bits, summed by hand over all codes, for a uniform prior."""
    with torch.no_grad():
        codes = [torch.eye(K)[list(code)] for code in itertools.product(range(K), repeat=D)]
        logits = torch.cat([vae.decoder(code[None]) for code in codes]).double()
    sign = 2 * torch.from_numpy(x).double()[:, None] - 1  # (N, 1, P)
    per_code = -softplus(-sign * logits).sum(-1)  # log p(x|z), (N, K^D)
    return float(-(per_code.exp().sum(1) / K**D).log2().sum())


def test_the_size_is_that_of_the_sum_over_all_codes() -> None:
    torch.manual_seed(5)
    vae = tiny_vae(event=(64,))
    values = tiny_data(3000, (64,)).numpy().astype(np.uint8)
    expected = _log2_p(vae, values)
    found = compress(vae, values, way="exact")
    # The most that the first block may lose is the entropy of its codes, and a state of 64 bits.
    first = found.header.sizes[0]
    assert expected - 64 < found.bits < 1.0001 * expected + 64 + first * D * math.log2(K)
    assert 8 * len(found.content) < 1.005 * expected + 8 * 200


def test_data_that_a_model_does_not_take_are_refused() -> None:
    vae = tiny_vae()
    x = tiny_data(4).numpy()
    for wrong, reason in [
        (x[:, :3], "shape"),
        (x[0], "shape"),
        (x[:0], "shape"),
        (2 * x, "Bernoulli|0, 1"),
        (np.where(x > 5, x, np.nan), "missing"),
        (np.full_like(x, -0.0), "-0"),
        (x.astype(complex), "dtype"),
    ]:
        with pytest.raises(ValueError, match=reason):
            compress(vae, wrong)
    with pytest.raises(ValueError, match="Expected way"):
        compress(vae, x, way="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["normal", "beta", "continuous-bernoulli", "mixed", "multinomial"])
def test_densities_and_dependent_elements_are_refused_by_name(name: str) -> None:
    vae = make_vae(likelihood=name)
    with pytest.raises(ValueError, match=r"Normal|Beta|ContinuousBernoulli|Multinomial"):
        compress(vae, LIKELIHOODS[name].data((3, P)))


def test_a_prior_given_labels_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="ConditionalPrior"):
        compress(make_vae("conditional"), tiny_data(3))


def test_another_model_is_refused() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    content = compress(vae, x).content
    with torch.no_grad():
        next(vae.parameters()).view(-1)[0] += 1e-3
    with pytest.raises(ValueError, match="Expected the model that compressed"):
        decompress(vae, content)


def test_parts_of_a_users_own() -> None:
    vae = tiny_vae()
    vae.likelihood = Normal((P,))
    assert isinstance(vae, DiscreteVAE)
    with pytest.raises(ValueError, match="Normal"):
        compress(vae, tiny_data(2))
