"""What changes with the epochs of a training: beta, and the learning rate."""

from __future__ import annotations


def annealed(done: float, epochs: int, first: float, last: float) -> float:
    """Beta, which falls linearly from `first` to `last` over so many epochs, and stays there.

    Args:
        done: the epochs before the next step, as a fraction.
        epochs: the number of epochs of annealing; 0 for `last` at once.
        first: the beta of the first step.
        last: the beta after annealing.
    """
    left = max(0.0, 1 - done / epochs) if epochs else 0.0
    return last + left * (first - last)


def rate_factor(done: float, left: float, warmup: int, cooldown: int) -> float:
    """The factor of the learning rate: it grows linearly, stays at 1, and falls linearly.

    Args:
        done: the epochs up to the end of the next step, as a fraction.
        left: the epochs from the start of the next step to the end of the training.
        warmup: the epochs over which the factor grows from 0 to 1; 0 begins with 1.
        cooldown: the last epochs, over which the factor falls from 1 to 0; 0 ends with 1.
    """
    up = done / warmup if warmup else 1.0
    down = left / cooldown if cooldown else 1.0
    return min(1.0, up, down)
