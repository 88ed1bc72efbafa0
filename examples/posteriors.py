"""Three posteriors of one model: the encoder's, refined by coordinate ascent, and exact.

The table shows the test ELBO of each, log p(x), and how well the most probable codes match classes
that no model has seen: the purity (the share of test rows whose class is the most frequent one of
their code among the training rows) and the adjusted Rand index of test rows, beside k-means with as
many clusters as there are codes. Tables are trained with the defaults, on a split of each seed. The
gaps between the ELBOs and log p(x) are drawn into posteriors.png.

    python examples/posteriors.py --only wine penguins --seeds 3
    python examples/posteriors.py --only wine penguins --guide-epochs 0
    python examples/posteriors.py --run runs/mnist-d4k8-snapshot-1
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from real_data import FASHION, SPLIT_SEED, divide, suggested, write
from real_peers import purity
from real_sets import DATA
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import one_hot

from pyro_dvae import evaluate, load_run, refine
from pyro_dvae.data import open_source
from pyro_dvae.evaluation import Inference, posterior_blocks
from pyro_dvae.runs import start_run

POSTERIORS = ("encoder", "refined", "exact")
DETAILS = ("log p(x|code)", "information", "accuracy")


def codes_of(vae: Any, x: Any, posterior: Any) -> Any:
    """A number for the most probable code of each row."""
    blocks = posterior_blocks(vae, x, None, Inference(posterior))
    index = torch.cat([found.posterior.mode() for found in blocks]).numpy()
    place = np.unique(index, axis=0, return_inverse=True)[1]
    return np.asarray(place).reshape(-1)


def detail(vae: Any, parts: dict[str, Any], labels: dict[str, Any], posterior: Any) -> Any:
    """How well codes describe rows, and how much each latent tells about the class."""
    inference, q, modes = Inference(posterior), {}, {}
    for part, x in parts.items():
        found = [block.posterior for block in posterior_blocks(vae, x, None, inference)]
        q[part] = torch.cat([each.marginals().exp().flatten(1) for each in found]).numpy()
        modes[part] = torch.cat([each.mode() for each in found])
    num_latents, num_categories = vae.prior_codes().event_shape
    with torch.no_grad():
        codes = one_hot(modes["test"], num_categories).to(parts["test"])
        log_p = vae.decode(codes).log_prob(parts["test"]).mean().item()
    known = np.concatenate([q["train"], q["test"]]).reshape(-1, num_latents, num_categories)
    members = np.eye(labels["train"].max() + 1)[np.concatenate([*labels.values()])]
    joint = np.einsum("ndk,nc->dkc", known, members) / len(known)  # p(z_d, y)
    product = joint.sum(1, keepdims=True) * joint.sum(2, keepdims=True)
    terms = joint * np.log(np.where(joint > 0, joint / np.maximum(product, 1e-300), 1))
    model = LogisticRegression(max_iter=2000).fit(q["train"], labels["train"])
    return {
        f"log p(x|code) {posterior}": log_p,
        f"information {posterior}": float(terms.sum()),
        f"accuracy {posterior}": float(model.score(q["test"], labels["test"])),
    }


def measured(vae: Any, parts: dict[str, Any], labels: dict[str, Any], seed: int) -> Any:
    """The figures of one model: name -> number."""
    figures: dict[str, float] = {}
    for sweeps in (1, 5):
        start = time.process_time()
        refined = refine(vae, parts["test"], sweeps)
        figures[f"seconds {sweeps}"] = time.process_time() - start
        figures[f"ELBO {sweeps}"] = refined.elbo.mean().item()
    start = time.process_time()
    for _ in posterior_blocks(vae, parts["test"], None, Inference("exact")):
        pass
    figures["seconds exact"] = time.process_time() - start
    scores = evaluate(vae, parts["test"], refine=5)
    for name in ("encoder_elbo", "log_marginal", "family_gap", "encoder_gap"):
        figures[name] = getattr(scores, name)
    known = len(parts["train"])
    both = torch.cat([parts["train"], parts["test"]])
    y_train, y_test = labels["train"], labels["test"]

    def count(name: str, code: Any) -> None:
        figures[f"purity {name}"] = purity(code[:known], code[known:], y_train, y_test)
        figures[f"rand {name}"] = float(adjusted_rand_score(y_test, code[known:]))
        figures[f"codes {name}"] = len(np.unique(code[:known]))

    for posterior in POSTERIORS:
        count(posterior, codes_of(vae, both, posterior))
        if known < 10_000:
            figures |= detail(vae, parts, labels, posterior)
    size = int(min(figures["codes encoder"], known // 5, 256))
    flat = both.flatten(1).nan_to_num().double()
    flat = (flat - flat.mean(0)) / flat.std(0).clamp(min=1e-9) if flat.shape[1] < 100 else flat
    model = KMeans(size, n_init=10 if known < 10_000 else 1, random_state=seed)
    count("k-means", np.concatenate([model.fit_predict(flat[:known]), model.predict(flat[known:])]))
    return figures


def of_table(name: str, seed: int, args: argparse.Namespace) -> Any:
    """Train on a split with the defaults, and measure."""
    data = DATA[name](args)
    train_rows, test_rows = divide(data, SPLIT_SEED + seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = [
            write(folder, part, data, rows)
            for part, rows in (("train", train_rows), ("test", test_rows))
        ]
        asked = data.settings or (suggested(paths[0]) if data.names is not None else {})
        if args.guide_epochs is not None:
            asked = {**asked, "guide_epochs": args.guide_epochs}
        with start_run(
            open_source(paths[0]), folder / "run", test=str(paths[1]), seed=seed, **asked
        ) as training:
            for _ in training.epochs():
                pass
            training.trainer.keep_best()
        vae, splits = training.trainer.vae, training.splits
        parts = {part: splits.part(part).x[:] for part in ("train", "test")}
        labels = {
            "train": data.labels[train_rows[splits.train_rows.numpy()]],
            "test": data.labels[test_rows],
        }
    return measured(vae.eval(), parts, labels, seed)


def of_run(folder: Path) -> Any:
    """Measure a run with labels, such as one of MNIST."""
    run = load_run(folder)
    rows = {part: run.rows(part) for part in ("train", "test")}
    labels = {part: np.asarray(its.labels) for part, its in rows.items()}
    return measured(run.vae, {part: its.x[:] for part, its in rows.items()}, labels, 0)


def line(name: str, every: list[Any]) -> str:
    """A row of the table: means over the seeds, ± one standard error."""

    def text(*names: str, digits: int = 2) -> str:
        cells = []
        for figure in names:
            values = [figures[figure] for figures in every]
            error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
            spread = "" if error is None else f" ± {error:.{digits}f}"
            cells.append(f"{np.mean(values):.{digits}f}{spread}")
        return " | ".join(cells)

    elbos = ("encoder_elbo", "ELBO 1", "ELBO 5", "log_marginal", "family_gap", "encoder_gap")
    classes = [
        " / ".join(text(f"{kind} {which}") for kind in ("purity", "rand"))
        for which in (*POSTERIORS, "k-means")
    ]
    for which in POSTERIORS if "accuracy exact" in every[0] else ():
        print(
            f"  {name}, {which}: log p(x|code), sum over d of I(y; z_d), accuracy of a logistic "
            "regression on q(z_d|x), codes of the training rows: "
            + text(*(f"{kind} {which}" for kind in (*DETAILS, "codes")))
        )
    seconds = text("seconds 1", "seconds 5", "seconds exact", digits=1)
    return f"| {name} | {text(*elbos)} | {' | '.join(classes)} | {seconds} |"


HEADS = (
    "data | encoder | 1 sweep | 5 sweeps | log p(x) | family gap | encoder gap | purity / Rand, "
    "encoder | refined | exact | k-means | seconds, 1 sweep | 5 sweeps | exact"
)


def draw(found: dict[str, list[Any]], path: Path) -> None:
    """Plot how far the ELBO of each posterior is below log p(x), a row per data set."""
    figure = Figure(figsize=(6.5, 1.2 + 0.45 * len(found)), layout="constrained")
    axes = figure.subplots()
    looks = {"encoder_elbo": "#0072b2", "ELBO 1": "#e69f00", "ELBO 5": "#009e73"}
    names = ("encoder", "after 1 sweep", "after 5 sweeps")
    for (elbo, color), label, mark in zip(looks.items(), names, "oDs", strict=True):
        gaps = [
            np.mean([of["log_marginal"] - of[elbo] for of in every]) for every in found.values()
        ]
        axes.plot(gaps, list(found), mark, color=color, label=label)
    axes.set(xlabel="log p(x) - ELBO, nats per test datum", title="q(z|x), and q(z|x) refined")
    axes.set_xlim(left=0)
    axes.margins(y=0.4)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Print a row per data set, and plot the gaps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(DATA), default=[])
    parser.add_argument("--run", nargs="*", type=Path, default=[], help="folders of runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--guide-epochs", type=int, help="epochs in which the guide of a table is trained alone"
    )
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--mnist", type=Path, default=Path("../shared/data/mnist"))
    parser.add_argument("-o", "--output", type=Path, default=Path("posteriors.png"))
    args = parser.parse_args()
    print(f"| {HEADS} |\n|{'---|' * (HEADS.count('|') + 1)}", flush=True)
    found: dict[str, list[Any]] = {}
    for name in args.only:
        found[name] = [of_table(name, seed, args) for seed in range(args.seeds)]
        print(line(name, found[name]), flush=True)
    for folder in args.run:
        found[folder.name] = [of_run(folder)]
        print(line(folder.name, found[folder.name]), flush=True)
    draw(found, args.output)


if __name__ == "__main__":
    main()
