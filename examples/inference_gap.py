"""Where the gap log p(x) - ELBO comes from: the family of q, or the encoder that computes q.

log p(x) - ELBO = [log p(x) - max_q ELBO(q)] + [max_q ELBO(q) - ELBO]. The first term is the gap
that the best factorised q of each datum leaves. The second is what the encoder loses beyond that.
They are the approximation gap and the amortisation gap of Cremer, Li & Duvenaud 2018, "Inference
suboptimality in variational autoencoders". `evaluate(vae, x, refine=5)` computes both, with all
K^D codes summed. The best q is searched for by coordinate ascent from several starts, so the first
gap is at most what is printed. Both are drawn into inference_gap.png.

    python examples/inference_gap.py --epochs 30 --data mnist --data-dir DIR
"""

import argparse
from pathlib import Path
from typing import cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_dvae import (
    BinaryImages,
    Config,
    DiscreteVAE,
    RlooELBO,
    build_vae,
    evaluate,
    fit,
    load_images,
)
from pyro_dvae.evaluation import Inference, posterior_blocks
from pyro_dvae.posteriors import EnumerablePosterior


def mass_at_mode(vae: DiscreteVAE, x: Tensor) -> float:
    """The mean over the data of p(z|x) at the most probable code z of the guide's q(z|x)."""
    masses = []
    for _, encoded, exact in posterior_blocks(vae, x, None, Inference("exact")):
        q, p = cast(EnumerablePosterior, encoded), cast(EnumerablePosterior, exact)
        number = q.table().argmax(-1, keepdim=True)
        masses.append(p.table().exp().gather(-1, number))
    return torch.cat(masses).mean().item()


def draw(gaps: dict[str, tuple[float, float]], path: Path) -> None:
    """Stack the two parts of the gap of each guide."""
    figure = Figure(figsize=(6.5, 1.9), layout="constrained")
    axes = figure.subplots()
    family, encoder = zip(*gaps.values(), strict=True)
    axes.barh(list(gaps), family, color="#0072b2", label="family of q")
    axes.barh(list(gaps), encoder, left=family, color="#e69f00", label="encoder")
    axes.set(xlabel="log p(x) - ELBO, nats per test image", title="where the gap comes from")
    axes.invert_yaxis()
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=100)


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
    parser.add_argument("-o", "--output", type=Path, default=Path("inference_gap.png"))
    args = parser.parse_args()

    images = load_images(args.data, args.data_dir)
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test[: args.num_test]).fixed(seed=0)
    gaps = {}
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
        scores = evaluate(vae, test, refine=5)
        posterior = evaluate(vae, test, posterior="exact")
        print(
            f"{guide:14}  ELBO {scores.elbo:.2f}, refined {scores.refined_elbo:.2f}, log p(x) "
            f"{scores.log_marginal:.2f} nats/image: gap {scores.posterior_gap:.2f} = family "
            f"{scores.family_gap:.2f} + encoder {scores.encoder_gap:.2f}; p(z|x) has entropy "
            f"{posterior.entropy:.2f} and mass {mass_at_mode(vae, test):.2f} at q's most probable "
            "code"
        )
        assert scores.family_gap is not None
        assert scores.encoder_gap is not None
        gaps[f"{guide} guide"] = scores.family_gap, scores.encoder_gap
    draw(gaps, args.output)


if __name__ == "__main__":
    main()
