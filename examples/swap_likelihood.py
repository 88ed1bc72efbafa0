"""A likelihood of your own: grey pixels under a continuous Bernoulli, no binarisation.

The continuous Bernoulli is the density on [0, 1] proportional to g^x (1 - g)^(1 - x)
(Loaiza-Ganem & Cunningham 2019, arXiv:1907.06845). Its ELBO bounds a log density, so it may be
positive and does not compare with that of binary images.

    python examples/swap_likelihood.py --epochs 50 --num-data 5000
"""

import argparse

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pyro_dvae import (
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    UniformPrior,
    evaluate,
    fit,
    load_images,
)

CODE = (4, 4)  # D, K


class ContinuousBernoulli(nn.Module):
    """p(x|z) = prod_p C(g_p) g_p^x_p (1 - g_p)^(1 - x_p), g = sigmoid(params), on [0, 1]."""

    num_params = 1
    support = constraints.unit_interval

    def forward(self, params: Tensor, event_dim: int) -> TorchDistribution:
        """The distribution over x.

        Args:
            params: (..., *event) logits.
            event_dim: number of dimensions of one datum.
        """
        # C(g) is 0/0 at g = 1/2, and torch takes a series of it only within `lims`. Just outside
        # its default of (0.499, 0.501), where an untrained decoder starts, float32 cancels.
        cb = dist.ContinuousBernoulli(logits=params, lims=(0.45, 0.55))
        return cb.to_event(event_dim)

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support, before the first step.

        Raises:
            ValueError: an element of x is outside [0, 1].
        """
        if not ((x >= 0) & (x <= 1)).all():
            low, high = x.min().item(), x.max().item()
            raise ValueError(
                f"Expected grey values in [0, 1]; got {low:g} to {high:g}. Do divide by 255."
            )


def main() -> None:
    """Train, and print ELBO, exact log density and reconstruction error before and after."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    args = parser.parse_args()

    images = load_images("mnist-sample")
    train, test = images.train[: args.num_data] / 255, images.test[:100] / 255
    event_shape = train.shape[1:]

    torch.manual_seed(0)
    vae = DiscreteVAE(
        MLPEncoder(event_shape, *CODE),
        MLPDecoder(event_shape, *CODE),
        UniformPrior(*CODE),
        ContinuousBernoulli(),
    )

    def report(when: str) -> None:
        scores = evaluate(vae, test)
        error = (vae.reconstruct(test) - test).square().mean().sqrt()
        print(
            f"{when:6}  ELBO {scores.elbo:8.2f}  log p(x) {scores.log_marginal:8.2f}  "
            f"RMS error of a pixel {error:.3f}"
        )

    print("nats per image")
    report("before")
    for _ in fit(vae, RlooELBO(), train, epochs=args.epochs):
        pass
    report("after")


if __name__ == "__main__":
    main()
