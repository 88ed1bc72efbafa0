"""Classes of digits from few labels: the first latent is the class, known for some images.

The model is M2 of Kingma et al. (2014), with a discrete style in place of a continuous one. For
images without a label the classes are summed over, or drawn with --estimator rloo.

    python examples/semi_supervised.py --epochs 40 --estimator rloo
"""

import argparse

import torch
from torch import Tensor, nn

from pyro_dvae import (
    AutoregressiveGuide,
    Bernoulli,
    BinaryImages,
    DiscreteELBO,
    Guide,
    LearnedPrior,
    MeanFieldGuide,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    SemiSupervisedVAE,
    SumFirstELBO,
    evaluate,
    fit,
    load_images,
)

EVENT, CLASSES = (28, 28), 10


def hide_labels(labels: Tensor, per_class: int, seed: int) -> Tensor:
    """The labels of `per_class` images of each class, chosen at random, and -1 for all others."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    kept = torch.full_like(labels, -1)
    for label in range(CLASSES):
        index = order[labels[order] == label][:per_class]
        kept[index] = label
    return kept


def labels_alone(x: Tensor, labels: Tensor, hidden: tuple[int, ...]) -> nn.Module:
    """The same classifier, trained by cross-entropy on the labelled images and on nothing else."""
    network = MLPEncoder(EVENT, 1, CLASSES, hidden)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    known = labels >= 0
    for _ in range(200):
        optimizer.zero_grad()
        logits = network(torch.bernoulli(x[known] / 255)).squeeze(-2)
        nn.functional.cross_entropy(logits, labels[known]).backward()
        optimizer.step()
    return network


def main() -> None:
    """Train with each number of labels and each seed, and print the test error of q(y|x)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist-sample", choices=("mnist", "mnist-sample"))
    parser.add_argument("--data-dir", help="the folder with the files of MNIST")
    parser.add_argument("--num-data", type=int, default=50_000, help="the most training images")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256, help="units of each hidden layer")
    parser.add_argument("--latents", type=int, default=5, help="the class is one of them")
    parser.add_argument("--estimator", default="sum-first", choices=("sum-first", "rloo"))
    parser.add_argument("--guide", default="mean-field", choices=("mean-field", "autoregressive"))
    parser.add_argument("--weight", type=float, default=3.0, help="alpha is this times N / L")
    parser.add_argument("--annealing", type=int, default=0, help="epochs in which beta falls to 1")
    args = parser.parse_args()

    images = load_images(args.data, args.data_dir)
    x, y = images.train[: args.num_data], images.train_labels[: args.num_data]
    test, test_y = BinaryImages(images.test).fixed(seed=0), images.test_labels
    code = (args.latents, CLASSES)
    for per_class in args.labels_per_class:
        for seed in range(args.seeds):
            labels = hide_labels(y, per_class, seed)
            torch.manual_seed(seed)
            guide: Guide = MeanFieldGuide()
            if args.guide == "autoregressive":
                guide = AutoregressiveGuide(*code)
            hidden = (args.hidden, args.hidden)
            vae = SemiSupervisedVAE(
                MLPEncoder(EVENT, args.latents, guide.num_outputs or CLASSES, hidden),
                MLPDecoder(EVENT, *code, hidden),
                LearnedPrior(*code),
                Bernoulli(),
                guide,
                alpha=args.weight * len(y) / (labels >= 0).sum().item(),
            )
            elbo: DiscreteELBO = SumFirstELBO() if args.estimator == "sum-first" else RlooELBO()
            network = labels_alone(x, labels, hidden)
            wrong = (network(test).squeeze(-2).argmax(-1) != test_y).double().mean()
            print(f"{per_class} labels per class, seed {seed}, labels alone: {100 * wrong:.2f} %")
            # The average of the last 100 steps: these are short trainings.
            settings = {"annealing": args.annealing, "averaging": 0.99, "seed": seed}
            settings["learning_rate"] = 2e-3
            train = BinaryImages(x, labels=labels)
            for record in fit(vae, elbo, train, None, epochs=args.epochs, **settings):
                if record.epoch % 10 == 0 or record.epoch == args.epochs:
                    scores = evaluate(vae, test, test_y, exact=False, num_samples=2)
                    right = scores.accuracy or 0.0
                    print(
                        f"{per_class} labels per class, seed {seed}, epoch {record.epoch}: test "
                        f"error {100 * (1 - right):.2f} %, ELBO {scores.elbo:.2f} nats, "
                        f"{record.seconds:.0f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
