"""Grey MNIST under four likelihoods of the library, which are one argument of DiscreteVAE.

The continuous Bernoulli is a density of x / 255. A density may exceed 1, so its ELBO may be
positive. The other likelihoods are probabilities of whole levels and have bits per dimension. **A
density and a probability cannot be compared.** Nor can probabilities of 16 and of 256 levels: those
of 256 levels say more about an image. The two likelihoods of 16 levels can be compared with each
other, and the errors per pixel can be compared for all. Test images, their reconstructions and
draws of p(x|z) at the same codes are drawn into swap_likelihood.png.

    python examples/swap_likelihood.py --epochs 50 --num-data 5000
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pyro_dvae import (
    Categorical,
    ContinuousBernoulli,
    DiscreteVAE,
    LogisticMixture,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    UniformPrior,
    evaluate,
    fit,
    load_images,
)
from pyro_dvae.runs.plots import image_grid, save_figure

CODE = (4, 4)  # D, K
# Name -> (likelihood, what grey values 0 to 255 are divided by, whether that is rounded down).
LIKELIHOODS: dict[str, tuple[Callable[[], nn.Module], int, bool]] = {
    "continuous Bernoulli": (ContinuousBernoulli, 255, False),
    "categorical, 16 levels": (lambda: Categorical(16), 16, True),
    "logistic mixture, 16 levels": (lambda: LogisticMixture(16, components=3), 16, True),
    "logistic mixture, 256 levels": (lambda: LogisticMixture(256, components=3), 1, True),
}


def compare(name: str, train: Tensor, test: Tensor, epochs: int) -> Tensor:
    """Train under one likelihood, and print the scores before and after.

    Returns:
        (16, H, W) the means of p(x|z) at the codes of eight test images, and a draw at each.
    """
    build, divisor, whole = LIKELIHOODS[name]
    train, test = ((x / divisor).floor() if whole else x / divisor for x in (train, test))
    event_shape = train.shape[1:]
    torch.manual_seed(0)
    likelihood = build()
    num_params = int(likelihood.num_params)  # type: ignore[arg-type]
    vae = DiscreteVAE(
        MLPEncoder(event_shape, *CODE),
        MLPDecoder(event_shape, *CODE, num_params=num_params),
        UniformPrior(*CODE),
        likelihood,
    )

    def report(when: str) -> None:
        scores = evaluate(vae, test)
        error = (vae.reconstruct(test) - test).square().mean().sqrt() * divisor / 255
        bits = scores.bits_per_dimension
        print(
            f"{name:28}  {when:6}  ELBO {scores.elbo:9.2f}  log p(x) {scores.log_marginal:9.2f}  "
            f"bits {'   -' if bits is None else f'{bits:4.2f}'}  RMS error {error:.3f}"
        )

    report("before")
    for _ in fit(vae, RlooELBO(), train, epochs=epochs):
        pass
    report("after")
    with torch.no_grad():
        p = vae.decode(vae.mode(test[:8]))
        return torch.cat([p.mean, p.sample()]) * divisor / 255


def main() -> None:
    """Train and score the model under each likelihood."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    parser.add_argument("-o", "--output", type=Path, default=Path("swap_likelihood.png"))
    args = parser.parse_args()

    images = load_images("mnist-sample")
    print("nats per image; bits per pixel, for probabilities only; error of pixels from 0 to 1")
    train, test = images.train[: args.num_data], images.test[:50]
    shown = [test[:8] / 255]
    shown += [compare(name, train, test, args.epochs) for name in LIKELIHOODS]
    names = [name.replace(", ", "\n") for name in LIKELIHOODS]
    rows = ["image"] + [f"{name}, {what}" for name in names for what in ("mean", "draw")]
    save_figure(image_grid(torch.cat(shown), 8, "p(x|z) at the codes of images", rows), args.output)


if __name__ == "__main__":
    main()
