"""Which q(z|x) is used: the guide's, that of coordinate ascent on the ELBO, or p(z|x) itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from pyro_dvae.checks import at_least, one_of
from pyro_dvae.codes import MAX_CODES, wide
from pyro_dvae.evaluation.coordinate_ascent import SELECTION_DRAWS, DrawnAscent, table_ascent
from pyro_dvae.evaluation.importance import draw_in_chunks
from pyro_dvae.evaluation.joint import JointBlock, TabulatedBlock
from pyro_dvae.posteriors import (
    EnumerablePosterior,
    FactorisedPosterior,
    Posterior,
    TabulatedPosterior,
)

if TYPE_CHECKING:
    pass

PosteriorName = Literal["encoder", "refined", "exact"]
"""Which q(z|x) is used: the guide's; that of coordinate ascent on the ELBO; or p(z|x)."""

SWEEPS = 5
"""Default number of sweeps of coordinate ascent."""
PARTICLES = 2
"""Default number of draws per datum and update, if there are too many codes for a table."""


@dataclass(frozen=True)
class Inference:
    """How q(z|x) of a datum is found.

    Raises:
        ValueError: there is no such posterior, or a number is below 1.
    """

    posterior: PosteriorName = "encoder"
    """The guide's q(z|x), "encoder"; the factorised q(z|x) that coordinate ascent reaches,
    "refined"; or p(z|x), "exact", which needs sums over all codes."""
    sweeps: int = SWEEPS
    """How often coordinate ascent updates each latent."""
    starts: int = 1
    """From how many q(z|x) coordinate ascent starts. The first is the guide's, or the product of
    its marginals. The result with the largest ELBO is kept for each datum."""
    particles: int = PARTICLES
    """Draws per datum and update, if there are too many codes for a table of all of them."""
    seed: int = 0
    """Seed of these draws."""

    def __post_init__(self) -> None:
        one_of("posterior", self.posterior, get_args(PosteriorName))
        at_least("sweeps", self.sweeps, 1)
        at_least("starts", self.starts, 1)
        at_least("particles", self.particles, 1)

    def check(self, number: int, described: str) -> None:
        """Raise a ValueError if there are too many codes for the exact posterior.

        Args:
            number: K^D.
            described: the same for a message.
        """
        if self.needs_table and number > MAX_CODES:
            raise ValueError(
                f"Expected at most {MAX_CODES} codes to sum over for posterior='exact'; got K^D = "
                f"{described}. Use posterior='refined'."
            )

    @property
    def needs_table(self) -> bool | None:
        """True if all codes must be summed over; None if they are where this is cheap."""
        return True if self.posterior == "exact" else None


def inference_of(posterior: PosteriorName | None, refine: int | None, seed: int = 0) -> Inference:
    """The inference that two settings of a function or of a command stand for.

    Args:
        posterior: which q(z|x) is used; None for "refined" if there are sweeps, else "encoder".
        refine: sweeps of coordinate ascent; None for `SWEEPS`.
        seed: of the draws.

    Raises:
        ValueError: there are sweeps, and the posterior is not "refined".
    """
    posterior = posterior or ("encoder" if refine is None else "refined")
    if refine is not None and posterior != "refined":
        raise ValueError(
            f"Expected refine={refine} with posterior='refined'; got {posterior!r}. Leave one of "
            "them out."
        )
    return Inference(posterior, SWEEPS if refine is None else refine, seed=seed)


class Refiner:
    """Finds q(z|x) of the blocks of one data set.

    Args:
        inference: how q(z|x) is found.
    """

    def __init__(self, inference: Inference) -> None:
        self.inference = inference
        self._drawn = DrawnAscent(inference.particles, inference.seed)

    def posterior(self, block: JointBlock, encoded: Posterior) -> Posterior:
        """q(z|x) of a block of data.

        Args:
            block: log p(x, z) of B data; a `TabulatedBlock` for the exact posterior.
            encoded: the guide's q(z|x) of the same data.
        """
        name, joint = self.inference.posterior, block.joint
        if name == "encoder":
            return encoded
        if name == "refined":
            return self.refined(block, encoded)
        assert isinstance(block, TabulatedBlock)
        log_p = block.table().log_softmax(-1)
        return TabulatedPosterior(log_p, joint.num_latents, joint.num_categories)

    def refined(self, block: JointBlock, encoded: Posterior) -> FactorisedPosterior:
        """The factorised q(z|x) that coordinate ascent reaches. Arguments as of `posterior`."""
        log_q, inference = encoded.marginals(), self.inference
        if isinstance(block, TabulatedBlock):
            table = block.table()
            log_q, _ = table_ascent(table, log_q, inference.sweeps, starts=inference.starts)
        else:
            log_q = self._drawn.ascend(block, log_q, inference.sweeps, starts=inference.starts)
        return FactorisedPosterior(log_q)


def elbo_of(block: JointBlock, posterior: Posterior, generator: torch.Generator) -> Tensor:
    """E_q[log p(x, z) - log q(z|x)], (B,) nats: a sum over all codes, or a mean over draws.

    Args:
        block: log p(x, z) of B data.
        posterior: their q(z|x).
        generator: a random number generator of the CPU.
    """
    if isinstance(block, TabulatedBlock) and isinstance(posterior, EnumerablePosterior):
        return posterior.expectation(block.table()) + posterior.entropy()
    entropy, total = posterior.entropy(), wide(torch.zeros(len(block.x), device=block.x.device))
    chunks = draw_in_chunks(
        posterior, len(block.x), SELECTION_DRAWS, block.draws_at_once, generator
    )
    for rows, _, index, log_q in chunks:
        drawn = block.log_joint(rows, index)
        total[rows] += (drawn - log_q if entropy is None else drawn).sum(1)
    mean = total / SELECTION_DRAWS
    return mean if entropy is None else mean + entropy
