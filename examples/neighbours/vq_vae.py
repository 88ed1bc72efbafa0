"""A VQ-VAE (van den Oord et al. 2017), scored as the discrete VAE that it is.

The encoder computes D vectors e_d(x), and each is replaced by the nearest of K codebook vectors
c_k. This is a guide that puts all its mass on one code z(x). A prior over codes is fitted in a
second stage. Then the model has an ELBO, log p(x|z(x)) + log p(z(x)), and log p(x) is a sum over
all K^D codes, as for any discrete VAE.

    python examples/neighbours/vq_vae.py --num-latents 4 --num-categories 8
"""

import torch
from setting import (
    EVENT,
    Scores,
    Setting,
    arguments,
    load,
    score_discrete,
    table,
    train,
    train_prior,
)
from torch import Tensor, nn

from pyro_dvae import Bernoulli, DiscreteVAE, MLPDecoder, MLPEncoder
from pyro_dvae.codes import one_hot
from pyro_dvae.priors import AutoregressivePrior

COMMITMENT = 0.25
"""beta in Eq. 3 of the paper."""

_NEVER = -1e4
"""A logit so low that its probability is 0, also in double precision."""


class VQVAE(nn.Module):
    """Replaces the vectors e(x) (D, M) by the nearest in a codebook (K, M), and decodes those."""

    def __init__(self, num_latents: int, num_categories: int, size: int) -> None:
        super().__init__()
        self.encoder = MLPEncoder(EVENT, num_latents, size)
        self.codebook = nn.Parameter(torch.randn(num_categories, size))
        self.decoder = MLPDecoder(EVENT, num_latents, size)
        self.likelihood = Bernoulli()
        self.code_shape = (num_latents, num_categories)

    def nearest(self, e: Tensor) -> Tensor:
        """Return the numbers (..., D) of the codebook vectors that are nearest to e (..., D, M)."""
        return torch.cdist(e, self.codebook).argmin(-1)

    def loss(self, x: Tensor) -> Tensor:
        """-log p(x|c) + |sg(e) - c|^2 + beta |e - sg(c)|^2 in nats (the paper's Eq. 3)."""
        e = self.encoder(x)  # (B, D, M)
        c = self.codebook[self.nearest(e)]  # (B, D, M)
        straight_through = e + (c - e).detach()
        bce = -self.likelihood(self.decoder(straight_through), len(EVENT)).log_prob(x)
        codebook = (e.detach() - c).square().sum((-2, -1))
        commitment = (e - c.detach()).square().sum((-2, -1))
        return (bce + codebook + COMMITMENT * commitment).mean()

    def as_discrete_vae(self) -> DiscreteVAE:
        """Return the same networks as p(z) p(x|z) and q(z|x), with a prior yet to be fitted."""
        prior = AutoregressivePrior(*self.code_shape)
        return DiscreteVAE(PointMass(self), Lookup(self), prior, self.likelihood)


class PointMass(nn.Module):
    """The encoder as a guide: (B, 28, 28) -> logits (B, D, K) that choose the nearest vector."""

    def __init__(self, vq_vae: VQVAE) -> None:
        super().__init__()
        self.vq_vae = vq_vae

    def forward(self, x: Tensor) -> Tensor:
        """Return the logit 0 for the nearest vector and -1e4 for all others."""
        nearest = self.vq_vae.nearest(self.vq_vae.encoder(x))
        code = one_hot(nearest, self.vq_vae.code_shape[1], dtype=self.vq_vae.codebook.dtype)
        return _NEVER * (1 - code)


class Lookup(nn.Module):
    """The decoder for one-hot codes: (..., D, K) -> logits (..., 28, 28)."""

    def __init__(self, vq_vae: VQVAE) -> None:
        super().__init__()
        self.vq_vae = vq_vae

    def forward(self, z: Tensor) -> Tensor:
        """Decode the codebook vectors that z stands for."""
        return self.vq_vae.decoder(z @ self.vq_vae.codebook)


def run(
    setting: Setting, num_latents: int = 4, num_categories: int = 8, size: int = 16
) -> list[Scores]:
    """Train the networks, then the prior of their codes, and score the model."""
    torch.manual_seed(setting.seed)
    vq_vae = VQVAE(num_latents, num_categories, size)
    train(vq_vae.parameters(), vq_vae.loss, setting)
    vae = vq_vae.as_discrete_vae()
    train_prior(vae, setting)
    return [score_discrete("VQ-VAE, prior fitted", vae, setting)]


def main() -> None:
    """Train the model, and print its scores."""
    parser = arguments(__doc__)
    parser.add_argument("--num-latents", type=int, default=4)
    parser.add_argument("--num-categories", type=int, default=8)
    parser.add_argument("--size", type=int, default=16, help="size of a codebook vector")
    args = parser.parse_args()
    setting = load(args)
    print(table(run(setting, args.num_latents, args.num_categories, args.size), setting))


if __name__ == "__main__":
    main()
