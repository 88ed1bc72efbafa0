"""Runs of models that were trained in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import zoo
from torch import nn

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    Categorical,
    ConditionalPrior,
    ConvDecoder,
    ConvEncoder,
    DiscreteVAE,
    HierarchicalPrior,
    Mixed,
    MLPDecoder,
    MLPEncoder,
    Normal,
    Ordinal,
    Poisson,
    RlooELBO,
    UniformPrior,
    VampPrior,
    evaluate,
    fit,
    load_run,
    save_run,
)

Run = Callable[..., tuple[int, str, str]]
D, K = 2, 3


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def model(event: tuple[int, ...], likelihood: Any, **parts: Any) -> DiscreteVAE:
    torch.manual_seed(0)
    given = {
        "encoder": MLPEncoder(event, D, K, hidden=(6, 5)),
        "decoder": MLPDecoder(event, D, K, (5, 6), likelihood.num_params),
        "prior": UniformPrior(D, K),
        "likelihood": likelihood,
        **parts,
    }
    return DiscreteVAE(**given)


NOT_NAMED = {"logistic-mixture", "hierarchical", "vamp"}
"""Parts of the zoo with an argument that no setting has."""


@pytest.mark.parametrize("guide", zoo.GUIDES)
@pytest.mark.parametrize("prior", zoo.PRIORS)
def test_every_prior_and_guide_is_found(prior: str, guide: str) -> None:
    _is_found(zoo.make_vae(prior, guide=guide), prior)


@pytest.mark.parametrize("likelihood", zoo.LIKELIHOODS)
def test_every_likelihood_is_found(likelihood: str) -> None:
    _is_found(zoo.make_vae(likelihood=likelihood), likelihood)


def _is_found(vae: Any, name: str) -> None:
    if name in NOT_NAMED:
        with pytest.raises(ValueError, match="Expected settings that build the model anew; got"):
            save_run("run", vae)
        assert not Path("run").exists()
        return
    modes = [module.training for module in vae.modules()]
    run = save_run("run", vae)
    assert [module.training for module in vae.modules()] == modes
    assert str(run.config) == str(load_run("run").config)
    assert run.event_shape == (4,)
    for key, value in vae.state_dict().items():
        assert torch.equal(run.vae.state_dict()[key], value), key


def test_pseudo_inputs_within_the_range_of_bits_are_found() -> None:
    vae = model((4,), Bernoulli(), prior=VampPrior(3, (4,), bounded=True))
    assert save_run("run", vae).config.prior == "vamp:3"


@pytest.mark.parametrize(("grid", "latents"), [(False, 2), (True, 30)])
def test_convolutions_are_found(grid: bool, latents: int) -> None:
    event = (11, 9)
    vae = DiscreteVAE(
        ConvEncoder(event, latents, K, width=4, grid=grid),
        ConvDecoder(event, latents, K, width=4, grid=grid),
        UniformPrior(latents, K),
        Bernoulli(),
    )
    assert save_run("run", vae).config.network == ("conv-grid:4" if grid else "conv:4")


def test_every_command_takes_a_saved_model(pdvae: Run) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    classes = np.array(["a", "b", "c"])[np.arange(60) % 3]
    np.save("d.npy", grey)
    vae = model((8, 8), Bernoulli())
    images = BinaryImages(torch.tensor(grey))
    records = list(fit(vae, RlooELBO(2), images, 0.1, epochs=2, seed=4, batch_size=9))
    run = save_run("run", vae, grey, labels=classes, records=records, validation=0.1, seed=4)
    assert run.metrics == records
    assert run.status == "complete"
    assert run.epoch == max(record.epoch for record in records if record.is_best)
    assert run.config.binarize == "dynamic"
    assert run.data.label_names == ("a", "b", "c")
    splits = run.data.splits()
    assert splits.test is None
    for command in (
        ("evaluate", "run", "--split=validation"),
        ("sample", "run", "-os.png"),
        ("encode", "run", "--data=train", "-oc.csv"),
        ("decode", "run", "c.csv", "-od.npz"),
        ("score", "run", "--data=validation"),
        ("reconstruct", "run", "--input=d.npy", "-or.png"),
        ("traverse", "run", "--input=d.npy", "-ot.png"),
        ("info", "run"),
        ("gradients", "run", "--estimators=rloo", "--draws=20", "--batch-size=5"),
        ("fit-prior", "run", "second", "--prior=learned", "--epochs=1"),
        ("compare", "run", "second", "--split=validation"),
    ):
        status, out, err = pdvae(*command)
        assert (status, err) == (0, ""), command
        assert out, command
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "a run that keeps no test data" in err
    status, _, err = pdvae("fit", "--resume=run")
    assert (status, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("likelihood", [Normal(), Poisson(), Ordinal(20)], ids=repr)
def test_the_rows_that_fit_kept_apart_are_found_again(likelihood: Any) -> None:
    """Units that all elements share are stored too, as those of each element."""
    x = np.random.default_rng(0).poisson(3.0, (50, 4))
    vae = model((4,), likelihood)
    records = list(fit(vae, RlooELBO(2), x, 0.2, epochs=2, seed=3, batch_size=10, averaging=0))
    run = save_run("run", vae, x, records=records, validation=0.2, seed=3)
    held_out = run.data.splits().validation
    assert held_out is not None
    best = [record.validation_elbo for record in records if record.is_best][-1]
    assert evaluate(run.vae, held_out).elbo == pytest.approx(best, rel=1e-5)


def test_a_conditional_prior_gets_the_labels(pdvae: Run) -> None:
    source = np.random.default_rng(0)
    x, y = source.integers(0, 2, (40, 4)), source.choice(["u", "v", "w"], 40)
    vae = model((4,), Bernoulli(), prior=ConditionalPrior(D, K, 3, 5))
    run = save_run("run", vae, x, labels=y, validation=8)
    assert (run.config.prior, run.config.num_classes) == ("conditional:5", 3)
    assert run.score(x, labels=y).shape == (40,)
    with pytest.raises(ValueError, match="Expected labels for the values"):
        run.score(x)
    assert pdvae("evaluate", "run", "--split=validation")[0] == 0
    with pytest.raises(ValueError, match="num_classes=3; got data of num_classes=2"):
        save_run("other", vae, x, labels=np.where(y == "w", "u", y))


def test_a_file_and_a_test_part(pdvae: Run) -> None:
    lines = ["a,b,kind", *(f"{i % 5},{i * 7 % 3},{'uv'[i % 2]}" for i in range(40))]
    Path("t.csv").write_text("\n".join(lines))
    vae = model((2,), Categorical(5))
    run = save_run("run", vae, "t.csv", labels="kind", test=8, validation=0)
    assert (run.data.columns, run.data.num_train, run.data.num_test) == (("a", "b"), 32, 8)
    assert pdvae("evaluate", "run")[0] == 0
    assert load_run("run").evaluation["test"].elbo < 0


def test_a_table_of_pandas_keeps_its_names(pdvae: Run) -> None:
    source = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "mass": source.normal(4000, 500, 50).round(2),
            "island": source.choice(["Biscoe", "Dream", "Torgersen"], 50),
            "sex": source.choice(["f", "m"], 50),
            "species": source.choice(["a", "b"], 50),
        }
    )
    likelihood = Mixed([(Normal((1,)), 1), (Categorical(3), 1), (Bernoulli(), 1)])
    likelihood.calibrate(torch.tensor([[3500.0, 0, 0], [4500, 1, 1], [4000, 2, 0]]))
    vae = model((3,), likelihood)
    for name, labels in (("run", "species"), ("other", None)):
        table = frame if labels else frame.drop(columns="species")
        run = save_run(name, vae, table, labels=labels or frame["species"], validation=5)
        assert run.data.columns == ("mass", "island", "sex")
        assert run.data.label_names == ("a", "b")
        assert torch.equal(run.encode(frame), run.encode(frame[frame.columns[::-1]]))
        assert torch.equal(run.score(frame)[:5], run.score(frame[:5]))
        assert pdvae("evaluate", name, "--split=validation")[0] == 0
        assert pdvae("sample", name, "-n3", f"-o{name}.csv")[0] == 0


def test_without_data(pdvae: Run) -> None:
    vae = model((3,), Normal((3,), 0.5))
    vae.likelihood.calibrate(torch.randn(20, 3))
    run = save_run(None, vae)
    assert run.folder == Path("runs/model-1")
    assert run.config.likelihood == "normal:0.5"
    np.save("x.npy", np.zeros((4, 3), np.float32))
    assert run.score("x.npy").shape == (4,)
    for command in (("info",), ("sample", "-os.csv"), ("score", "--data=x.npy")):
        status, _, err = pdvae(*command)
        assert (status, err) == (0, ""), command
    status, _, err = pdvae("evaluate")
    assert (status, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((4, 5)), r"of shape \(N, 3\) with N > 0; got \(4, 5\)"),
        (np.full((4, 3), 7.5), "zeros and ones|0 or 1"),
        (np.full((4, 3), np.nan), "missing|NaN|nan"),
    ],
)
def test_data_of_another_model_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^Expected .*({message})"):
        save_run("run", model((3,), Bernoulli()), data)
    assert not Path("run").exists()


class Twice(nn.Module):
    """A decoder of a user's own."""

    def __init__(self, event_shape: Any, num_latents: int, num_categories: int, **_: Any) -> None:
        super().__init__()
        self.out = nn.Linear(num_latents * num_categories, event_shape[0])

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return 2 * self.out(z.flatten(-2))


