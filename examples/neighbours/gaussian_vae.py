"""A Gaussian VAE (Kingma & Welling 2014; Rezende et al. 2014) as a pair of Pyro programs.

p(z) = N(0, I) and q(z|x) = N(m(x), diag s(x)^2). The gradient is that of reparametrisation.
log p(x) is an integral without a closed form, so two lower bounds are reported: the ELBO and the
importance-weighted bound of k draws.

    python examples/neighbours/gaussian_vae.py --num-dims 8
"""

import math

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule, pyro_method
from setting import EVENT, Scores, Setting, arguments, load, table, train
from torch import Tensor

from pyro_dvae import Bernoulli, MLPDecoder, MLPEncoder
from pyro_dvae.evaluation.importance import log_mean_exp
from pyro_dvae.streams import RandomStream

_DRAWS = 10_000
"""The most pairs of an image and a draw that are decoded at once."""


class GaussianVAE(PyroModule):
    """p(x, z) = N(z; 0, I) p(x|z) and q(z|x) = N(z; m(x), diag s(x)^2), z in R^M."""

    def __init__(self, num_dims: int) -> None:
        super().__init__()
        # The library's networks take codes (D, K). Here the encoder's K is 2, for m and log s, and
        # the decoder gets z as a column.
        self.encoder = MLPEncoder(EVENT, num_dims, 2)
        self.decoder = MLPDecoder(EVENT, num_dims, 1)
        self.likelihood = Bernoulli()
        self.num_dims = num_dims

    @pyro_method
    def model(self, x: Tensor) -> None:
        """p(x, z) of x (B, 28, 28)."""
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", self.prior(x))
            pyro.sample("x", self.decode(z), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        """q(z|x)."""
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.posterior(x))

    def prior(self, x: Tensor) -> dist.TorchDistribution:
        """p(z), event (M,)."""
        zeros = x.new_zeros(self.num_dims)
        return dist.Normal(zeros, zeros + 1).to_event(1)

    def posterior(self, x: Tensor) -> dist.TorchDistribution:
        """q(z|x), batch (B,), event (M,)."""
        mean, log_scale = self.encoder(x).unbind(-1)
        return dist.Normal(mean, log_scale.exp()).to_event(1)

    def decode(self, z: Tensor) -> dist.TorchDistribution:
        """p(x|z) of z (..., M)."""
        return self.likelihood(self.decoder(z.unsqueeze(-1)), len(EVENT))


@torch.no_grad()
def score(vae: GaussianVAE, x: Tensor, num_samples: int, seed: int) -> Scores:
    """The ELBO and the bound, from the same k draws per datum; the KL is in closed form."""
    bces, kls, bounds, variances = [], [], [], []
    with RandomStream(seed):
        for rows in x.split(max(1, _DRAWS // num_samples)):
            q, p = vae.posterior(rows), vae.prior(rows)
            z = q.sample(torch.Size([num_samples]))  # (k, b, M)
            log_likelihood = vae.decode(z).log_prob(rows).double()  # (k, b)
            log_weights = log_likelihood + p.log_prob(z) - q.log_prob(z)
            bces.append(-log_likelihood)
            kls.append(torch.distributions.kl_divergence(q, p.expand(q.batch_shape)))
            bound, variance = log_mean_exp(log_weights.T)
            bounds.append(bound)
            variances.append(variance)
    bce, kl = torch.cat(bces, 1), torch.cat(kls).mean().item()
    return Scores(
        "Gaussian VAE",
        f"{vae.num_dims} real numbers",
        bce=bce.mean().item(),
        bits=kl / math.log(2),
        elbo=-bce.mean().item() - kl,
        bound=torch.cat(bounds).mean().item(),
        elbo_error=(bce.var(0).sum() / num_samples).sqrt().item() / len(x),
        bound_error=torch.cat(variances).sum().sqrt().item() / len(x),
    )


def run(setting: Setting, num_dims: int = 8) -> list[Scores]:
    """Train the model, and score it."""
    torch.manual_seed(setting.seed)
    vae = GaussianVAE(num_dims)
    elbo = TraceMeanField_ELBO(max_plate_nesting=1)

    def loss(x: Tensor) -> Tensor:
        return elbo.differentiable_loss(vae.model, vae.guide, x) / len(x)

    train(vae.parameters(), loss, setting)
    return [score(vae, setting.test, setting.num_samples, setting.seed)]


def main() -> None:
    """Train the model, and print its scores."""
    parser = arguments(__doc__)
    parser.add_argument("--num-dims", type=int, default=8)
    args = parser.parse_args()
    setting = load(args)
    print(table(run(setting, args.num_dims), setting))


if __name__ == "__main__":
    main()
