"""The gradient of a step of training: without Pyro's traces where that is possible."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from pyro_dvae.codes import num_codes
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.gumbel_softmax import GumbelSoftmaxELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO, ScoreFunctionELBO
from pyro_dvae.elbos.snapshot import SnapshotELBO
from pyro_dvae.elbos.straight_through import GappedStraightThroughELBO, StraightThroughELBO
from pyro_dvae.guides import MeanFieldGuide
from pyro_dvae.likelihoods.base import FlatDistribution
from pyro_dvae.likelihoods.bernoulli import IndependentBernoulli
from pyro_dvae.priors import LearnedPrior, UniformPrior
from pyro_dvae.process import without_checks
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.direct import gradient_without_traces
from pyro_dvae.training.originals import (
    are_unchanged,
    attributes,
    class_members,
    has_hooks,
    has_own_methods,
    is_original,
    members,
    same,
)
from pyro_dvae.vae import DiscreteVAE


class Backward:
    """Sets the gradient of each weight for a batch.

    Args:
        vae: the model and its guide.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        optimizer: the optimizer, which holds the weights.
        rows: a few data for a trial run, as model and guide take them: x (B, *event) first.
    """

    def __init__(
        self, vae: DiscreteVAE, elbo: Any, optimizer: FusedAdam, rows: tuple[Tensor, ...]
    ) -> None:
        self.vae, self.elbo, self.optimizer = vae, elbo, optimizer
        self._is_plain = needs_no_traces(vae, elbo, rows)
        self._is_wrapped = am_i_wrapped()
        self._remember()
        self._one = torch.ones((), device=optimizer.device, dtype=torch.float32)

    def notice_changes(self) -> bool:
        """Look for changes before an epoch; after one, the graphs of a step are no longer valid.

        A change is a part of the model that was exchanged, a setting or a method of a part or of
        the ELBO that was replaced, or a weight that was frozen or unfrozen. This also notices
        whether effect handlers of Pyro are active, which must see the sites of the programs.

        Returns:
            Whether something changed.
        """
        self._is_wrapped = am_i_wrapped()
        before = self._parts, self._settings, self._trained
        self._remember()
        same_parts = same(self._parts, before[0])
        # The trial run was one of the parts as they were.
        self._is_plain = self._is_plain and same_parts and is_as_written(self.vae, self.elbo)
        return not (same_parts and same(self._settings, before[1]) and self._trained == before[2])

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles; `__setstate__` looks at the copied parts anew."""
        own = ("_parts", "_settings", "_trained")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remember()

    def _remember(self) -> None:
        self._parts = attributes(self.vae, methods=True)
        self._settings = attributes(self.vae, methods=False) + class_members(self.vae)
        if isinstance(self.elbo, nn.Module):
            for methods in (False, True):
                self._settings += attributes(self.elbo, methods=methods)
            self._settings += class_members(self.elbo)
        self._trained = [weight.requires_grad for weight in self.optimizer.weights]

    def __call__(self, batch: tuple[Tensor, ...], bad: Tensor) -> Tensor:
        """Set each weight's gradient of the mean loss per datum; never reads from the device.

        Args:
            batch: the arguments of model and guide, x (B, *event) first.
            bad: a float32 scalar; it becomes 1 if the loss or a gradient is NaN or infinite.

        Returns:
            The loss, summed over the batch, without a graph.
        """
        self.optimizer.forget_gradients()
        found = None
        if self._is_plain and not self._is_wrapped:
            known = self._known(batch)
            found = gradient_without_traces(self.vae, self.elbo, batch, known=known)
        if found is not None:
            loss = found.loss
            _check_graph(bool(found.outputs))
            found.backward()
        elif not hasattr(self.elbo, "differentiable_loss"):
            loss = self._of_pyros_own(batch)
        else:
            loss = self.elbo.differentiable_loss(self.vae.model, self.vae.guide, *batch)
            _check_graph(loss.requires_grad)
            loss.backward(torch.full_like(loss, 1 / batch[0].shape[0]))
            loss = loss.detach()
        all_finite = [loss, *self.optimizer.gradients]
        torch._amp_foreach_non_finite_check_and_unscale_(all_finite, bad, self._one)
        return loss

    def _known(self, batch: tuple[Tensor, ...]) -> Tensor | None:
        """(K^D, B) log p(x|z) under a model that the ELBO knows at all codes, or None."""
        if not isinstance(self.elbo, SnapshotELBO):
            return None
        codes = self.vae.prior_codes(*batch[1:]).event_shape
        return self.elbo.known(
            (self.vae.model, self.vae.guide, batch, {}),
            (num_codes(*codes), len(batch[0])),
            {"x": {"value": batch[0], "scale": 1.0, "mask": None}},
        )

    def _of_pyros_own(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss of an ELBO of Pyro's that only computes loss and gradient together."""
        loss = self.elbo.loss_and_grads(self.vae.model, self.vae.guide, *batch)
        if isinstance(loss, tuple):  # of model and guide; the first is minus a bound
            loss = loss[0]
        torch._foreach_div_(self.optimizer.gradients, batch[0].shape[0])
        return torch.as_tensor(loss, device=self.optimizer.device)


def _check_graph(there: bool) -> None:
    if not there:
        raise ValueError(
            "Expected a loss that depends on a weight that is trained; got one that depends on "
            "none. Unfreeze the networks: vae.requires_grad_()."
        )


def needs_no_traces(vae: DiscreteVAE, elbo: Any, rows: tuple[Tensor, ...]) -> bool:
    """Whether `gradient_without_traces` gives a model's gradient, which a trial run shows.

    The networks may hold sites of their own, for example.

    Args:
        vae: the model and its guide.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        rows: a few data for the trial run, as model and guide take them: x (B, *event) first.

    Returns:
        Whether the traces have no other sites than x and z, and the KL of z is in closed form.
    """
    if am_i_wrapped() or not is_as_written(vae, elbo):
        return False
    store = pyro.get_param_store()
    with (
        RandomStream(0, rows[0].device),
        without_checks(),
        torch.no_grad(),
        store.scope(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Pyro warns of weights that are frozen
        pair = elbo.terms(vae.model, vae.guide, rows, {}).pair
    closed = elbo.closed_form_sites(pair)
    return set(pair.model_sites) == {"z", "x"} and set(pair.guide_sites) == closed == {"z"}


def is_as_written(vae: DiscreteVAE, elbo: Any) -> bool:
    """Whether `gradient_without_traces` would obey every method that the traces would call.

    It calls `advantage` of the ELBO, or `value` and `pull` of a pathwise one as the library has
    them, and `encode` and `decode` of the model, and all that these call. It does not call the
    programs of the model, nor hooks of prior and guide, and it has formulas of its own for
    `UniformPrior`, `LearnedPrior` and `MeanFieldGuide`. So no other method may have been replaced.
    """
    parts = (vae.prior, vae.posterior_family)
    is_scored = isinstance(elbo, ScoreFunctionELBO) and not elbo.needs_traces
    return (
        (is_scored or isinstance(elbo, PathwiseELBO))
        and elbo.analytic_kl
        and is_original(elbo, _ELBOS, free=("advantage", "_baseline"))
        and is_original(vae, _MODEL, free=("encode", "decode", "mode", "reconstruct", "sample"))
        and are_unchanged(_PARTS)
        and not any(map(has_own_methods, parts))
        and not has_hooks(parts)
        and (type(vae.prior) is not UniformPrior or _is_zero(vae.prior.logits))
    )


def _is_zero(logits: Tensor) -> bool:
    return logits.is_meta or not logits.any()


_ELBOS = members(
    *(DiscreteELBO, ScoreFunctionELBO, ReinforceELBO, RlooELBO, SnapshotELBO),
    *(PathwiseELBO, StraightThroughELBO, GappedStraightThroughELBO),
    *(GumbelSoftmaxELBO, ReinMaxELBO),
)
_MODEL = members(DiscreteVAE)
# A compiled graph does not notice that a class of distributions has changed, as it is no module.
_PARTS = members(UniformPrior, LearnedPrior, MeanFieldGuide, FlatDistribution, IndependentBernoulli)
