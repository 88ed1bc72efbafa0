"""A top-k sparse autoencoder (Makhzani & Frey 2013; Gao et al. 2024), which keeps k of U units.

It has no p(z), so it has neither an ELBO nor log p(x). Only its reconstruction can be compared. Its
code holds k real numbers, which would take infinitely many bits; the bits that are reported count
only which units are kept.

    python examples/neighbours/sparse_autoencoder.py --num-units 32 --num-active 4
"""

import math

import torch
from setting import EVENT, Scores, Setting, arguments, load, table, train
from torch import Tensor, nn

from pyro_dvae import Bernoulli, MLPDecoder, MLPEncoder


class SparseAutoencoder(nn.Module):
    """An autoencoder that keeps the k largest of U linear units and sets the others to 0."""

    def __init__(self, num_units: int, num_active: int) -> None:
        super().__init__()
        self.encoder = MLPEncoder(EVENT, num_units, 1)
        self.decoder = MLPDecoder(EVENT, num_units, 1)
        self.likelihood = Bernoulli()
        self.num_units, self.num_active = num_units, num_active

    def encode(self, x: Tensor, num_active: int | None = None) -> Tensor:
        """Encode (B, 28, 28) as (B, U), with k (or `num_active`) units that are not 0."""
        units = self.encoder(x).squeeze(-1)
        largest = units.topk(num_active or self.num_active, dim=-1)
        return torch.zeros_like(units).scatter(-1, largest.indices, largest.values)

    def bce(self, x: Tensor, num_active: int | None = None) -> Tensor:
        """-log p(x|z(x)), (B,) nats."""
        params = self.decoder(self.encode(x, num_active).unsqueeze(-1))
        return -self.likelihood(params, len(EVENT)).log_prob(x)


def run(setting: Setting, num_units: int = 32, num_active: int = 4) -> list[Scores]:
    """Train the model, and score it."""
    torch.manual_seed(setting.seed)
    sae = SparseAutoencoder(num_units, num_active)
    # The number of kept units falls from all to k over the first half of the steps (Makhzani &
    # Frey). With k from the start, units that are never among the largest would never be trained.
    steps, surplus = setting.steps, num_units - num_active
    kept = (num_active + max(0, round(surplus * (1 - 2 * i / steps))) for i in range(steps))
    train(sae.parameters(), lambda x: sae.bce(x, next(kept)).mean(), setting)
    with torch.no_grad():
        bce = sae.bce(setting.test).mean().item()
        used = int((sae.encode(setting.test) != 0).any(0).sum())
    code = f"{num_active} reals among {num_units} units, {used} in use"
    bits = math.log2(math.comb(num_units, num_active))
    return [Scores("top-k autoencoder", code, bce=bce, bits=bits)]


def main() -> None:
    """Train the model, and print its scores."""
    parser = arguments(__doc__)
    parser.add_argument("--num-units", type=int, default=32)
    parser.add_argument("--num-active", type=int, default=4)
    args = parser.parse_args()
    setting = load(args)
    print(table(run(setting, args.num_units, args.num_active), setting))


if __name__ == "__main__":
    main()
