"""Laws of every likelihood in the zoo."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import LIKELIHOODS, P, make_vae

from pyro_dvae import Laplace, Normal, RlooELBO, Trainer

EVENT = (4,)
NAMES = list(LIKELIHOODS)
# Of the last dimension of params, as many (C, B, P) arrays at once.
COMPONENTS = {"logistic-mixture": 2}


def make_params(
    likelihood: Any, batch: tuple[int, ...] = (), event: tuple[int, ...] = EVENT
) -> Tensor:
    n = likelihood.num_params
    return torch.randn(*batch, *event, *([n] if n > 1 else []))


def calibrated(name: str, event: tuple[int, ...] = EVENT) -> Any:
    likelihood = LIKELIHOODS[name].build(event)
    likelihood.calibrate(LIKELIHOODS[name].data((50, *event)))
    return likelihood


@pytest.mark.parametrize("name", NAMES)
def test_shapes_support_and_mean_of_draws(name: str) -> None:
    likelihood = calibrated(name)
    params = make_params(likelihood, (3, 1))
    p = likelihood(params, 1)
    assert (p.batch_shape, p.event_shape) == ((3, 1), EVENT)
    assert likelihood.support.is_discrete == (likelihood.kind in ("bits", "levels", "counts"))
    wide = p.expand([3, 2])
    draws = wide.sample((20_000,))
    assert draws.shape == (20_000, 3, 2, *EVENT)
    assert draws.dtype == params.dtype
    assert not draws.requires_grad
    likelihood.check(draws)
    assert p.support.check(draws).all()
    assert wide.mean.shape == (3, 2, *EVENT)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - wide.mean).abs() <= 4.5 * error).all()


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_of_the_likelihood(name: str) -> None:
    """E[log p] of draws is minus the entropy: no other density has as high a one (Gibbs)."""
    likelihood = calibrated(name)
    params = make_params(likelihood)
    draws = likelihood(params, 1).sample((20_000,))
    other = likelihood(params + 0.3 * torch.randn_like(params), 1)
    gain = likelihood(params, 1).log_prob(draws) - other.log_prob(draws)
    # E exp(-gain) = sum of the other probabilities = 1.
    ratio = (-gain).exp()
    assert abs(ratio.mean() - 1) <= 4.5 * ratio.std() / math.sqrt(len(draws))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("batch", "data"),
    [((), ()), ((5,), (5,)), ((3, 5), (5,)), ((7, 1), (5,)), ((2, 7, 1), (5,)), ((5,), (3, 5)),
     ((), (5,)), ((1,), (5,)), ((7, 1), (1,)), ((7, 1), (3, 1, 5))],
)  # fmt: skip
def test_broadcasting_equals_the_loop(
    name: str, batch: tuple[int, ...], data: tuple[int, ...]
) -> None:
    likelihood = calibrated(name)
    params = make_params(likelihood, batch).requires_grad_()
    x = LIKELIHOODS[name].data((*data, *EVENT))
    log_prob = likelihood(params, 1).log_prob(x)
    shape = torch.broadcast_shapes(batch, data)
    assert log_prob.shape == shape
    own = params.shape[len(batch) :]
    every = params.expand(*shape, *own).reshape(-1, *own)
    rows = x.expand(*shape, *EVENT).reshape(-1, *EVENT)
    loop = [likelihood(a, 1).log_prob(b) for a, b in zip(every, rows, strict=True)]
    torch.testing.assert_close(log_prob.flatten(), torch.stack(loop))
    grads = [torch.autograd.grad(t.sum(), params)[0] for t in (log_prob, torch.stack(loop))]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("mixed", "masked")])
@pytest.mark.parametrize("event", [(), (2, 3)])
def test_events_of_other_shapes(name: str, event: tuple[int, ...]) -> None:
    likelihood = calibrated(name, event)
    params = make_params(likelihood, (7, 1), event)
    x = LIKELIHOODS[name].data((5, *event))
    p = likelihood(params, len(event))
    assert p.event_shape == event
    assert p.mean.shape == (7, 1, *event)
    assert p.sample((2,)).shape == (2, 7, 1, *event)
    if hasattr(likelihood, "location"):  # a flat datum has a likelihood of a flat shape
        return
    flat = likelihood(params.reshape(7, 1, -1, *params.shape[2 + len(event) :]), 1)
    torch.testing.assert_close(p.log_prob(x), flat.log_prob(x.reshape(5, -1)))


@pytest.mark.parametrize("name", NAMES)
def test_gradient(name: str) -> None:
    likelihood = calibrated(name)
    x = LIKELIHOODS[name].data((2, *EVENT))
    params = make_params(likelihood, (3, 1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: likelihood(p, 1).log_prob(x), params)


@pytest.mark.parametrize("name", NAMES)
def test_float32_at_extreme_parameters(name: str) -> None:
    likelihood = calibrated(name)
    x = LIKELIHOODS[name].data((30, *EVENT))
    n = likelihood.num_params
    for choices in ([0.0], [-1e4, 0.0, 1e4], [-200.0, -20.0, -1e-4, 1e-4, 20.0, 200.0]):
        index = torch.randint(len(choices), (200, 1, *EVENT, *([n] if n > 1 else [])))
        params = torch.tensor(choices)[index].requires_grad_()
        exact = likelihood(params, 1).log_prob(x)
        likelihood.float()
        # One datum is scored element by element, many by a matrix product where there is one.
        for rows, wanted in ((x, exact), (x[0], exact[:, :1])):
            ours = params.detach().float().requires_grad_()
            p = likelihood(ours, 1)
            log_prob = p.log_prob(rows.float())
            (gradient,) = torch.autograd.grad(log_prob.sum(), ours)
            assert log_prob.isfinite().all()
            assert gradient.isfinite().all()
            assert p.sample().isfinite().all()
            assert p.mean.isfinite().all()
            size = wanted.abs() + wanted.abs().amax(0) + 1
            assert ((log_prob.double() - wanted).abs() <= 1e-5 * size).all()
            if name == "logistic-mixture" and len(choices) > 1:
                continue  # of two components 1e7 nats off, float32 cannot tell which is nearer
            (exact_gradient,) = torch.autograd.grad(wanted.sum(), params, retain_graph=True)
            error = (gradient.double() - exact_gradient).abs()
            assert (error <= 2e-5 * exact_gradient.abs().max()).all()
        likelihood.double()


class _Largest(TorchDispatchMode):
    """The most elements that any tensor made inside holds."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.itemsize)
        return out


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_codes_against_data(name: str) -> None:
    codes, num_data = 10, 20
    likelihood = calibrated(name)
    x = LIKELIHOODS[name].data((num_data, *EVENT))
    params = make_params(likelihood, (codes, 1)).requires_grad_()
    p = likelihood(params, 1)
    p._validate_args = False
    for part in getattr(p, "parts", []):
        part._validate_args = False
    with _Largest() as largest:
        p.log_prob(x).sum().backward()
    if likelihood.cost == 0:  # one matrix product for all codes and data
        assert largest.elements <= max(codes * num_data, params.numel(), x.numel())
    else:
        allowed = codes * num_data * EVENT[0] * COMPONENTS.get(name, 1)
        assert largest.elements <= max(allowed, params.numel())


