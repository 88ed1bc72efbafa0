"""Exact expectations by brute force: one program run an assignment, nothing of the library."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

PARTICLES = "num_particles_vectorized"  # Pyro's name of the plate of particles


class FixedDraws(Messenger):
    """A guide's sites take these values instead of draws; they are not observed.

    Values of several particles are left out where the guide runs without their plate, as in a trial
    run or in a sum over all codes.
    """

    def __init__(self, values: dict[str, Tensor], particles: int = 1) -> None:
        super().__init__()
        self.values, self.particles = values, particles

    def _pyro_sample(self, msg: Any) -> None:
        plates = {handler.name for handler in _PYRO_STACK if isinstance(handler, pyro.plate)}
        fits = self.particles == 1 or PARTICLES in plates
        if msg["name"] in self.values and fits:
            msg["value"] = self.values[msg["name"]]


def gradient(loss: Tensor, module: torch.nn.Module) -> Tensor:
    """The gradient in every parameter, as one vector."""
    grads = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for p, g in zip(module.parameters(), grads, strict=True)
        ]
    )


def latent_sites(program: Any, x: Tensor) -> dict[str, Any]:
    """The random sites of a guide, from one run of it."""
    nodes = poutine.trace(program.guide).get_trace(x).nodes
    return {
        name: site
        for name, site in nodes.items()
        if site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample"
    }


def assignments(program: Any, x: Tensor) -> Iterator[dict[str, Tensor]]:
    """Every joint value of the discrete sites of a guide, of all its data together."""
    choices: dict[str, list[Tensor]] = {}
    for name, site in latent_sites(program, x).items():
        fn = site["fn"].base_dist if isinstance(site["fn"], dist.Independent) else site["fn"]
        shape = site["fn"].shape()
        one_hot = isinstance(fn, dist.OneHotCategorical)
        num_categories = fn.logits.shape[-1]
        size = torch.Size(shape).numel() // (num_categories if one_hot else 1)
        choices[name] = []
        for digits in itertools.product(range(num_categories), repeat=size):
            index = torch.tensor(digits, device=x.device)
            value = torch.eye(num_categories, dtype=x.dtype, device=x.device)[index]
            choices[name].append((value if one_hot else index).reshape(shape))
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def log_probs(program: Any, x: Tensor, values: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x|z), log p(z) and log q(z|x), each summed over everything."""
    guide = poutine.trace(FixedDraws(values)(program.guide)).get_trace(x)
    model = poutine.trace(poutine.replay(program.model, trace=guide)).get_trace(x)
    latent = model.log_prob_sum(lambda name, site: not site["is_observed"])
    return model.log_prob_sum() - latent, latent, guide.log_prob_sum()


def unscaled(program: Any, x: Tensor, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log p(x, z) and log q(z|x), whatever `poutine.scale` or a minibatch make of them."""
    guide = poutine.trace(FixedDraws(values)(program.guide)).get_trace(x)
    model = poutine.trace(poutine.replay(program.model, trace=guide)).get_trace(x)
    totals = []
    for trace in (model, guide):
        trace.compute_log_prob()
        sites = (node for node in trace.nodes.values() if node["type"] == "sample")
        totals.append(sum(site["unscaled_log_prob"].sum() for site in sites))
    return totals[0], totals[1]


def exact_elbo(program: Any, x: Tensor, beta: float = 1.0) -> Tensor:
    """sum_z q(z|x) (log p(x|z) - beta (log q(z|x) - log p(z))), differentiable, over all data."""
    total = torch.zeros((), device=x.device)
    for values in assignments(program, x):
        log_lik, log_p, log_q = log_probs(program, x, values)
        total = total + unscaled(program, x, values)[1].exp() * (log_lik - beta * (log_q - log_p))
    return total


def stack_particles(draws: tuple[dict[str, Tensor], ...], nesting: int, event_dims: Any) -> Any:
    """One dict a particle -> values with the particles in the dimension left of all plates."""
    if len(draws) == 1:
        return draws[0]
    stacked = {}
    for name in draws[0]:
        value = torch.stack([draw[name] for draw in draws])
        missing = nesting - (value.dim() - 1 - event_dims[name])
        stacked[name] = value.reshape(len(draws), *[1] * missing, *value.shape[1:])
    return stacked


def expected(make_elbo: Any, program: Any, x: Tensor, particles: int, nesting: int) -> Any:
    """Expected loss and expected gradient of an ELBO over all tuples of draws."""
    event_dims = {name: site["fn"].event_dim for name, site in latent_sites(program, x).items()}
    singles = list(assignments(program, x))
    log_q = [unscaled(program, x, values)[1].detach() for values in singles]
    loss: Any = 0.0
    grad: Any = 0.0
    for tuple_of_draws in itertools.product(range(len(singles)), repeat=particles):
        draws = tuple(singles[i] for i in tuple_of_draws)
        values = stack_particles(draws, nesting, event_dims)
        weight = sum(log_q[i] for i in tuple_of_draws).exp()
        value = make_elbo().differentiable_loss(
            program.model, FixedDraws(values, particles)(program.guide), x
        )
        loss = loss + weight * value.detach()
        grad = grad + weight * gradient(value, program)
    return loss, grad
