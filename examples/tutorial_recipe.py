"""The tutorial's model and recipe, trained by Pyro's own SVI.

This is the model of examples/from_scratch.py. Here the gradient estimator is one argument of SVI:
an ELBO of this library, or one of Pyro's.

    python examples/tutorial_recipe.py --estimator rloo --epochs 160 --num-data 5000
"""

import argparse

import pyro
import torch
from pyro.infer import ELBO, SVI, Trace_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    ReinforceELBO,
    RlooELBO,
    UniformPrior,
    evaluate,
    load_images,
)

CODE = (4, 8)  # D, K
ESTIMATORS: dict[str, ELBO] = {
    "reinforce": ReinforceELBO(baseline=-125.0),
    "rloo": RlooELBO(num_particles=4),
    "trace": Trace_ELBO(),
}


def main() -> None:
    """Train, and print the ELBO of the training and the test data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimator", choices=ESTIMATORS, default="reinforce")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    args = parser.parse_args()

    pyro.set_rng_seed(0)
    images = load_images("mnist-sample")
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test[:200]).fixed(seed=0)
    generator = torch.Generator().manual_seed(0)

    vae = DiscreteVAE(
        MLPEncoder(train.event_shape, *CODE),
        MLPDecoder(train.event_shape, *CODE),
        UniformPrior(*CODE),
        Bernoulli(),
    )
    # The loss of SVI sums over the batch. This changes nothing, since Adam's steps do not depend on
    # the scale of the gradient.
    optimizer = Adam({"lr": 5e-4})
    elbo = ESTIMATORS[args.estimator]
    svi = SVI(vae.model, vae.guide, optimizer, elbo)

    for epoch in range(1, args.epochs + 1):
        loss = 0.0
        for index in torch.split(torch.randperm(len(train)), 100):
            x = train.batch(index, generator)
            loss += svi.step(x)
        print(f"epoch {epoch}: train ELBO {-loss / len(train):.2f} nats per image")

    scores = evaluate(vae, test)
    print(f"test ELBO {scores.elbo:.2f}, log p(x) {scores.log_marginal:.2f} nats per image")


if __name__ == "__main__":
    main()
