"""An ELBO remembers nothing of one model that changes what it says of another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, gradient
from torch import Tensor, nn
from zoo import ELBOS, PROGRAMS, refuses, tiny_data, tiny_vae

from pyro_dvae import EnumeratedELBO, MarginalELBO, MLPDecoder, RlooELBO, fit

ALL: dict[str, Callable[[], Any]] = {
    **ELBOS,
    "marginal": MarginalELBO,
    "enumerated, chunks": lambda: EnumeratedELBO(chunk_size=20),
    "marginal, chunks": lambda: MarginalELBO(chunk_size=20),
}
SAME = {"atol": 1e-12, "rtol": 0}


class Nested(nn.Module):
    """One program whose data lie in as many plates as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.num_plates = 1
        self.q, self.p = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.mean = nn.Parameter(torch.randn(3, 4))

    def run(self, logits: Tensor, x: Tensor, *, with_x: bool) -> None:
        shape = x.shape[:-1]
        with pyro.plate_stack("data", shape):
            z = pyro.sample(
                "z", dist.OneHotCategorical(logits=logits.expand(*shape, 1, 3)).to_event(1)
            )
            if with_x:
                likelihood = dist.Bernoulli(logits=z.squeeze(-2) @ self.mean).to_event(1)
                pyro.sample("x", likelihood, obs=x)

    def model(self, x: Tensor) -> None:
        self.run(self.p, x.reshape(*[1] * (self.num_plates - 1), *x.shape), with_x=True)

    def guide(self, x: Tensor) -> None:
        self.run(self.q, x.reshape(*[1] * (self.num_plates - 1), *x.shape), with_x=False)


def stages(name: str) -> Iterator[tuple[str, Any]]:
    """What an ELBO meets one after the other."""
    small, other_k, other_d, many = tiny_vae(2, 3), tiny_vae(2, 5), tiny_vae(3, 2), tiny_vae(4, 3)
    yield "first", small
    yield "another K", other_k
    yield "the first again", small
    yield "another D", other_d
    yield "many more codes", many
    yield "fewer again", small
    for program, (build, _) in PROGRAMS.items():
        if not (name in ELBOS and refuses(name, program)):
            yield program, build()
    nested = Nested()
    for nested.num_plates in (1, 3, 2):
        yield f"{nested.num_plates} plates", nested
    small.decoder = MLPDecoder((4,), 2, 3, (6,))
    yield "another decoder", small
    small.load_state_dict({key: value + 0.1 for key, value in small.state_dict().items()})
    yield "other weights", small
    small.encoder, small.decoder, small.prior = other_k.encoder, other_k.decoder, other_k.prior
    yield "another K in place", small


def step(elbo: Any, program: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    pyro.set_rng_seed(3)
    loss = elbo.differentiable_loss(program.model, program.guide, x)
    return loss.detach(), gradient(loss, program)


@pytest.mark.parametrize("name", ALL)
def test_a_used_elbo_is_as_a_fresh_one(name: str) -> None:
    """In the same thread and in others; a learned baseline is handed on."""
    used, x = ALL[name](), tiny_data(3)
    for number, (stage, program) in enumerate(stages(name)):
        fresh = ALL[name]()
        fresh.load_state_dict(used.state_dict())
        expected = step(fresh, program, x)
        found: list[Any] = []
        if number % 2:
            found.append(step(used, program, x))
        else:
            thread = threading.Thread(target=lambda: found.append(step(used, program, x)))  # noqa: B023
            thread.start()
            thread.join()
        torch.testing.assert_close(found[0], expected, **SAME, msg=f"{name}: {stage}")


@pytest.mark.parametrize("name", ["enumerated", "marginal", "enumerated, chunks"])
def test_one_elbo_in_two_threads_at_once(name: str) -> None:
    used, x, models = ALL[name](), tiny_data(3), [tiny_vae(2, 2), tiny_vae(2, 4)]
    expected = [step(ALL[name](), vae, x) for vae in models]
    found: list[list[Any]] = [[], []]

    def run(which: int) -> None:
        found[which] += [step(used, models[which], x) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, right in zip(found, expected, strict=True):
        assert len(results) == 5
        for result in results:
            torch.testing.assert_close(result, right, **SAME)


@pytest.mark.parametrize("name", ALL)
def test_fit_with_a_used_elbo(name: str) -> None:
    used, x = ALL[name](), tiny_data(6)
    list(fit(tiny_vae(2, 2), used, x, None, epochs=1, batch_size=3))
    fresh = ALL[name]()
    fresh.load_state_dict(used.state_dict())
    results = []
    for elbo in (used, fresh):
        pyro.set_rng_seed(5)
        vae = tiny_vae(2, 4)
        elbos = [record.train_elbo for record in fit(vae, elbo, x, x, epochs=1, batch_size=3)]
        results.append((torch.tensor(elbos), nn.utils.parameters_to_vector(vae.parameters())))
    torch.testing.assert_close(results[0], results[1], **SAME)


@pytest.mark.parametrize("make", [EnumeratedELBO, lambda: EnumeratedELBO(chunk_size=2)])
def test_alternating_models_get_their_exact_values(make: Callable[[], EnumeratedELBO]) -> None:
    x, models, elbo = tiny_data(1), [tiny_vae(1, 2), tiny_vae(2, 3)], make()
    for vae in models * 2:
        exact = -exact_elbo(vae, x)
        loss = elbo.differentiable_loss(vae.model, vae.guide, x)
        torch.testing.assert_close(loss.detach(), exact.detach(), atol=1e-10, rtol=0)
        torch.testing.assert_close(gradient(loss, vae), gradient(exact, vae), atol=1e-10, rtol=0)


def test_too_many_codes_are_refused_after_few() -> None:
    """Before they are made."""
    few, many, x = tiny_vae(1, 2), tiny_vae(12, 8), tiny_data(2)
    elbo = EnumeratedELBO()
    elbo.loss(few.model, few.guide, x)
    with pytest.raises(ValueError, match=r"at most 65536 codes.*8\^12"):
        elbo.loss(many.model, many.guide, x)


def test_an_error_of_the_program_is_its_own() -> None:
    vae, x = tiny_vae(), tiny_data(2)
    elbo = RlooELBO(2)
    elbo.loss(vae.model, vae.guide, x)

    def broken(x: Tensor) -> None:
        raise ZeroDivisionError("of the model")

    with pytest.raises(ZeroDivisionError, match="of the model"):
        elbo.loss(broken, vae.guide, x)


def test_programs_that_change_from_run_to_run_are_refused() -> None:
    """The number of categories is drawn outside of Pyro."""
    sizes = iter(range(2, 20))

    def program() -> None:
        pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(next(sizes))))

    with pytest.raises(TypeError, match=r"the same sites, plates and categories in each run; got"):
        EnumeratedELBO().loss(lambda: None, program)
