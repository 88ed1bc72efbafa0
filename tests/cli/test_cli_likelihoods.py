"""Other likelihoods than the Bernoulli, and labels, through `pdvae fit` and what follows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyro_dvae import load_run

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--hidden=4", "--latents=2", "--categories=3", "--device=cpu", "--epochs=1"]
SMALL += ["--batch-size=8"]


def drawn(kind: str, *shape: int) -> NDArray[np.generic]:
    random = np.random.default_rng(0)
    if kind == "grey":
        return random.integers(0, 256, shape, np.uint8)
    if kind == "counts":
        return random.poisson(20, shape)
    return random.random(shape) if kind == "unit" else random.normal(50, 7, shape)


def mixed_table(path: str, num: int = 30) -> None:
    random = np.random.default_rng(0)
    kind = random.integers(0, 3, num)
    rows = zip(
        random.integers(0, 2, num),
        (kind + 1) % 3,
        random.poisson(4, num),
        random.normal(kind, 1, num).round(3),
        (["red", "green", "blue"][k] for k in kind),
        strict=True,
    )
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([["flag", "kind", "count", "height", "colour"], *rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "kind", "told"),
    [
        ("continuous-bernoulli", "grey", "continuous-bernoulli likelihood of values v / 255"),
        ("beta", "unit", "beta likelihood of values as stored"),
        ("categorical:4", "grey", "levels floor(4 v / 256), at most 3"),
        ("normal", "reals", "normal likelihood of values as stored"),
        ("laplace:0.5", "reals", "laplace:0.5 likelihood of values as stored"),
        ("negative-binomial", "counts", "likelihood of values as stored"),
    ],
)
def test_images_of_other_values(pdvae: Run, likelihood: str, kind: str, told: str) -> None:
    np.save("x.npy", drawn(kind, 24, 4, 4))
    status, out, err = pdvae("fit", "r", "--data=x.npy", "--likelihood", likelihood, *SMALL)
    assert (status, err) == (0, "")
    assert told in out
    assert "BCE" not in out
    assert "binarisation" not in out
    assert "E_q log p(x|z)" in out
    discrete = likelihood in ("categorical:4", "negative-binomial")
    assert ("bits per dimension" in out) == discrete
    assert ("log density" in out) == (not discrete)
    run = load_run(Path("r"))
    assert run.config.binarize == "none"
    if kind == "reals":
        assert 40 < run.vae.likelihood.location.mean() < 60  # type: ignore[union-attr]
    status, out, err = pdvae("fit", "--resume=r", "--epochs=2")
    assert (status, err) == (0, "")
    assert pdvae("evaluate", "r", "--iw-samples=5")[0] == 0
    assert pdvae("score", "r", "--data=x.npy", "--top=1")[0] == 0
    if likelihood not in ("continuous-bernoulli", "categorical:4", "normal"):
        return  # whose values are bounded and shown, or not, as those of one of these
    for command in (
        ["score", "r", "-o", "s.csv"],
        ["encode", "r", "-o", "c.csv"],
        ["decode", "r", "c.csv", "-o", "d.npz"],
        ["decode", "r", "c.csv", "-o", "d.png", "--draws"],
        ["reconstruct", "r", "-n", "2"],
        ["traverse", "r"],
        ["sample", "r", "-n", "4", "--draws"],
        ["sample", "r", "-n", "4", "-o", "s4.csv"],
        ["compare", "r", "r"],
    ):
        status, out, err = pdvae(*command)
        assert (status, err) == (0, ""), command
    with np.load("d.npz") as decoded:
        assert decoded["images"].shape == (2, 4, 4)
    for name in ("reconstructions.png", "latents.png", "samples.png"):
        assert (Path("r") / name).stat().st_size


def test_a_table_of_mixed_columns(pdvae: Run) -> None:
    mixed_table("t.csv")
    arguments = ["--data=t.csv", "--labels=colour", *SMALL]
    status, _, err = pdvae("fit", "r", "--likelihood=mixed", *arguments)
    assert status == 0
    assert err == (
        "columns: flag bernoulli, kind categorical (0, 1, 2), count negative-binomial, height "
        "normal\n"
    )
    assert (
        load_run(Path("r")).config.likelihood
        == "mixed:bernoulli,categorical:3,negative-binomial,normal"
    )
    assert pdvae("sample", "r", "-n", "5", "--draws", "-o", "s.csv")[0] == 0
    header, *rows = csv.reader(Path("s.csv").read_text().splitlines())
    assert header == ["flag", "kind", "count", "height"]
    assert len(rows) == 5
    assert {row[0] for row in rows} <= {"0", "1"}
    assert {row[1] for row in rows} <= {"0", "1", "2"}
    status, _, err = pdvae("sample", "r")
    assert status == 2
    assert "Expected a run of images" in err
    assert pdvae("evaluate", "r", "--split=train")[0] == 0
    assert pdvae("score", "r", "--data=t.csv", "--top=1")[0] == 0


class TestConditional:
    def test_a_table_with_names(self, pdvae: Run) -> None:
        mixed_table("t.csv")
        options = ["--data=t.csv", "--labels=colour", "--likelihood=mixed", "--prior=conditional"]
        status, out, _ = pdvae("fit", "r", *options, *SMALL)
        assert status == 0
        assert "p(z) is p(z|y)" in out
        assert load_run(Path("r")).config.num_classes == 3
        assert pdvae("fit", "--resume=r", "--epochs=2")[0] == 0
        assert pdvae("sample", "r", "-n", "4", "--label=green", "-o", "s.csv")[0] == 0
        header, *rows = csv.reader(Path("s.csv").read_text().splitlines())
        assert header[0] == "colour"
        assert {row[0] for row in rows} == {"green"}
        status, _, err = pdvae("sample", "r", "--label=pink", "-o", "p.csv")
        assert status == 2
        assert "Expected a label of r: blue, green, red; got 'pink'" in err
        status, out, _ = pdvae("evaluate", "r", "--json")
        assert status == 0
        figures = json.loads(out)
        assert figures["elbo"] <= figures["log_marginal"] + 1e-4
        assert pdvae("score", "r", "--top=1")[0] == 0
        assert pdvae("compare", "r")[0] == 0

    def test_images_a_row_a_class(self, pdvae: Run) -> None:
        np.savez("x.npz", x=drawn("grey", 24, 4, 4), labels=np.arange(24) % 3)
        assert pdvae("fit", "r", "--data=x.npz", "--prior=conditional", *SMALL)[0] == 0
        for options in (["-n", "7"], ["-n", "2", "-o", "b.png"], ["--label=2", "-o", "c.png"]):
            status, _, err = pdvae("sample", "r", *options)
            assert (status, err) == (0, "")
        np.savez("y.npz", x=drawn("grey", 4, 4, 4), labels=[0, 1, 2, 3])
        status, _, err = pdvae("score", "r", "--data=y.npz")
        assert status == 2
        assert "Expected labels 0 to 2 for y.npz; got 0 to 3" in err
        assert pdvae("reconstruct", "r", "--input=y.npz")[0] == 0

    def test_blocks(self, pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyro_dvae.data.serve import splits

        np.savez("x.npz", x=drawn("grey", 24, 4, 4), labels=np.arange(24) % 3)
        arguments = ["--data=x.npz", "--prior=conditional", "--likelihood=poisson", *SMALL]
        monkeypatch.setattr(splits, "IN_MEMORY", 10)
        assert pdvae("fit", "r", *arguments)[0] == 0


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (
            drawn("counts", 20, 3),
            [],
            "--likelihood poisson or --likelihood negative-binomial",
        ),
        (drawn("reals", 20, 3) - 50, [], "Or use --likelihood normal or --likelihood laplace"),
        (drawn("reals", 20, 3), ["--likelihood=poisson"], "whole numbers from 0 to 2^24"),
        (drawn("reals", 20, 3), ["--likelihood=beta"], "values in (0, 1)"),
        (drawn("unit", 20, 3), ["--likelihood=categorical:3"], "whole numbers 0 to 2"),
        (drawn("unit", 20, 2, 2), ["--likelihood=mixed"], "Expected rows of columns"),
        (drawn("counts", 20, 3), ["--likelihood=mixed:normal*2"], "one kind for each column"),
        (drawn("reals", 20, 3), ["--likelihood=mixed:poisson*3"], "poisson"),
        (drawn("reals", 20, 3), ["--likelihood=nonesuch"], "nonesuch"),
        (drawn("reals", 20, 3), ["--likelihood=normal", "--range=0,99"], "Leave --range out"),
        (drawn("reals", 20, 3), ["--likelihood=normal", "--binarize=static"], "no binarisation"),
        (drawn("grey", 20, 3), ["--prior=conditional"], "Name them with --labels"),
    ],
)
def test_bad_input_is_told_in_a_line_and_leaves_nothing(
    pdvae: Run, values: NDArray[np.generic], options: list[str], message: str
) -> None:
    np.save("x.npy", values)
    status, out, err = pdvae("fit", "r", "--data=x.npy", *options, *SMALL)
    assert (status, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("pdvae: ")
    assert message in line
    assert not Path("r").exists()


def test_no_label_for_a_prior_without(pdvae: Run) -> None:
    np.save("x.npy", drawn("grey", 20, 4, 4))
    assert pdvae("fit", "r", "--data=x.npy", *SMALL)[0] == 0
    status, _, err = pdvae("sample", "r", "--label=1")
    assert status == 2
    assert "Expected no --label for r" in err


def test_only_runs_of_the_same_values_are_compared(pdvae: Run) -> None:
    np.save("x.npy", drawn("counts", 20, 3))
    for name in ("poisson", "negative-binomial", "normal"):
        assert pdvae("fit", name, "--data=x.npy", f"--likelihood={name}", *SMALL)[0] == 0
    assert pdvae("compare", "poisson", "negative-binomial")[0] == 0
    status, _, err = pdvae("compare", "poisson", "normal")
    assert status == 2
    assert "values counts" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--estimator", "reinmax"], "closed-form KL at site 'z'"),
        (["--guide", "autoregressive"], "Expected codes with known conditionals"),
    ],
)
def test_parts_that_do_not_fit_leave_nothing(pdvae: Run, options: list[str], message: str) -> None:
    """A Boltzmann prior of more codes than are summed."""
    np.save("x.npy", np.eye(6, dtype=np.uint8).repeat(5, 0))
    parts = ["--latents", "12", "--categories", "3", "--prior", "rbm", *options]
    status, out, err = pdvae("fit", "run", "--data", "x.npy", "--hidden", "4", *parts)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not Path("run").exists()


def test_gradients_leave_out_what_the_parts_do_not_allow(pdvae: Run) -> None:
    np.save("x.npy", np.eye(6, dtype=np.uint8).repeat(5, 0))
    parts = ("--latents", "2", "--categories", "3", "--prior", "conditional", "--hidden", "4")
    table = "a,b,y\n" + "1,0,u\n0,1,v\n" * 20
    Path("t.csv").write_text(table)
    assert pdvae("fit", "run", "--data", "t.csv", "--labels", "y", "--epochs", "1", *parts)[0] == 0
    names = ("--estimators", "rloo,exact", "--draws", "20", "--batch-size", "8")
    status, out, _ = pdvae("gradients", "run", *names)
    assert status == 0
    assert "reference: enumeration" in out
    large = ("--latents", "12", "--categories", "3", "--prior", "rbm", "--hidden", "4")
    assert pdvae("fit", "large", "--data", "x.npy", "--epochs", "1", *large)[0] == 0
    status, _, err = pdvae("gradients", "large", "--estimators", "rloo,exact", "--draws", "20")
    assert (status, err.count("\n")) == (2, 1)
    assert "exact: Expected at most 65536 codes" in err
    status, _, err = pdvae("gradients", "large", "--estimators", "reinmax", "--draws", "20")
    assert (status, err.count("\n")) == (2, 1)
    assert "reinmax: Expected a reparametrised draw or a closed-form KL" in err
