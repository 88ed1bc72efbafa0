"""Random numbers that programs draw outside of their sites, such as dropout masks."""

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
    """Gives later runs of a guide the dropout masks of its first run.

    An estimator that runs the guide at other codes needs log q(z|x) of the distribution that the
    first draw came from, so with the same dropout masks. The random numbers between the sites of
    the guide are therefore those of the first run. Draws at a site use new random numbers, since
    those of the first run would give the first draw again. The model uses new random numbers too:
    its dropout only has to be right on average. A run that begins at the random state of the first
    run repeats it, with the same draws.

    It is a handler around the guide itself, inside of the one that draws codes.

    Raises:
        TypeError: a later run drew another number of random numbers before a site. It is not a
            ValueError, because Pyro changes the messages of those.
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
                f"Expected a guide that draws the same random numbers before site '{name}' for all "
                "codes; got one that does not (for example, dropout on earlier codes). Call "
                ".eval() on such layers, or use a sampled estimator such as RlooELBO."
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
    """A program that must draw no random number.

    Raises:
        TypeError: when it is run, it has drawn one.
    """

    @wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = random_states()
        result = program(*args, **kwargs)
        if not _equal(random_states(), before):
            raise TypeError(
                "Expected a model that draws nothing but its latents, since log p(x) is no mean "
                "over other draws; got one that does (for example, dropout). Call .eval() on such "
                "layers, or use MarginalELBO(noisy=True) or EnumeratedELBO."
            )
        return result

    return run


def without_batch_statistics(program: Program) -> Program:
    """A program whose layers must not compute statistics of the batch.

    Raises:
        TypeError: when it is run, a layer of batch normalisation computes them. The message names
            its class.
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
                "Expected layers without statistics of the batch, since all codes that are "
                f"compared would count in them; got {type(module).__name__} in training mode. Use "
                "GroupNorm or LayerNorm, or call .eval() on it."
            )

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def random_states() -> list[Tensor]:
    """The states of torch's random number generators, on the CPU and on the current GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def restore(states: list[Tensor]) -> None:
    """Set the generators to states that `random_states` returned."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    # NumPy compares them on the CPU, where the states are. So no step waits for a GPU.
    return len(a) == len(b) and all(map(np.array_equal, a, b))
