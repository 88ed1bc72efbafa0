from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import tiny_data, tiny_vae

from pyro_dvae import EnumeratedELBO, MarginalELBO
from pyro_dvae.codes import enumerate_digits, one_hot
from pyro_dvae.elbos.listed import ListedCodes

K = 3


def one_hot_codes(logits: torch.Tensor, num_event: int = 1) -> Any:
    return dist.OneHotCategorical(logits=logits).to_event(num_event)


# The shape of the logits without K, the distribution, and the plates on the right of the codes.
SITES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "plate": ((5, 2), one_hot_codes, 1),
    "no plate": ((2,), one_hot_codes, 0),
    "one variable": ((5,), lambda logits: one_hot_codes(logits, 0), 1),
    "two plates": ((4, 5, 2), one_hot_codes, 2),
    "event of two": ((5, 2, 2), lambda logits: one_hot_codes(logits, 2), 1),
    "numbers": ((5, 2), lambda logits: dist.Categorical(logits=logits).to_event(1), 1),
    "probabilities": ((5, 2), lambda x: dist.OneHotCategorical(x.softmax(-1)).to_event(1), 1),
    "shared": ((2,), lambda logits: one_hot_codes(logits).expand([5]), 1),
    "shared in part": ((4, 1, 2), lambda logits: one_hot_codes(logits).expand([4, 5]), 2),
    "given codes on the left": ((9, 1, 5, 2), one_hot_codes, 1),
    "given codes on the right": ((9, 5, 2), one_hot_codes, 2),
}


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize(("start", "stop"), [(0, None), (1, 3)])
def test_it_is_the_log_prob_of_pyro(name: str, start: int, stop: int | None) -> None:
    shape, make, right = SITES[name]
    logits = torch.randn(*shape, K).requires_grad_()
    fn = make(logits)
    num = fn.event_shape.numel() // (1 if name == "numbers" else K)
    digits = enumerate_digits(num, K, start=start, stop=stop)
    codes = digits if name == "numbers" else one_hot(digits, K)
    value = codes.reshape(-1, *[1] * right, *fn.event_shape)

    found, expected = ListedCodes(value, digits).log_prob(fn), fn.log_prob(value)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    weight = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((weight * log_p).sum(), logits, retain_graph=True)[0]
        for log_p in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)


def test_impossible_codes_have_a_log_prob_of_minus_infinity() -> None:
    fn = one_hot_codes(torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 0.0, 0.0]]))
    digits = enumerate_digits(2, K)
    found = ListedCodes(one_hot(digits, K), digits).log_prob(fn)
    assert found is not None
    assert torch.equal(found == -torch.inf, digits[:, 0] == 1)


class Tempered(dist.OneHotCategorical):
    def log_prob(self, value: torch.Tensor) -> Any:
        return 2 * super().log_prob(value)


def test_a_class_with_a_score_of_its_own_keeps_it() -> None:
    value, digits = one_hot(enumerate_digits(2, K), K), enumerate_digits(2, K)
    own = Tempered(logits=torch.zeros(2, K)).to_event(1)
    assert ListedCodes(value, digits).log_prob(own) is None


def test_what_has_no_logits_is_left_to_pyro() -> None:
    value, digits = torch.eye(2)[:, :1], torch.arange(2)[:, None]
    assert ListedCodes(value, digits).log_prob(dist.Bernoulli(torch.ones(1)).to_event(1)) is None
    masked = one_hot_codes(torch.zeros(5, 2, K)).mask(torch.ones(5, dtype=torch.bool))
    assert ListedCodes(torch.zeros(9, 1, 2, K), enumerate_digits(2, K)).log_prob(masked) is None


@pytest.mark.parametrize("make", [EnumeratedELBO, MarginalELBO])
def test_an_event_that_torch_broadcasts_is_left_to_pyro(make: Any) -> None:
    """A prior of one variable stands for both of the guide's."""
    prior = torch.randn(1, K).requires_grad_()
    q, weight, x = torch.randn(5, 2, K), torch.randn(2 * K, 4), tiny_data(5)
    found = []
    for logits in (prior, prior.expand(2, K)):

        def model(logits: torch.Tensor = logits) -> None:
            with pyro.plate("data", 5):
                z = pyro.sample("z", one_hot_codes(logits))
                pyro.sample("x", dist.Bernoulli(logits=z.flatten(-2) @ weight).to_event(1), obs=x)

        def guide() -> None:
            with pyro.plate("data", 5):
                pyro.sample("z", one_hot_codes(q))

        loss = make().differentiable_loss(model, guide)
        found.append((loss.detach(), torch.autograd.grad(loss, prior)[0]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """The most elements of a tensor that is computed."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().size():
            self.most = max(self.most, out.untyped_storage().size() // out.element_size())
        return out


@pytest.mark.parametrize("make", [EnumeratedELBO, MarginalELBO])
def test_no_tensor_of_a_step_has_all_codes_and_all_categories(make: Any) -> None:
    """C codes of B data are C B numbers; the one-hot codes are C D K."""
    num_latents, num_categories, num_data = 3, 5, 40
    vae, x = tiny_vae(num_latents, num_categories), tiny_data(num_data)
    elbo = make()
    elbo.loss(vae.model, vae.guide, x)
    with Largest() as largest:
        elbo.differentiable_loss(vae.model, vae.guide, x).backward()
    num_codes = num_categories**num_latents
    one_hot_of_each_datum = num_codes * num_data * num_latents * num_categories
    assert num_codes * num_data <= largest.most < one_hot_of_each_datum / 10
