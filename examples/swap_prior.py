"""One model under every prior of the library, and under one of your own.

A prior is any module whose forward() returns a distribution over codes with event shape (D, K);
`SharedPrior` below is one. Its parameters are trained together with those of the networks. All
models begin with the same networks, so that only the prior differs. The ELBOs are drawn into
swap_prior.png.

    python examples/swap_prior.py --epochs 50 --num-data 5000
"""

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from pyro.distributions.torch_distribution import TorchDistribution
from torch import nn

from pyro_dvae import (
    AutoregressivePrior,
    Bernoulli,
    BinaryImages,
    BoltzmannPrior,
    ConditionalPrior,
    DiscreteVAE,
    HierarchicalPrior,
    LearnedPrior,
    MixturePrior,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    UniformPrior,
    VampPrior,
    evaluate,
    fit,
    load_images,
)

CODE = (4, 4)  # D, K
EVENT = (28, 28)
HIDDEN = (256, 128)


class SharedPrior(nn.Module):
    """p(z) = prod_d Cat(z_d; softmax(a)): one set of probabilities for all latents."""

    def __init__(self, num_latents: int, num_categories: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_categories))
        self.num_latents = num_latents

    def forward(self) -> TorchDistribution:
        """The distribution over codes, event (D, K)."""
        logits = self.logits.expand(self.num_latents, -1)
        return dist.OneHotCategorical(logits=logits).to_event(1)


PRIORS: dict[str, Callable[[], nn.Module]] = {
    "uniform": lambda: UniformPrior(*CODE),
    "your own": lambda: SharedPrior(*CODE),
    "learned": lambda: LearnedPrior(*CODE),
    "autoregressive": lambda: AutoregressivePrior(*CODE),
    "mixture": lambda: MixturePrior(*CODE, num_components=20),
    "vamp": lambda: VampPrior(20, EVENT, bounded=True),
    "hierarchical": lambda: HierarchicalPrior(*CODE, upper=(2, 8)),
    "boltzmann": lambda: BoltzmannPrior(*CODE),
    "conditional": lambda: ConditionalPrior(*CODE, num_classes=10),
}


def draw(found: dict[str, tuple[float, float]], path: Path) -> None:
    """Plot the ELBO and log p(x) under each prior; the gap between them is that of the guide."""
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    elbos, marginals = zip(*found.values(), strict=True)
    axes.hlines(range(len(found)), elbos, marginals, color="0.7")
    axes.plot(elbos, list(found), "o", color="#0072b2", label="ELBO")
    axes.plot(marginals, list(found), "D", color="#d55e00", label="log p(x)")
    axes.set(xlabel="nats per test image", title="one model under each prior")
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train one model under each prior, from the same networks, and print the ELBO of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    parser.add_argument("-o", "--output", type=Path, default=Path("swap_prior.png"))
    args = parser.parse_args()

    images = load_images("mnist-sample")
    x, y = images.train[: args.num_data], images.train_labels[: args.num_data]
    test, test_y = BinaryImages(images.test[:200]).fixed(seed=0), images.test_labels[:200]

    torch.manual_seed(0)
    encoder, decoder = MLPEncoder(EVENT, *CODE, HIDDEN), MLPDecoder(EVENT, *CODE, HIDDEN[::-1])
    found = {}
    print("nats per image; under the conditional prior, log p(x) is log p(x|label)")
    for name, make_prior in PRIORS.items():
        torch.manual_seed(1)
        prior = make_prior()
        networks = copy.deepcopy(encoder), copy.deepcopy(decoder)
        vae = DiscreteVAE(*networks, prior, Bernoulli())
        labelled = vae.takes_labels
        train = BinaryImages(x, labels=y if labelled else None)
        # At the tutorial's learning rate, 5e-4, the prior would hardly change in so few steps.
        for _ in fit(vae, RlooELBO(), train, epochs=args.epochs, learning_rate=2e-3):
            pass
        scores = evaluate(vae, test, test_y if labelled else None)
        print(f"{name:15}  ELBO {scores.elbo:8.2f}  log p(x) {scores.log_marginal:8.2f}")
        assert scores.log_marginal is not None  # 256 codes are summed
        found[name + (", log p(x|label)" if labelled else "")] = scores.elbo, scores.log_marginal
    draw(found, args.output)


if __name__ == "__main__":
    main()