def test_parts_of_a_user_s_own_are_named_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = model((3,), Bernoulli(), decoder=Twice((3,), D, K))
    with pytest.raises(
        ValueError,
        match=r"got the decoder Twice, in place of which they build MLPDecoder, .*decoder='module:",
    ):
        save_run("run", vae)
    run = save_run("run", vae, decoder="test_save:Twice")
    assert type(run.vae.decoder).__name__ == "Twice"
    z = torch.eye(K)[None, :D]
    assert torch.equal(run.vae.decode(z).mean, vae.decode(z).mean)
    assert sys.modules["test_save"].Twice is Twice


def test_what_computes_something_else_is_refused() -> None:
    class Half(MLPDecoder):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return super().forward(z) / 2

    class Tilted(MLPEncoder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.arange(K)

    vae = model((3,), Bernoulli(), decoder=Half((3,), D, K, (5, 6)))
    with pytest.raises(ValueError, match="which computes something else"):
        save_run("run", vae)
    vae = model((3,), Bernoulli(), encoder=Tilted((3,), D, K, (6, 5)))
    with pytest.raises(ValueError, match="the encoder Tilted"):
        save_run("run", vae)
    prior = HierarchicalPrior(D, K, (2, 2), hidden=(3,))
    with pytest.raises(
        ValueError, match="got the prior HierarchicalPrior, whose weights are of other sizes"
    ):
        save_run("run", model((3,), Bernoulli(), prior=prior))
    assert not Path("run").exists()
