"""Bias, variance and cost of gradient estimators, compared with the exact gradient."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.displays import html_table, number
from pyro_dvae.elbos.exact import EnumeratedELBO
from pyro_dvae.elbos.score_function import RlooELBO
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.batches import Batch, arguments, as_batch
from pyro_dvae.vae import DiscreteVAE

_BLOCKS = 10
"""Blocks of draws of the jackknife."""


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error (jackknife over ten blocks of draws)."""

    value: float
    error: float


@dataclass(frozen=True)
class GradientStatistics:
    """One estimator's gradient of the mean ELBO per datum of a batch, in one network's weights.

    A notebook shows it as a table. `pandas.json_normalize([dataclasses.asdict(row) for row in
    rows])` is one table of many, and `pyro_dvae.runs.plots.gradient_figure(rows)` a picture. Here
    g is a draw of the gradient, m is the mean of g, and e is the exact gradient of the ELBO.
    """

    estimator: str
    part: str
    """"encoder" (with the guide's own weights) or "decoder" (with the prior)."""
    bias: Estimate
    """|m - e|. Its square is estimated without bias, and set to 0 if the estimate is negative."""
    relative_bias: float
    """bias / |e|."""
    relative_bias_error: float
    """Standard error of bias / |e|."""
    variance: Estimate
    """E|g - m|^2, summed over the weights."""
    signal_to_noise: Estimate
    """|m| / sqrt(variance); infinite if the variance is 0."""
    cosine: Estimate
    """Mean over draws of the cosine between g and e."""
    decoder_evaluations: float
    """Codes that are decoded per datum and step."""
    milliseconds: float
    """Median time of the forward and backward pass of a step."""

    def _repr_html_(self) -> str:
        """The figures as a table, for a notebook."""
        relative = Estimate(self.relative_bias, self.relative_bias_error)
        figures = {
            "bias": (self.bias, "|m - e|"),
            "relative bias": (relative, "|m - e| / |e|"),
            "variance": (self.variance, "E|g - m|^2"),
            "signal to noise": (self.signal_to_noise, "|m| / sqrt(variance)"),
            "cosine": (self.cosine, "mean of cos(g, e)"),
        }
        rows = [
            [name, number(figure.value), f"± {figure.error:.2g}", meaning]
            for name, (figure, meaning) in figures.items()
        ]
        rows += [
            [
                "decoder evaluations",
                number(self.decoder_evaluations),
                "",
                "codes per datum and step",
            ],
            ["time", number(self.milliseconds), "", "ms per step, the median"],
        ]
        caption = f"Gradient by {self.estimator} in the {self.part}: g a draw, m its mean, e exact"
        heads = ["figure", "value", "standard error", "meaning"]
        return html_table(heads, rows, numbers=(1, 2), caption=caption)


def reference_gradient(vae: DiscreteVAE, x: Batch, *, num_draws: int = 2000) -> tuple[Tensor, str]:
    """The exact gradient of the mean ELBO per datum, or a mean over draws if K^D is too large.

    Args:
        vae: the model.
        x: (B, *event), or a pair with labels (B,) where the prior is conditional on them.
        num_draws: gradients of `RlooELBO(8)` whose mean is returned if K^D > 65,536 (`MAX_CODES`).

    Returns:
        The gradient in all weights as one vector, and a description of how it was computed.
    """
    x = as_batch(vae, x)
    code = vae.posterior(arguments(x)[0][:1]).event_shape
    if num_codes(*code) <= MAX_CODES:
        return _gradient(vae, EnumeratedELBO(max_plate_nesting=1), x), "enumeration"
    elbo = RlooELBO(8, max_plate_nesting=1)
    mean = _gradient(vae, elbo, x) / num_draws
    for _ in range(1, num_draws):
        mean += _gradient(vae, elbo, x) / num_draws
    return mean, f"mean of {num_draws} RLOO steps of 8 particles"


