from __future__ import annotations

import pytest
import torch
from code_laws import check_codes, log_table

from pyro_dvae import HierarchicalPrior
from pyro_dvae.codes import enumerate_codes

D, K, UPPER = 2, 3, (2, 2)


def test_is_a_distribution_with_its_own_conditionals() -> None:
    check_codes(HierarchicalPrior(D, K, UPPER)())


def test_is_the_sum_over_the_upper_layer() -> None:
    prior = HierarchicalPrior(D, K, UPPER, hidden=(5,))
    with torch.no_grad():
        for weight in prior.parameters():
            weight.mul_(3)
    expected = torch.zeros(K**D)
    for upper in enumerate_codes(*UPPER):
        probs = prior.network(upper.flatten()).unflatten(-1, (D, K)).softmax(-1)
        expected += (probs[0][:, None] * probs[1]).flatten() / UPPER[1] ** UPPER[0]
    table = log_table(prior()).exp()
    torch.testing.assert_close(table, expected)
    independent = table.unflatten(0, (K, K))
    independent = independent.sum(1, keepdim=True) * independent.sum(0, keepdim=True)
    assert (independent.flatten() - table).abs().max() > 1e-3


def test_every_weight_is_trained() -> None:
    prior = HierarchicalPrior(D, K, UPPER)
    log_table(prior())[0].backward()
    for weight in prior.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0


def test_upper_layer_of_4096_codes() -> None:
    p = HierarchicalPrior(4, 8, (4, 8))()
    z = p.sample((3, 5))
    assert z.shape == (3, 5, 4, 8)
    assert p.log_prob(z).isfinite().all()


def test_the_codes_of_the_upper_layer_are_not_saved() -> None:
    assert not [key for key in HierarchicalPrior(D, K).state_dict() if "network" not in key]


@pytest.mark.parametrize(
    ("upper", "message"),
    [
        (
            (4, 9),
            r"Expected at most 4096 codes in the upper layer; got K\^D = 9\^4 = 6561\. Choose",
        ),
        ((1, 1), "Expected categories of at least 2; got 1"),
    ],
)
def test_refuses_upper_layers(upper: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalPrior(D, K, upper)
