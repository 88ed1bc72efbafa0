"""A prior fitted to a trained model's codes: the second stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pyro_dvae.elbos.score_function import ReinforceELBO
from pyro_dvae.training.batches import Batch, TrainingData, check_weights
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE


def with_prior(vae: DiscreteVAE, prior: nn.Module) -> DiscreteVAE:
    """The same networks, likelihood and guide, shared and not copied, under another prior.

    Raises:
        ValueError: the prior's codes have another shape.
    """
    swapped = DiscreteVAE(vae.encoder, vae.decoder, prior, vae.likelihood, vae.posterior_family)
    swapped.train(vae.training)
    if not (vae.takes_labels or swapped.takes_labels):
        with torch.no_grad():
            its_own, other = (tuple(model.prior_codes().event_shape) for model in (vae, swapped))
        if its_own != other:
            raise ValueError(
                f"Expected a prior over codes of shape (D, K) = {its_own}; got {other}. Build it "
                "for the model's codes."
            )
    return swapped


class PriorTrainer(Trainer):
    """Ascends the mean over data of E_q(z|x) log p(z) in the prior; all else stays as it is.

    With q and p(x|z) fixed this is the ELBO but for a constant, so the records hold ELBOs, and the
    best weights are those of the best validation ELBO. At each step z is drawn from q(z|x) anew;
    the optimum is the mean over data of q(z|x), the aggregate posterior (Tomczak & Welling 2018),
    as near as the prior's family comes to it.

    Args:
        vae: a trained model, with the prior to fit in it (see `with_prior`).
        data: see `Trainer`, as for what follows.
        validation: as above.
        **options: what else a `Trainer` takes: `batch_size`, `learning_rate`, ..., `seed`.

    Raises:
        ValueError: as `Trainer`, or a prior without weights.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        data: TrainingData | Batch,
        validation: Batch | None = None,
        **options: Any,
    ) -> None:
        if not list(vae.prior.parameters()):
            raise ValueError(
                f"Expected a prior with weights to fit; got {type(vae.prior).__name__}, which has "
                'none. Use AutoregressivePrior, prior="autoregressive", for example.'
            )
        check_weights(vae.prior, "a prior")
        self._fixed = [vae.encoder, vae.decoder, vae.likelihood, vae.posterior_family]
        super().__init__(vae, ReinforceELBO(max_plate_nesting=1), data, validation, **options)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Within steps the fixed weights ask for no gradient; a trainer of the whole may follow."""
        weights = [weight for part in self._fixed for weight in part.parameters()]
        asked = [weight.requires_grad for weight in weights]
        with super()._stepping():
            for part in self._fixed:
                part.eval()  # no dropout, no statistics of batches
            for weight in weights:
                weight.requires_grad_(False)
            try:
                yield
            finally:
                for weight, flag in zip(weights, asked, strict=True):
                    weight.requires_grad_(flag)


def fit_prior(
    vae: DiscreteVAE,
    data: TrainingData | Batch,
    validation: Batch | None = None,
    *,
    epochs: int = 50,
    patience: int | None = None,
    **options: Any,
) -> Iterator[EpochRecord]:
    """Fit the prior of a trained model to its codes, and keep the best weights.

    `vae = with_prior(trained, AutoregressivePrior(4, 8))`, then `for record in fit_prior(vae, x):`.

    Args:
        vae: see `PriorTrainer`, as for the next two.
        data: as above.
        validation: as above.
        epochs: see `Trainer.run`, as for the next.
        patience: as above.
        **options: see `PriorTrainer`.
    """
    trainer = PriorTrainer(vae, data, validation, **options)
    yield from trainer.run(epochs, patience=patience)
    trainer.keep_best()