@pytest.mark.parametrize("name", NAMES)
def test_calibration_is_kept_in_a_checkpoint(name: str) -> None:
    likelihood, fresh = calibrated(name), LIKELIHOODS[name].build(EVENT)
    fresh.load_state_dict(likelihood.state_dict())
    params, x = make_params(likelihood, (5,)), LIKELIHOODS[name].data((5, *EVENT))
    assert torch.equal(likelihood(params, 1).log_prob(x), fresh(params, 1).log_prob(x))
    assert torch.equal(likelihood(params, 1).mean, fresh(params, 1).mean)


@pytest.mark.parametrize("name", NAMES)
def test_features_are_finite_numbers_of_the_stated_shape(name: str) -> None:
    likelihood, x = calibrated(name), LIKELIHOODS[name].data((50, *EVENT))
    features = likelihood.features(x)
    assert features.shape == (50, *likelihood.feature_shape(EVENT))
    assert features.is_floating_point()
    assert features.abs().max() < 10


@pytest.mark.parametrize("name", [name for name in NAMES if name != "masked"])
def test_a_nan_is_refused_in_one_line(name: str) -> None:
    likelihood, x = calibrated(name), LIKELIHOODS[name].data((50, *EVENT))
    likelihood.check(x)
    x[7, 2] = math.nan
    for check in (likelihood.check, likelihood(make_params(likelihood), 1).log_prob):
        with pytest.raises(ValueError, match=r"Expected .*, and NaN") as error:
            check(x)
        assert "\n" not in str(error.value)
        assert re.search(r"[Cc]olumn:? 2", str(error.value))
        x_nan = torch.full_like(x, math.nan)
        with pytest.raises(ValueError, match=r"Expected .* that are all NaN"):
            check(x_nan)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes(name: str) -> None:
    likelihood = LIKELIHOODS[name].build(EVENT)
    x = LIKELIHOODS[name].data((5, *EVENT))[:, :3]
    with pytest.raises(ValueError, match=r"Expected (data with event shape|rows of 4)"):
        likelihood(make_params(likelihood), 1).log_prob(x)
    if likelihood.num_params > 1:
        with pytest.raises(ValueError, match=r"Expected parameters of shape.*num_params="):
            likelihood(make_params(likelihood)[..., :-1], 1)


