"""Where the gap log p(x) - ELBO comes from: the family of q, or the encoder that computes q.

log p(x) - ELBO = [log p(x) - max_q ELBO(q)] + [max_q ELBO(q) - ELBO]. The first term is the gap
that the best factorised q of each datum leaves. The second is what the encoder loses beyond that.
They are the approximation gap and the amortisation gap of Cremer, Li & Duvenaud 2018, "Inference
suboptimality in variational autoencoders".

The best q is found by coordinate ascent with all K^D codes summed: q_d is set proportional to exp
of the mean of log p(x, z) over the other latents. The ascent starts from the encoder's q, from the
marginals of the posterior, and from each of the most probable codes of the posterior. Its result is
a lower bound on the maximum, so the first gap is at most what is printed.

    python examples/inference_gap.py --epochs 30 --data mnist --data-dir DIR
"""

import argparse

import torch
from torch import Tensor

from pyro_dvae import BinaryImages, Config, DiscreteVAE, RlooELBO, build_vae, fit, load_images
from pyro_dvae.codes import one_hot
from pyro_dvae.evaluation.joint import Joint
from pyro_dvae.posteriors import posterior_of

STARTS, SWEEPS = 20, 30


def mean_over_latents(table: Tensor, q: list[Tensor], keep: int | None = None) -> Tensor:
    """The mean of a table (B, K, ..., K) under q.

    Args:
        table: (B, K, ..., K), a number for each code.
        q: D tensors (B, K), the probabilities of each latent.
        keep: a latent over which no mean is taken, or None.

    Returns:
        (B,), or (B, K) if a latent is kept.
    """
    for latent in reversed(range(len(q))):
        if latent != keep:
            weight = q[latent].unflatten(0, (-1, *[1] * (table.dim() - 2)))
            table = (table.movedim(1 + latent, -1) * weight).sum(-1)
    return table


def best_factorised(log_joint: Tensor, q: list[Tensor], sweeps: int = SWEEPS) -> Tensor:
    """The ELBO of the factorised q that coordinate ascent reaches.

    Args:
        log_joint: (B, K, ..., K) log p(x, z) of all codes.
        q: D tensors (B, K), the probabilities of each latent to start from.
        sweeps: how often each latent is updated.

    Returns:
        (B,) nats.
    """
    q = [0.98 * part + 0.02 / part.shape[-1] for part in q]
    for _ in range(sweeps):
        for latent in range(len(q)):
            q[latent] = mean_over_latents(log_joint, q, latent).softmax(-1)
    entropy = sum(-torch.special.xlogy(part, part).sum(-1) for part in q)
    return mean_over_latents(log_joint, q) + entropy


@torch.no_grad()
def gaps(vae: DiscreteVAE, x: Tensor) -> dict[str, Tensor]:
    """The ELBO, its maximum over factorised q, log p(x), and two facts about p(z|x), (B,) each."""
    log_prior, log_likelihood = Joint(vae, x).all_codes(x)
    log_joint = log_prior + log_likelihood  # (B, K^D)
    posterior = posterior_of(vae.posterior(x), tabulate=True)
    log_q = posterior.table()
    sizes = vae.posterior(x[:1]).event_shape
    shape = (sizes[1],) * sizes[0]
    table, p = log_joint.unflatten(-1, shape), log_joint.softmax(-1)
    others = [[e + 1 for e in range(len(shape)) if e != d] for d in range(len(shape))]
    starts = [list(posterior.marginals().exp().unbind(1))]
    starts.append([p.unflatten(-1, shape).sum(dims) if dims else p for dims in others])
    for number in p.topk(min(STARTS, p.shape[-1])).indices.unbind(-1):
        digits = torch.unravel_index(number, shape)
        starts.append([one_hot(digit, sizes[1], dtype=p.dtype) for digit in digits])
    return {
        "elbo": (log_q.exp() * (log_joint - log_q)).sum(-1),
        "best": torch.stack([best_factorised(table, start) for start in starts]).amax(0),
        "log_marginal": log_joint.logsumexp(-1),
        "posterior_entropy": -torch.special.xlogy(p, p).sum(-1),
        "mass_at_mode": p.gather(-1, log_q.argmax(-1, keepdim=True)).squeeze(-1),
    }


def main() -> None:
    """Train with each guide, and print the two gaps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--num-data", type=int, default=60_000, help="training images to use")
    parser.add_argument("--num-test", type=int, default=1000)
    parser.add_argument("--latents", type=int, default=4)
    parser.add_argument("--categories", type=int, default=8)
    parser.add_argument("--data", default="mnist-sample")
    parser.add_argument("--data-dir")
    args = parser.parse_args()

    images = load_images(args.data, args.data_dir)
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test[: args.num_test]).fixed(seed=0)
    for guide in ("mean-field", "autoregressive"):
        config = Config(guide=guide, num_latents=args.latents, num_categories=args.categories)
        torch.manual_seed(0)
        vae = build_vae(config, train.event_shape)
        records = fit(
            vae,
            RlooELBO(4),
            train,
            None,
            epochs=args.epochs,
            averaging=0.999,
            annealing=min(10, args.epochs),
            initial_beta=4.0,
        )
        for _ in records:
            pass
        vae.eval()
        blocks = [gaps(vae, rows) for rows in test.split(100)]
        mean = {
            name: torch.cat([block[name] for block in blocks]).mean().item() for name in blocks[0]
        }
        elbo, best, log_p = mean["elbo"], mean["best"], mean["log_marginal"]
        print(
            f"{guide:14}  ELBO {elbo:.2f}, best factorised q {best:.2f}, log p(x) {log_p:.2f} "
            f"nats/image: gap {log_p - elbo:.2f} = family {log_p - best:.2f} + encoder "
            f"{best - elbo:.2f}; p(z|x) has entropy {mean['posterior_entropy']:.2f} and mass "
            f"{mean['mass_at_mode']:.2f} at q's most probable code"
        )


if __name__ == "__main__":
    main()
