"""The figures of each datum, in nats: the ELBO's parts, the importance-weighted bound, log p(x)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.codes import ROWS
from pyro_dvae.evaluation.block_terms import BlockTerms
from pyro_dvae.evaluation.blocks import Blocks
from pyro_dvae.evaluation.inference import Inference
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.plan import check_settings
from pyro_dvae.evaluation.terms import DatumTerms, empty_terms, on_cpu, tensors_of
from pyro_dvae.posteriors import Posterior
from pyro_dvae.processes import in_turn
from pyro_dvae.streams import seed_of_part
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

T = TypeVar("T")


class Counter(Protocol[T]):
    """Counts something of q(z|x) over all data, block by block."""

    def of(self, posterior: Posterior) -> T:
        """What is counted of one block, on the CPU; another process may call this."""

    def add(self, counted: T) -> None:
        """Count a block, in the order of the data."""


def datum_scores(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    bound: Literal["elbo", "importance", "exact"] = "elbo",
    importance_samples: int = 1000,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Tensor:
    """The ELBO, the importance-weighted bound or log p(x) of each datum, in nats.

    The data with the lowest score surprise the model most. The mean of the scores is the figure
    that `evaluate` gives for the same arguments.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        bound: "elbo"; "importance" for the importance-weighted bound; or "exact" for log p(x),
            which needs K^D <= 65,536 (`MAX_CODES`).
        importance_samples: k, draws of z per datum for the importance-weighted bound.
        num_samples: draws of z per datum for the ELBO, if there are too many codes to sum over.
        batch_size: data that are encoded at once. The result does not depend on it.
        seed: seed of the draws.

    Returns:
        (N,) nats, in the order of x.

    Raises:
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.

    Example:
        >>> scores = datum_scores(vae, x)
        >>> surprising = x[scores.argsort()[:10]]
    """
    one_of("bound", bound, ("elbo", "importance", "exact"))
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    terms = datum_terms(
        vae,
        x,
        labels,
        exact=True if bound == "exact" else None,
        importance_samples=importance_samples if bound == "importance" else None,
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
    )
    scores = {
        "elbo": terms.elbo,
        "importance": terms.importance_bound,
        "exact": terms.log_marginal,
    }
    return cast(Tensor, scores[bound])


def exact_terms(
    vae: DiscreteVAE, x: Any, labels: Any = None, *, batch_size: int = ROWS
) -> DatumTerms:
    """Every part of the ELBO as a sum over all K^D codes, and log p(x), (N,) each, in nats.

    Args:
        vae: a model with K^D <= `MAX_CODES`.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        batch_size: data that are encoded at once. The result does not depend on it.

    Raises:
        ValueError: K^D exceeds `MAX_CODES`, or x is outside the support.
    """
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    return datum_terms(vae, x, labels, exact=True, batch_size=batch_size)


def datum_terms(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    *,
    exact: bool | None = None,
    importance_samples: int | None = None,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
    count: Counter[T] | None = None,
    inference: Inference | None = None,
    compare: bool = False,
    together: bool = False,
) -> DatumTerms:
    """The figures of each datum, (N,) each, computed block by block in bounded memory.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), of the model's dtype and on its device: a tensor, or an object that returns
            slices of rows (`ServedRows`), which need not fit into memory.
        labels: (N,) int64 on the model's device if the prior is conditional on labels, else None.
        exact: True for sums over all codes, False for draws, None for sums if they are cheap.
        importance_samples: k, draws of z per datum for the importance-weighted bound; None for no
            such bound.
        num_samples: draws of z per datum for the ELBO, if it is not a sum over codes.
        batch_size: the largest number of data in a block. A block has fewer if K^D is large, and at
            most 256 where codes are drawn.
        seed: seed of the draws.
        count: None, or what counts q(z|x) of all blocks.
        inference: how q(z|x) is found; None for the guide's.
        compare: whether to compute the ELBO of the guide's q(z|x), of the refined one, and of the
            best factorised one too.
        together: whether all processes of the process group call this with the same arguments. Each
            then computes its part of the data, and gets the figures of all.

    Raises:
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.
    """
    check_settings(num_samples, importance_samples, batch_size)
    inference = Inference() if inference is None else inference
    if inference.needs_table and exact is False:
        raise ValueError(
            "Expected exact=True or None for the exact posterior, which is a sum over all codes; "
            "got False. Use posterior='refined'."
        )
    blocks = Blocks(
        vae,
        x,
        labels,
        inference,
        exact=exact,
        num_samples=num_samples,
        importance_samples=importance_samples,
        batch_size=batch_size,
    )

    def section(number: int) -> list[tuple[slice, DatumTerms, T | None]]:
        refiner = blocks.refiner(number)
        terms = BlockTerms(blocks.plan, refiner, seed_of_part(seed, number), compare)
        return [
            (
                some,
                on_cpu(terms(block)) if together else terms(block),
                None if count is None else count.of(block.posterior),
            )
            for some, block in blocks.section(number, refiner)
        ]

    device = blocks.joint.device
    figures: DatumTerms | None = None
    with evaluating(vae):
        for computed in in_turn(section, len(blocks), together=together):
            for some, terms, counted in computed:
                figures = empty_terms(terms, len(x), device) if figures is None else figures
                for whole, part in zip(tensors_of(figures), tensors_of(terms), strict=True):
                    whole[some] = part
                if count is not None and counted is not None:
                    count.add(counted)
    return cast(DatumTerms, figures)._replace(prior_error=blocks.joint.prior_error)
