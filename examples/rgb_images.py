"""Colour images of an odd size, and a convolutional network that fits them.

This paints the bundled MNIST digits on 33 x 45 pixels, with random colours of ink and ground, and
trains a convolutional discrete VAE. The channels are drawn as zeros and ones, anew at each
visit. With --likelihood logistic-mixture the model is one of the 256 levels themselves. Images,
their reconstructions and samples are drawn into rgb_images.png. 40 epochs of 3000 images take about
ten minutes on two cores.

    python examples/rgb_images.py --epochs 40 --num-data 3000
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from pyro_dvae import BinaryImages, Config, ReinMaxELBO, Trainer, build_vae, evaluate, load_images
from pyro_dvae.runs.plots import image_grid, save_figure

COLOURS = torch.tensor(
    [[230, 60, 60], [60, 200, 90], [70, 110, 240], [240, 210, 60], [200, 80, 220], [240, 240, 240]]
)


def paint(digits: Tensor, height: int = 33, width: int = 45, seed: int = 0) -> Tensor:
    """Digits (N, 28, 28) -> colour images (N, 3, height, width) of 0 to 255, at random places."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(len(digits), 3, height, width)
    for image, digit in zip(images, digits, strict=True):
        ground, ink = COLOURS[torch.randperm(len(COLOURS), generator=generator)[:2]]
        top = int(torch.randint(height - 27, (), generator=generator))
        left = int(torch.randint(width - 27, (), generator=generator))
        shade = torch.zeros(height, width)
        shade[top : top + 28, left : left + 28] = digit / 255
        image += (ground // 3)[:, None, None] * (1 - shade) + ink[:, None, None] * shade
    return images.round()


def main() -> None:
    """Train, print the ELBO, and draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=200, help="training images to use")
    parser.add_argument(
        "--likelihood", default="bernoulli", choices=["bernoulli", "logistic-mixture"]
    )
    parser.add_argument("--network", default="conv", help="conv, mlp, or conv:32 for wider layers")
    parser.add_argument("--out", type=Path, default=Path("rgb_images.png"))
    args = parser.parse_args()

    digits = load_images("mnist-sample")
    images, tests = paint(digits.train[: args.num_data]), paint(digits.test[:32], seed=1)
    config = Config(
        network=args.network, likelihood=args.likelihood, num_latents=8, num_categories=8
    )
    torch.manual_seed(0)
    vae = build_vae(config, images.shape[1:])
    data: BinaryImages | Tensor
    if args.likelihood == "bernoulli":
        data, test = BinaryImages(images.byte()), BinaryImages(tests.byte()).fixed(seed=0)
        grey = 1.0
    else:
        data, test, grey = images, tests, 255.0
    # ReinMax needs one pass of the decoder per step, where RLOO with four particles needs four.
    # The KL weighs more at first; without that, most images get the same code and a blurred mean.
    trainer = Trainer(
        vae,
        ReinMaxELBO(),
        data,
        batch_size=20,
        averaging=0.99,
        annealing=args.epochs // 4,
        initial_beta=4.0,
    )
    for record in trainer.run(args.epochs):
        print(f"epoch {record.epoch:3}  train ELBO {record.train_elbo:10.2f}", flush=True)
    scores = evaluate(vae, test)
    print(f"{args.network}, {args.likelihood}: test ELBO {scores.elbo:10.2f} nats per image")

    made = (vae.reconstruct(test[:8]), vae.sample(8, means=True))
    shown = torch.cat([tests[:8] / 255, *(part / grey for part in made)])
    rows = ("image", "from its code", "from the prior")
    save_figure(image_grid(shown, 8, f"{args.network}, {args.likelihood}", rows), args.out)


if __name__ == "__main__":
    main()
