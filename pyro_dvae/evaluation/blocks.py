"""q(z|x) of data in blocks of bounded memory, whose draws do not depend on who computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from pyro_dvae.codes import MAX_CODES, ROWS, num_codes
from pyro_dvae.evaluation.coordinate_ascent import SELECTION_DRAWS
from pyro_dvae.evaluation.inference import Inference, Refiner
from pyro_dvae.evaluation.joint import DecodedBlock, Joint, JointBlock, TabulatedBlock, evaluating
from pyro_dvae.evaluation.plan import Plan, make_plan
from pyro_dvae.posteriors import Posterior, posterior_of
from pyro_dvae.streams import seed_of_part

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


class FoundBlock(NamedTuple):
    """q(z|x) of a block of data."""

    block: JointBlock
    """log p(x, z)."""
    encoded: Posterior
    """The guide's q(z|x)."""
    posterior: Posterior
    """The q(z|x) that was asked for."""


class Blocks:
    """Data in sections, each with random streams of its own, and each section in blocks.

    So the figures of a section do not depend on which process computes it, nor on other sections.

    Args:
        vae: the model, in eval mode while sections are computed (`evaluating`).
        x: (N, *event), of the model's dtype and on its device: a tensor, or an object that returns
            slices of rows (`ServedRows`).
        labels: (N,) int64 on the model's device if the prior is conditional on labels, else None.
        inference: how q(z|x) is found.
        exact: True for a table of log p(x, z) of all codes, False for draws, None for a table where
            it is cheap or needed.
        num_samples: draws of z per datum for the ELBO, if it is not a sum over codes.
        importance_samples: k, draws of z per datum for the importance-weighted bound, or None.
        batch_size: the largest number of data in a block.
        section_size: the largest number of data in a section; None for 256 where codes are drawn,
            and one block where they are not.

    Raises:
        ValueError: x is outside the support, or there are too many codes for the table.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        x: Any,
        labels: Tensor | None,
        inference: Inference,
        *,
        exact: bool | None = None,
        num_samples: int = SELECTION_DRAWS,
        importance_samples: int | None = None,
        batch_size: int = ROWS,
        section_size: int | None = None,
    ) -> None:
        self.x, self.labels, self.inference = x, labels, inference
        with evaluating(vae):
            self.joint = Joint(vae, x, labels, guided=True)
            inference.check(self.joint.num_codes, self.joint.described)
            self.plan = make_plan(
                self.joint,
                exact=inference.needs_table if exact is None else exact,
                num_samples=num_samples,
                importance_samples=importance_samples,
                batch_size=batch_size,
            )
        draws = not self.plan.exact or importance_samples is not None
        self._size = section_size or (ROWS if draws else self.plan.block_size)

    def __len__(self) -> int:
        """The number of sections."""
        return -(-len(self.x) // self._size)

    def refiner(self, number: int) -> Refiner:
        """What finds q(z|x) of the blocks of a section, with random streams of its own."""
        inference = self.inference
        return Refiner(replace(inference, seed=seed_of_part(inference.seed, number)))

    def section(self, number: int, refiner: Refiner) -> Iterator[tuple[slice, FoundBlock]]:
        """The blocks of a section in order, each with its place among all data.

        Args:
            number: of the section, from 0.
            refiner: of `refiner`.
        """
        end = min((number + 1) * self._size, len(self.x))
        vae, step = self.joint.vae, self.plan.block_size
        for start in range(number * self._size, end, step):
            some = slice(start, min(start + step, end))
            with evaluating(vae):
                rows, known = self.x[some], None if self.labels is None else self.labels[some]
                if not isinstance(self.x, Tensor):
                    vae.likelihood.check(rows)
                found = find_posterior(self.plan, self.joint, rows, known, refiner)
            yield some, found


def posterior_blocks(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None,
    inference: Inference,
    *,
    exact: bool | None = None,
    batch_size: int = ROWS,
) -> Iterator[FoundBlock]:
    """q(z|x) of data, block by block in bounded memory. The arguments are those of `Blocks`.

    Raises:
        ValueError: x is outside the support, or there are too many codes for the table.
    """
    blocks = Blocks(vae, x, labels, inference, exact=exact, batch_size=batch_size)
    for number in range(len(blocks)):
        for _, found in blocks.section(number, blocks.refiner(number)):
            yield found


def found_posteriors(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    inference: Inference | None = None,
) -> Iterator[Posterior]:
    """q(z|x) of data, block by block. For the guide's, the encoder alone is run.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event) of the model's dtype and on its device, as of `posterior_blocks`.
        labels: (N,) if the prior is conditional on labels; the guide's needs none.
        inference: how q(z|x) is found; None for the guide's.

    Raises:
        ValueError: there are too many codes for the exact posterior.
    """
    num, section = posterior_sections(vae, x, labels, inference)
    for number in range(num):
        yield from section(number)


def posterior_sections(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    inference: Inference | None = None,
) -> tuple[int, Callable[[int], Iterator[Posterior]]]:
    """The posteriors of `found_posteriors` in sections, which any process can compute.

    Returns:
        The number of sections, and a function from the number of a section to its posteriors, block
        by block. The arguments are those of `found_posteriors`.
    """
    if inference is not None and inference.posterior != "encoder":
        blocks = Blocks(vae, x, labels, inference)

        def found(number: int) -> Iterator[Posterior]:
            for _, block in blocks.section(number, blocks.refiner(number)):
                yield block.posterior

        return len(blocks), found

    def encoded(number: int) -> Iterator[Posterior]:
        with evaluating(vae):
            q = vae.posterior(x[number * ROWS : (number + 1) * ROWS])
            found = posterior_of(q, tabulate=num_codes(*q.event_shape) <= MAX_CODES)
        yield found

    return -(-len(x) // ROWS), encoded


def find_posterior(
    plan: Plan, joint: Joint, x: Tensor, labels: Tensor | None, refiner: Refiner
) -> FoundBlock:
    """q(z|x) of a block of data.

    Args:
        plan: whether log p(x, z) is a table of all codes.
        joint: p(z) and p(x|z) of the model.
        x: (B, *event).
        labels: (B,) if the prior is conditional on labels, else None.
        refiner: finds q(z|x).
    """
    encoded = posterior_of(joint.vae.posterior(x), tabulate=plan.tabulates_guide)
    kind = TabulatedBlock if plan.tabulates_joint else DecodedBlock
    block = kind(joint, x, labels)
    return FoundBlock(block, encoded, refiner.posterior(block, encoded))
