"""The base of the estimators that run the programs again, at other codes than the draw."""

from __future__ import annotations

from typing import Any, ClassVar

from pyro_dvae.elbos.base import DiscreteELBO


class RerunELBO(DiscreteELBO):
    """An ELBO whose surrogate needs the learning signal at many codes per datum and particle.

    Args:
        num_particles: S, draws of z per datum. The estimate is their mean.
        chunk_size: codes per datum and particle that are run at once, or None for all. Memory grows
            with it.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: chunk_size < 1.
    """

    reruns: ClassVar[bool] = True

    def __init__(
        self, num_particles: int = 1, *, chunk_size: int | None = None, **options: Any
    ) -> None:
        super().__init__(num_particles, **options)
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"Expected a chunk of at least 1 code; got {chunk_size}. Raise it.")
        self.chunk_size = chunk_size

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, chunk_size={self.chunk_size}"
