from __future__ import annotations

import pytest
import torch
from code_laws import check_codes, log_table
from torch import Tensor

from pyro_dvae import CausalCodes, ConditionalPrior
from pyro_dvae.codes import enumerate_codes

D, K, CLASSES = 2, 3, 4


def prior(*, trained: bool = True) -> ConditionalPrior:
    module = ConditionalPrior(D, K, CLASSES, width=6)
    if trained:
        with torch.no_grad():
            for weight in module.parameters():
                weight.normal_()
    return module


def test_begins_uniform_under_every_label() -> None:
    table = log_table(prior(trained=False)(torch.arange(CLASSES))).exp()
    torch.testing.assert_close(table, torch.full((CLASSES, K**D), K**-D))


def test_is_a_distribution_for_each_label() -> None:
    check_codes(prior()(torch.tensor([1, 3, 0])))


def test_a_label_has_its_own_table_whatever_its_row() -> None:
    """From the network's weights alone."""
    module = prior()
    tables = []
    for label in range(CLASSES):
        table = torch.zeros(K**D)
        for number, code in enumerate(enumerate_codes(D, K)):
            for latent in range(D):
                hidden = module.network.bias[latent]
                hidden = hidden + module.network.from_features[latent](torch.eye(CLASSES)[label])
                if latent:
                    hidden = hidden + module.network.from_latents[0](code[0])
                log_p = module.network.to_logits[latent](hidden.relu()).log_softmax(-1)
                table[number] += log_p[code[latent].argmax()]
        tables.append(table.detach())
    assert (tables[0] - tables[1]).abs().max() > 0.1
    labels = torch.tensor([2, 0, 2, 3, 1])
    torch.testing.assert_close(log_table(module(labels)), torch.stack(tables)[labels])


def test_leading_dimensions_of_codes() -> None:
    p = prior()(torch.tensor([1, 3, 0]))
    assert p.features is not None
    z = p.sample((5,))
    for row in range(3):
        alone = CausalCodes(p.network, p.features[row]).log_prob(z[:, row])
        torch.testing.assert_close(p.log_prob(z)[:, row], alone)


@pytest.mark.parametrize("labels", [torch.arange(CLASSES), torch.empty(0, dtype=torch.long)])
def test_takes_labels(labels: Tensor) -> None:
    module = prior()
    module.check_labels(labels)
    assert module(labels).sample().shape == (len(labels), D, K)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 4]), r"Expected labels from 0 to 3; got 0 to 4\. Renumber them"),
        (torch.tensor([-1, 2]), r"Expected labels from 0 to 3; got -1 to 2\. Renumber them"),
        (torch.tensor([0.0, 1.0]), r"Expected labels as integers; got torch.float32\. Pass"),
        (torch.tensor([True]), r"Expected labels as integers; got torch.bool\. Pass"),
    ],
)
def test_refuses_labels(labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prior().check_labels(labels)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2, 3), "Expected latents of at least 1; got 0"),
        ((2, 2, 1), "Expected labels of at least 2 classes for the conditional prior; got 1"),
        ((2, 2, 2, 0), "Expected width of the prior of at least 1; got 0"),
    ],
)
def test_refuses_sizes(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConditionalPrior(*sizes)
