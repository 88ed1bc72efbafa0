"""Networks of your own: an encoder and a decoder with one hidden layer each.

A factory, here a class, is called with keyword arguments that say what the network has to fit. In
Python, run

    python examples/own_network.py --epochs 20

It draws test images and their reconstructions into own_network.png.
On the command line, from the folder of this file, the same networks are trained by

    pdvae fit --encoder own_network:Encoder --decoder own_network:Decoder
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from pyro_dvae import BinaryImages, Config, RlooELBO, build_vae, evaluate, fit, load_images
from pyro_dvae.runs.plots import reconstruction_figure, save_figure


class Encoder(nn.Module):
    """Data (B, *event) -> (B, D, C); for a mean-field guide C = K, one logit per category."""

    def __init__(self, event_shape: tuple[int, ...], num_latents: int, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(event_shape), 200),
            nn.LayerNorm(200),  # per datum; a batch norm would make the data depend on each other
            nn.SiLU(),
            nn.Linear(200, num_latents * num_outputs),
            nn.Unflatten(-1, (num_latents, num_outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return C numbers per latent."""
        return self.layers(x)


class Decoder(nn.Module):
    """Codes (..., D, K) -> (..., *event), or (..., *event, num_params) if num_params is not 1.

    There can be any number of leading dimensions: particles, data, or all codes.
    """

    def __init__(
        self,
        event_shape: tuple[int, ...],
        num_latents: int,
        num_categories: int,
        num_params: int,
    ) -> None:
        super().__init__()
        self.shape = (*event_shape, num_params) if num_params > 1 else event_shape
        self.layers = nn.Sequential(
            nn.Linear(num_latents * num_categories, 200),
            nn.SiLU(),
            nn.Linear(200, math.prod(self.shape)),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Return the parameters of the likelihood."""
        return self.layers(z.flatten(-2)).unflatten(-1, self.shape)


def main() -> None:
    """Train a model with these networks, and print its ELBO on test images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    parser.add_argument("-o", "--output", type=Path, default=Path("own_network.png"))
    args = parser.parse_args()

    images = load_images("mnist-sample")
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test[:200]).fixed(seed=0)
    torch.manual_seed(0)
    # Both networks are tried on two rows, so that one that does not fit is refused here.
    config = Config(encoder=f"{__name__}:Encoder", decoder=f"{__name__}:Decoder")
    vae = build_vae(config, train.event_shape)
    print(f"untrained  ELBO {evaluate(vae, test).elbo:8.2f} nats per image")
    for _ in fit(vae, RlooELBO(), train, epochs=args.epochs, learning_rate=2e-3):
        pass
    print(f"trained    ELBO {evaluate(vae, test).elbo:8.2f} nats per image")
    save_figure(reconstruction_figure(vae, images.test[:10] / 255, test[:10]), args.output)


if __name__ == "__main__":
    main()
