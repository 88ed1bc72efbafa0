"""A prior of your own: p(z) with learned logits in place of the uniform one.

A prior is any module whose forward() returns a distribution over codes, and its parameters are
trained with the networks': here by the KL term of the ELBO, in closed form.

    python examples/swap_prior.py --epochs 50 --num-data 5000
"""

import argparse

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import nn

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
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


class LearnedPrior(nn.Module):
    """p(z) = prod_d Cat(softmax(logits)_d), uniform until it is trained."""

    def __init__(self, num_latents: int, num_categories: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_latents, num_categories))

    def forward(self) -> TorchDistribution:
        """The distribution over codes, event (D, K)."""
        code = dist.OneHotCategorical(logits=self.logits)
        return code.to_event(1)


def main() -> None:
    """Train one model under each prior, from the same weights, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    args = parser.parse_args()

    images = load_images("mnist-sample")
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test[:200]).fixed(seed=0)

    print("nats per image")
    for prior in (UniformPrior(*CODE), LearnedPrior(*CODE)):
        torch.manual_seed(0)
        vae = DiscreteVAE(
            MLPEncoder(train.event_shape, *CODE),
            MLPDecoder(train.event_shape, *CODE),
            prior,
            Bernoulli(),
        )
        before = evaluate(vae, test)
        # At the tutorial's rate of 5e-4 the prior would hardly move in so few steps.
        for _ in fit(vae, RlooELBO(), train, epochs=args.epochs, learning_rate=2e-3):
            pass
        after = evaluate(vae, test)
        for when, scores in (("before", before), ("after", after)):
            print(
                f"{type(prior).__name__:12}  {when:6}  ELBO {scores.elbo:8.2f}  "
                f"log p(x) {scores.log_marginal:8.2f}"
            )


if __name__ == "__main__":
    main()
