"""Algorithm 1 of [JL25] in plain PyTorch: a discrete VAE of binary MNIST, every term spelt out.

[JL25] is Jeffares & Liu, "An Introduction to Discrete Variational Autoencoders", arXiv:2505.10344.
This file imports neither Pyro nor pyro_dvae, so that the library can be compared with it:
examples/tutorial_recipe.py trains the same model with the library, and
tests/examples/test_examples.py compares every gradient.

    python examples/from_scratch.py --epochs 160 --num-data 5000
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

SAMPLE = Path(__file__).parents[1] / "pyro_dvae/assets/mnist_sample.npz"
NUM_LATENTS, NUM_CATEGORIES = 4, 8  # D, K
HIDDEN = (512, 256)
BASELINE = 125.0
LEARNING_RATE = 5e-4
BATCH_SIZE = 100


def make_encoder(
    num_pixels: int, num_latents: int, num_categories: int, hidden: tuple[int, int]
) -> nn.Sequential:
    """f_phi, a P-512-256-(D K) network: (B, P) -> logits (B, D, K)."""
    return nn.Sequential(
        nn.Linear(num_pixels, hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], num_latents * num_categories),
        nn.Unflatten(-1, (num_latents, num_categories)),
    )


def make_decoder(
    num_pixels: int, num_latents: int, num_categories: int, hidden: tuple[int, int]
) -> nn.Sequential:
    """g_theta, a (D K)-256-512-P network: (B, D K) -> logits (B, P)."""
    return nn.Sequential(
        nn.Linear(num_latents * num_categories, hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], num_pixels),
    )


def recipe(
    encoder: nn.Module,
    decoder: nn.Module,
    x: Tensor,
    z: Tensor | None = None,
    *,
    baseline: float = BASELINE,
) -> tuple[Tensor, Tensor]:
    """One step of Algorithm 1 (Eqs. 84 to 86 of [JL25]).

    Args:
        encoder: a network from data (B, P) to the logits (B, D, K) of f(x).
        decoder: a network from codes (B, D K) to the logits (B, P) of g(z).
        x: (B, P) data, zeros and ones.
        z: (B, D, K) the one-hot code of each datum; None draws it from f(x).
        baseline: a number of nats that is subtracted from BCE in the encoder's gradient. It changes
            the variance of the gradient, but not its mean.

    Returns:
        The ELBO, (B,) nats, and a scalar loss, whose gradient trains both networks.
    """
    log_f = encoder(x).log_softmax(-1)  # (B, D, K)
    f = log_f.exp()
    if z is None:
        k = torch.multinomial(f.detach().flatten(0, 1), 1).view(f.shape[:2])  # (B, D)
        z = one_hot(k, f.shape[-1]).to(x)  # (B, D, K)
    g_logits = decoder(z.flatten(1))  # (B, P)

    bce = binary_cross_entropy_with_logits(g_logits, x, reduction="none").sum(-1)  # (B,)
    entropy = -(f * log_f).sum((-2, -1))  # (B,)
    log_q = (z * log_f).sum((-2, -1))  # (B,) sum_d log f(x)_{k(d)}

    ascend_encoder = entropy - (bce.detach() - baseline) * log_q  # Eq. 84
    ascend_decoder = -bce  # Eq. 85
    num_latents, num_categories = z.shape[1:]
    elbo = entropy - num_latents * math.log(num_categories) - bce  # Eq. 86
    return elbo.detach(), -(ascend_encoder + ascend_decoder).mean()


def binarize(grey: Tensor) -> Tensor:
    """Draw each pixel as Bernoulli(grey value), which gives a new binary image at every visit."""
    return torch.bernoulli(grey.flatten(1) / 255)


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Load training and test images, (N, 28, 28) uint8."""
    with np.load(path) as arrays:
        train, test = arrays["train_images"], arrays["test_images"]
    return torch.from_numpy(train), torch.from_numpy(test)


def main() -> None:
    """Train, and print the ELBO of the training and the test data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SAMPLE, help="npz: train_images, test_images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    args = parser.parse_args()

    torch.manual_seed(0)
    train, test = load(args.data)
    train = train[: args.num_data]
    sizes = (train[0].numel(), NUM_LATENTS, NUM_CATEGORIES, HIDDEN)
    encoder, decoder = make_encoder(*sizes), make_decoder(*sizes)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], LEARNING_RATE)

    for epoch in range(1, args.epochs + 1):
        elbos = []
        for index in torch.split(torch.randperm(len(train)), BATCH_SIZE):
            elbo, loss = recipe(encoder, decoder, binarize(train[index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            elbos.append(elbo)
        with torch.no_grad():
            test_elbo, _ = recipe(encoder, decoder, binarize(test))
        means = torch.cat(elbos).mean(), test_elbo.mean()
        print(f"epoch {epoch}: train ELBO {means[0]:.2f}, test ELBO {means[1]:.2f} nats per image")


if __name__ == "__main__":
    main()
