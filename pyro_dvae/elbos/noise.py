"""What programs draw outside of their sites (dropout), and how their later runs meet it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

Program = Callable[..., Any]


class GuideNoise(Messenger):
    """Lets each later run of a guide meet the random numbers of its first, between its sites.

    The law q of other codes must be that under which the draw was made: the same dropout masks.
    So it goes around the guide itself, inside of what draws. What is drawn at a site takes fresh
    numbers, for those of the first run made the first draw; so does the model, which need only be
    the same on average. A run from where the first began is that run once more, draws and all.

    Raises:
        TypeError: in a later run, other random numbers were drawn before a site (no ValueError,
            which Pyro rewrites).
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, list[Tensor]] | None = None
        self._after: dict[str, list[Tensor]] = {}

    def __enter__(self) -> Any:
        self._fresh = random_states()
        self._is_first = self._before is None
        if self._before is None:
            self._start, self._before = self._fresh, {}
        self._is_same = _equal(self._fresh, self._start)
        restore(self._start)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._is_first:
            self._end = random_states()
        else:
            restore(self._end if self._is_same else self._fresh)

    def _pyro_sample(self, msg: Any) -> None:
        name, state = msg["name"], random_states()
        assert self._before is not None
        if self._is_first:
            self._before[name] = state
        elif not _equal(state, self._before.get(name, [])):
            raise TypeError(
                f"Expected a guide that draws the same numbers before site '{name}' whatever the "
                "codes; got one that does not (dropout on earlier codes, say). Call .eval() on "
                "such layers, or use a sampled estimator such as RlooELBO."
            )
        elif not self._is_same:
            restore(self._fresh)

    def _pyro_post_sample(self, msg: Any) -> None:
        if self._is_first:
            self._after[msg["name"]] = random_states()
            return
        self._fresh = random_states()
        restore(self._after[msg["name"]])


def drawing_nothing(program: Program) -> Program:
    """A program that may draw nothing, its latents being given.

    Raises:
        TypeError: when run, torch's random numbers have moved.
    """

    @wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = random_states()
        result = program(*args, **kwargs)
        if not _equal(random_states(), before):
            raise TypeError(
                "Expected a model that draws nothing but its latents, for log p(x) is not the mean "
                "over such draws; got one that does (dropout, say). Call .eval() on such layers, "
                "or use EnumeratedELBO."
            )
        return result

    return run


def without_batch_statistics(program: Program) -> Program:
    """A program whose layers may not take statistics of the batch.

    Raises:
        TypeError: when run, a layer of batch normalisation that does; the message names it.
    """

    @wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _no_batch_statistics():
            return program(*args, **kwargs)

    return run


@contextmanager
def _no_batch_statistics() -> Iterator[None]:
    def look(module: nn.Module, _: Any) -> None:
        if isinstance(module, _NormBase) and (
            (module.training and module.track_running_stats)
            or (isinstance(module, _BatchNorm) and module.running_mean is None)
        ):
            raise TypeError(
                "Expected layers without statistics of the batch, for the codes that are compared "
                f"would be in the batch and counted; got {type(module).__name__} in training. Use "
                "GroupNorm or LayerNorm, or call .eval() on it."
            )

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def random_states() -> list[Tensor]:
    """The states of torch's random numbers."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def restore(states: list[Tensor]) -> None:
    """Draw from here on as after `random_states`."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    # As arrays: the states lie on the host, so that a step on a card reads nothing from there.
    return len(a) == len(b) and all(map(np.array_equal, a, b))
