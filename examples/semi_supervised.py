"""Classes of digits from few labels: the first latent is the class, known for some images.

The model is M2 of Kingma et al. (2014), with a discrete style in place of a continuous one. For
images without a label the classes are drawn, or summed over with --estimator sum-first. Settings
were chosen on the validation images, which are the last 5,000 (or a sixth) of the training images.
The last model draws semi_supervised.png: the styles of test images, each with all ten classes.

    python examples/semi_supervised.py --data mnist --data-dir ../shared/data/mnist --epochs 14
"""

import argparse
from pathlib import Path
from typing import Any

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
    RepeatedLabels,
    RlooELBO,
    SemiSupervisedVAE,
    SumFirstELBO,
    evaluate,
    fit,
    load_images,
)
from pyro_dvae.runs.plots import image_grid, save_figure

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


def error(classes: Tensor, labels: Tensor) -> float:
    """The share of wrong classes, in per cent."""
    return 100 * (classes != labels).double().mean().item()


@torch.no_grad()
def draw(vae: SemiSupervisedVAE, test: Tensor, path: Path, num: int = 8) -> None:
    """A row per test image: the image, and then its style with each class in turn."""
    codes = vae.mode(test[:num])[:, None].repeat(1, CLASSES, 1, 1)  # (num, classes, D, K)
    codes[:, :, 0] = torch.eye(CLASSES)  # the first latent is the class
    means = vae.decode(codes.flatten(0, 1)).mean.unflatten(0, (num, CLASSES))
    rows = torch.cat([test[:num, None], means], 1).flatten(0, 1)
    save_figure(image_grid(rows, CLASSES + 1, "image, and its style with class 0 to 9"), path)


def main() -> None:
    """Train with each number of labels and each seed, and print the error of q(y|x)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist-sample", choices=("mnist", "mnist-sample"))
    parser.add_argument("--data-dir", help="the folder with the files of MNIST")
    parser.add_argument("--num-data", type=int, default=50_000, help="the most training images")
    parser.add_argument("--labels-per-class", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256, help="units of each hidden layer")
    parser.add_argument("--latents", type=int, default=11, help="the class is one of them")
    parser.add_argument("--estimator", default="rloo", choices=("sum-first", "rloo"))
    parser.add_argument("--guide", default="mean-field", choices=("mean-field", "autoregressive"))
    parser.add_argument("--weight", type=float, default=1.0, help="alpha is this times N / L")
    parser.add_argument("--labelled-share", type=float, default=0.1, help="of an epoch, at least")
    parser.add_argument("--dropout", type=float, default=0.3, help="of the encoder")
    parser.add_argument("-o", "--output", type=Path, default=Path("semi_supervised.png"))
    args = parser.parse_args()

    images = load_images(args.data, args.data_dir)
    kept = min(5_000, len(images.train) // 6)
    num_data = min(args.num_data, len(images.train) - kept)
    x, y = images.train[:num_data], images.train_labels[:num_data]
    validation = BinaryImages(images.train[-kept:]).fixed(seed=0)
    validation_y = images.train_labels[-kept:]
    test, test_y = BinaryImages(images.test).fixed(seed=0), images.test_labels
    code = (args.latents, CLASSES)
    for per_class in args.labels_per_class:
        for seed in range(args.seeds):
            head = f"{per_class} labels per class, seed {seed}"
            labels = hide_labels(y, per_class, seed)
            torch.manual_seed(seed)
            hidden = (args.hidden, args.hidden)
            network = labels_alone(x, labels, hidden)
            wrong = error(network(test).squeeze(-2).argmax(-1), test_y)
            print(f"{head}, labels alone: test error {wrong:.2f} %", flush=True)
            guide: Guide = MeanFieldGuide()
            if args.guide == "autoregressive":
                guide = AutoregressiveGuide(*code)
            train = RepeatedLabels(BinaryImages(x, labels=labels), args.labelled_share)
            vae = SemiSupervisedVAE(
                MLPEncoder(EVENT, args.latents, guide.num_outputs or CLASSES, hidden, args.dropout),
                MLPDecoder(EVENT, *code, hidden),
                LearnedPrior(*code),
                Bernoulli(),
                guide,
                alpha=args.weight * len(train) / train.num_labelled,
            )
            elbo: DiscreteELBO = SumFirstELBO() if args.estimator == "sum-first" else RlooELBO()
            # The average of the last 100 steps: these are short trainings.
            settings: dict[str, Any] = {
                "annealing": 0,
                "averaging": 0.99,
                "learning_rate": 2e-3,
                "seed": seed,
            }
            for record in fit(vae, elbo, train, None, epochs=args.epochs, **settings):
                wrong = error(vae.class_probabilities(validation).argmax(-1), validation_y)
                print(
                    f"{head}, epoch {record.epoch}: validation error {wrong:.2f} %, "
                    f"{record.seconds:.0f} s",
                    flush=True,
                )
            scores = evaluate(vae, test, test_y, exact=False, num_samples=2)
            wrong = 100 * (1 - (scores.accuracy or 0.0))
            print(f"{head}: test error {wrong:.2f} %, ELBO {scores.elbo:.2f} nats", flush=True)
    draw(vae, test, args.output)


if __name__ == "__main__":
    main()
