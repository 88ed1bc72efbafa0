"""A table of your own: look at it, train on some of its columns, and plot what the codes mean.

The table is a survey. Each row has the answers to 12 questions, yes (1) or no (0), an age, and the
group of the person, which the model never sees. With --table another file takes its place.

    python examples/own_table.py --epochs 100
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from pyro_dvae import Config, build_elbo, build_vae, evaluate, fit
from pyro_dvae.codes import one_hot
from pyro_dvae.data import DataError, choose, describe, extent, make_splits, open_source, scan

GROUPS = ("north", "east", "south", "west")
QUESTIONS = [f"q{i}" for i in range(1, 13)]


def write_survey(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a table in which most people of a group give the same answers."""
    source = np.random.default_rng(seed)
    yes = source.choice([0.1, 0.9], (len(GROUPS), len(QUESTIONS)))
    group = source.integers(0, len(GROUPS), num_rows)
    answers = source.random((num_rows, len(QUESTIONS))) < yes[group]
    age = source.integers(18, 90, num_rows)
    with path.open("w") as file:
        print(*QUESTIONS, "age", "group", sep=",", file=file)
        for row in range(num_rows):
            print(*answers[row].astype(int), age[row], GROUPS[group[row]], sep=",", file=file)


def main() -> None:
    """Look at the table, choose the columns that suit the model, train, and plot the codes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, help="a file with the same columns")
    parser.add_argument("--num-rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, default=Path("own_table.png"))
    args = parser.parse_args()
    table = args.table or Path("survey.csv")
    if args.table is None:
        write_survey(table, args.num_rows)

    source = open_source(table, labels="group")
    print("\n".join(describe(scan(source.train))))
    try:
        choose(extent(source.train))
    except DataError as refusal:
        print(f"\nall columns: {refusal}\n")

    source = open_source(table, labels="group", columns=QUESTIONS)
    preparation = choose(extent(source.train))
    print(f"q1 to q12 alone: binarisation {preparation.binarize}")
    splits = make_splits(source, binarize=preparation.binarize, validation=0.1, test=0.2, seed=0)
    config = Config(num_latents=2, num_categories=2, hidden=(32,))
    torch.manual_seed(0)
    vae = build_vae(config, source.train.event_shape)
    elbo = build_elbo(config, source.train.event_shape)
    records = fit(
        vae, elbo, splits.train, splits.validation, epochs=args.epochs, learning_rate=5e-3
    )
    for _ in records:
        pass
    part = splits.part("test")
    scores = evaluate(vae, part.x)
    print(f"test ELBO {scores.elbo:.2f}, log p(x) {scores.log_marginal:.2f} nats per row")

    codes = vae.mode(part.x).argmax(-1)  # (N, D)
    kinds = codes.unique(dim=0)
    with torch.no_grad():
        yes = vae.decode(one_hot(kinds, config.num_categories)).mean.numpy()  # (codes, questions)
    groups = source.train.label_names or ()
    assert part.labels is not None  # they were asked for
    group_of = [part.labels[(codes == kind).all(-1)] for kind in kinds]
    shares = torch.stack([of.bincount(minlength=len(groups)) for of in group_of]).numpy()
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    names = ["".join(map(str, kind.tolist())) for kind in kinds]
    shown = left.imshow(yes, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    left.set(title="p(yes | code)", ylabel="code z1 z2")
    left.set_xticks(range(len(QUESTIONS)), QUESTIONS)
    left.set_yticks(range(len(names)), names)
    figure.colorbar(shown, ax=left)
    for number, name in enumerate(groups):
        before = shares[:, :number].sum(1)
        right.barh(names, shares[:, number], left=before, label=name)
    right.set(title="groups with this code", xlabel="test rows")
    right.invert_yaxis()
    figure.legend(loc="outside right center", title="group")
    figure.savefig(args.output, dpi=120)
    print(f"{args.output}: the answers that each code stands for, and the groups that have it")


if __name__ == "__main__":
    main()