def gradient_statistics(
    vae: DiscreteVAE,
    x: Batch,
    elbos: Mapping[str, Any],
    reference: Tensor,
    *,
    num_draws: int = 100,
    seed: int = 0,
) -> Iterator[GradientStatistics]:
    """Measure gradient estimators on one batch, for encoder and decoder separately.

    The weights of the guide are counted with the encoder's, and those of the prior with the
    decoder's.

    Args:
        vae: the model; its weights are left as they are.
        x: (B, *event), or a pair with labels (B,) if the prior is conditional on them.
        elbos: name -> ELBO.
        reference: the exact gradient, from `reference_gradient`.
        num_draws: gradients per estimator, at least 20.
        seed: seed of the draws, the same for every estimator. The global random stream is not used.

    Yields:
        Two rows per estimator: one for the encoder, one for the decoder.

    Raises:
        ValueError: num_draws < 20.
    """
    if num_draws < 2 * _BLOCKS:
        raise ValueError(
            f"Expected at least {2 * _BLOCKS} draws; got {num_draws}. Raise num_draws."
        )
    x = as_batch(vae, x)
    size = sum(weight.numel() for weight in _guide_weights(vae))
    device, num_data = arguments(x)[0].device, len(arguments(x)[0])
    parts = {"encoder": slice(0, size), "decoder": slice(size, None)}
    for name, elbo in elbos.items():
        statistics = {part: _Statistics(reference[cut], num_draws) for part, cut in parts.items()}
        times: list[float] = []
        with RandomStream(seed, device), _CountedRows(vae.decoder) as rows:
            _gradient(vae, elbo, x)  # a first step to warm up, which a running mean needs too
            rows.clear()
            before = _random_state(device)
            for _ in range(num_draws):
                # If the first gradient used no random number (a sum over all codes), all are equal.
                if len(times) != 1 or not torch.equal(_random_state(device), before):
                    start = time.perf_counter()
                    gradient = _gradient(vae, elbo, x)
                    times.append(time.perf_counter() - start)
                for part, cut in parts.items():
                    statistics[part].add(gradient[cut])
        cost = sum(rows) / len(times) / num_data, 1e3 * sorted(times)[len(times) // 2]
        for part in parts:
            yield GradientStatistics(name, part, *statistics[part].estimates(), *cost)


def _random_state(device: torch.device) -> Tensor:
    """The state of torch's global generators, which every draw changes."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def _gradient(vae: DiscreteVAE, elbo: Any, x: Batch) -> Tensor:
    batch = arguments(x)
    weights = _weights(vae)
    if hasattr(elbo, "differentiable_loss"):
        loss = elbo.differentiable_loss(vae.model, vae.guide, *batch) / -len(batch[0])
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        return _vector(weights, found)
    # ELBOs of Pyro's that compute loss and gradient together
    before = [weight.grad for weight in weights]
    vae.zero_grad()
    elbo.loss_and_grads(vae.model, vae.guide, *batch)
    gradient = _vector(weights, [weight.grad for weight in weights]) / -len(batch[0])
    for weight, own in zip(weights, before, strict=True):
        weight.grad = own
    return gradient


def _vector(weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(weight) if gradient is None else gradient).flatten()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
    )


def _weights(vae: DiscreteVAE) -> list[nn.Parameter]:
    guide = _guide_weights(vae)
    known = {id(weight) for weight in guide}
    return guide + [weight for weight in vae.parameters() if id(weight) not in known]


def _guide_weights(vae: DiscreteVAE) -> list[nn.Parameter]:
    return [*vae.encoder.parameters(), *vae.posterior_family.parameters()]


class _CountedRows:
    """Count the codes that a decoder decodes."""

    def __init__(self, decoder: nn.Module) -> None:
        self.decoder = decoder
        self.rows: list[int] = []

    def __enter__(self) -> list[int]:
        def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.rows.append(math.prod(inputs[0].shape[:-2]))

        self.hook = self.decoder.register_forward_pre_hook(count)
        return self.rows

    def __exit__(self, *exc: object) -> None:
        self.hook.remove()


class _Statistics:
    """Sums of gradients over ten blocks of draws, so that not every draw is kept in memory."""

    def __init__(self, exact: Tensor, num_draws: int) -> None:
        self.exact = exact
        self.blocks = exact.new_zeros(_BLOCKS, len(exact))
        self.counts, self.squares, self.cosines = torch.zeros(
            3, _BLOCKS, dtype=torch.float64, device="cpu"
        )
        self.norm = exact.double().norm()

    def add(self, gradient: Tensor) -> None:
        block = int(self.counts.sum()) % _BLOCKS
        deviation = gradient - self.exact
        self.blocks[block] += deviation
        self.counts[block] += 1
        self.squares[block] += deviation.double().square().sum().cpu()
        cosine = gradient.double() @ self.exact.double() / (gradient.double().norm() * self.norm)
        self.cosines[block] += cosine.nan_to_num().cpu()

    def estimates(self) -> tuple[Estimate, float, float, Estimate, Estimate, Estimate]:
        # All figures follow from the inner products of block sums and e.
        blocks, exact = self.blocks.double().cpu(), self.exact.double().cpu()
        gram, along = blocks @ blocks.T, blocks @ exact
        norm2 = float(exact @ exact)
        whole = torch.ones(_BLOCKS, dtype=torch.bool, device="cpu")
        rows = [self._numbers(gram, along, norm2, whole)]
        for left_out in range(_BLOCKS):
            kept = whole.clone()
            kept[left_out] = False
            rows.append(self._numbers(gram, along, norm2, kept))
        figures, *jackknife = rows
        errors = []
        for column in zip(*jackknife, strict=True):
            values = torch.tensor(column, dtype=torch.float64, device="cpu")
            finite = values[values.isfinite()]
            spread = (finite - finite.mean()).square().sum() if len(finite) else 0.0
            errors.append(math.sqrt((_BLOCKS - 1) / _BLOCKS * float(spread)))
        squared_bias, variance, snr, cosine = map(Estimate, figures, errors)
        bias = _root(squared_bias)
        norm = math.sqrt(norm2) if norm2 > 0 else math.nan
        return bias, bias.value / norm, bias.error / norm, variance, snr, cosine

    def _numbers(
        self, gram: Tensor, along: Tensor, norm2: float, kept: Tensor
    ) -> tuple[float, float, float, float]:
        number = float(self.counts[kept].sum())
        sum2 = float(gram[kept][:, kept].sum())  # |sum of deviations|^2
        total2 = float(self.squares[kept].sum())  # sum of |deviation|^2
        variance = max(0.0, (total2 - sum2 / number) / (number - 1))
        bias2 = (sum2 / number - variance) / number
        mean2 = bias2 + 2 * float(along[kept].sum()) / number + norm2
        # Rounding gives an estimator without draws a tiny variance.
        exact = variance <= 1e-10 * norm2
        snr = math.inf if exact else math.sqrt(max(0.0, mean2) / variance)
        cosine = float(self.cosines[kept].sum()) / number
        return bias2, variance, snr, cosine


def _root(square: Estimate) -> Estimate:
    value = math.sqrt(max(0.0, square.value))
    # At 0, the root has no derivative. There, the root of the square's error bounds the bias.
    small = square.value <= square.error
    return Estimate(value, math.sqrt(square.error) if small else square.error / (2 * value))