@pytest.mark.parametrize("family", [Normal, Laplace])
@pytest.mark.parametrize("event", [(), (P,)])
def test_fit_says_what_was_never_calibrated(family: Any, event: tuple[int, ...]) -> None:
    for scale, offset in ((200.0, 1000.0), (1e-3, 0.0)):
        vae, x = _real_vae(family(event)), offset + scale * torch.randn(50, P)
        with pytest.warns(UserWarning, match=r"never calibrated; got a root.*calibrate\(x\)"):
            Trainer(vae, RlooELBO(2), x)
        vae.likelihood.calibrate(x)
        Trainer(vae, RlooELBO(2), x)
        assert vae.likelihood.location.shape == event
    Trainer(_real_vae(family(event)), RlooELBO(2), 3 + 2 * torch.randn(50, P))


@pytest.mark.parametrize("family", [Normal, Laplace])
def test_one_location_and_spread_for_all_elements(family: Any) -> None:
    x = torch.randn(30, 2, 2) * torch.arange(1.0, 5).reshape(2, 2)
    one, flat = family(), family((1,))
    one.calibrate(x)
    flat.calibrate(x.reshape(-1, 1))
    torch.testing.assert_close(one.location, flat.location[0])
    torch.testing.assert_close(one.spread, flat.spread[0])


def test_fit_calibrates_the_total_of_draws() -> None:
    x = torch.tensor([[3.0, 4.0, 0.0, 2.0], [2.0, 2.0, 1.0, 0.0]])
    vae = make_vae(likelihood="multinomial")
    Trainer(vae, RlooELBO(2), x)
    assert vae.likelihood.total_count == 7
    Trainer(vae, RlooELBO(2), 3 * x)
    assert vae.likelihood.total_count == 7


def test_fit_says_it_of_columns() -> None:
    vae, x = make_vae(likelihood="mixed"), LIKELIHOODS["mixed"].data((9, P))
    x[:, 3] *= 1000
    with pytest.warns(UserWarning, match="for Normal, which was never calibrated"):
        Trainer(vae, RlooELBO(2), x)


def _real_vae(likelihood: Any) -> Any:
    vae = make_vae(likelihood="normal")
    vae.likelihood = likelihood
    return vae
