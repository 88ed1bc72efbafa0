"""What a prior must have, and what it may have."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pyro_dvae.contracts import Contract


class Prior(Contract):
    """p(z): `forward` returns a distribution over codes, with event shape (D, K).

    Subclass this and write `forward`; the members below have defaults. A plain `nn.Module` with a
    `forward` will do as well: `DiscreteVAE` gives it the defaults.

    `forward` takes no argument, or one that `takes` names:

    - None: `forward()` -> p(z), batch shape ().
    - "labels": `forward(labels)`, labels (B,) int64 -> p(z|y), batch shape (B,).
    - "posterior": `forward(posterior)`, where `posterior(features)` is q(z|x) for what the encoder
      sees of data, (C, *event) -> p(z), batch shape ().
    """

    OPTIONAL = (
        "sequential",
        "takes",
        "num_classes",
        "check_labels",
        "refresh",
        "log_prob_error",
    )

    sequential: bool = False
    """Whether each latent depends on those before it: then `forward` returns `SequentialCodes`."""
    takes: Literal["labels", "posterior"] | None = None
    """What `forward` takes."""
    num_classes: int = 0
    """C, the number of different labels, where the prior takes labels; else 0."""

    def check_labels(self, labels: Tensor) -> None:
        """Raise a ValueError for labels (B,) that `forward` cannot take.

        It is called once with all labels, before training and before evaluation.
        """

    def refresh(self) -> None:
        """Recompute what depends on the weights and is too costly for each step.

        It is called before every evaluation.
        """

    def log_prob_error(self) -> float:
        """Standard error of log p(z) in nats, the same for all codes; 0 where it is exact."""
        return 0.0
