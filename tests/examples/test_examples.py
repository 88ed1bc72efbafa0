"""Every example runs, and the library equals the tutorial's recipe in plain PyTorch."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pytest
import torch
from hostile import Hostile
from oracle import FixedDraws
from pyro.infer import SVI
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pyro_dvae import (
    Bernoulli,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    ReinforceELBO,
    RlooELBO,
    UniformPrior,
    fit,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
B, D, K, EVENT, HIDDEN = 5, 4, 8, (3, 2), (7, 6)
EXACT = {"atol": 1e-10, "rtol": 0}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(server: Hostile, name: str, *options: str, cwd: Path) -> str:
    """What an example prints."""
    return server.run_script(EXAMPLES / f"{name}.py", *options, cwd=cwd).out


# --- The library against examples/from_scratch.py ---

from_scratch = load("from_scratch")


def two_copies() -> tuple[nn.Module, nn.Module, DiscreteVAE]:
    """The networks of the plain recipe, and a VAE of the library with the same weights."""
    sizes = (math.prod(EVENT), D, K, HIDDEN)
    encoder, decoder = from_scratch.make_encoder(*sizes), from_scratch.make_decoder(*sizes)
    vae = DiscreteVAE(
        MLPEncoder(EVENT, D, K, HIDDEN),
        MLPDecoder(EVENT, D, K, HIDDEN[::-1]),
        UniformPrior(D, K),
        Bernoulli(),
    )
    vae.encoder.layers.load_state_dict(encoder.state_dict())
    vae.decoder.layers.load_state_dict(decoder.state_dict())
    return encoder, decoder, vae


def data_and_codes() -> tuple[Tensor, Tensor]:
    x = torch.bernoulli(torch.full((B, *EVENT), 0.5))
    z = one_hot(torch.randint(K, (B, D)), K).to(x)
    return x, z


def assert_same(plain: list[Tensor | None], ours: list[Tensor | None]) -> None:
    for a, b in zip(plain, ours, strict=True):
        assert a is not None
        assert b is not None
        assert a.abs().max() > 1e-6  # nothing to compare in a dead network
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize(("baseline", "ours"), [(0.0, None), (0.0, 0.0), (125.0, -125.0)])
def test_loss_and_gradients_are_the_recipes(baseline: float, ours: float | None) -> None:
    encoder, decoder, vae = two_copies()
    x, z = data_and_codes()

    elbo, surrogate = from_scratch.recipe(encoder, decoder, x.flatten(1), z, baseline=baseline)
    surrogate.backward()

    loss = ReinforceELBO(baseline=ours).loss_and_grads(
        vae.model, FixedDraws({"z": z})(vae.guide), x
    )
    for parameter in vae.parameters():
        assert parameter.grad is not None
        parameter.grad /= B  # the loss sums over the batch, the recipe takes the mean

    assert elbo.shape == (B,)
    assert loss / B == pytest.approx(-elbo.mean().item(), abs=1e-10, rel=0)
    plain = [p.grad for p in (*encoder.parameters(), *decoder.parameters())]
    assert_same(plain, [p.grad for p in vae.parameters()])


def test_without_codes_the_recipe_draws_them_from_the_encoder() -> None:
    encoder, decoder, _ = two_copies()
    x, _ = data_and_codes()
    with torch.no_grad():
        encoder[-2].bias[::K] += 100.0  # category 0 of every latent, almost surely
        elbo, _ = from_scratch.recipe(encoder, decoder, x.flatten(1))
        z = one_hot(torch.zeros(B, D, dtype=torch.long), K).to(x)
        expected, _ = from_scratch.recipe(encoder, decoder, x.flatten(1), z)
    torch.testing.assert_close(elbo, expected)


# The loss of SVI is B times as large: SGD's rate makes up for that, and Adam's eps.
OPTIMIZERS = {
    "sgd": (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda: pyro.optim.SGD({"lr": 0.1 / B}),
    ),
    "adam": (
        lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
        lambda: pyro.optim.Adam({"lr": 5e-4, "eps": 1e-8 * B}),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_svi_takes_the_recipes_steps(name: str) -> None:
    make_plain: Callable[[list[Tensor]], Any]
    make_plain, make_ours = OPTIMIZERS[name]
    encoder, decoder, vae = two_copies()
    parameters = [*encoder.parameters(), *decoder.parameters()]
    before = [p.detach().clone() for p in parameters]
    plain = make_plain(parameters)
    elbo = ReinforceELBO(baseline=-125.0)
    ours = make_ours()

    for _ in range(3):
        x, z = data_and_codes()
        plain.zero_grad()
        from_scratch.recipe(encoder, decoder, x.flatten(1), z)[1].backward()
        plain.step()
        SVI(vae.model, FixedDraws({"z": z})(vae.guide), ours, loss=elbo).step(x)

    assert_same(list(parameters), list(vae.parameters()))
    for old, new in zip(before, parameters, strict=True):
        assert (new - old).abs().max() > 1e-5


def test_from_scratch_needs_neither_pyro_nor_the_library() -> None:
    tree = ast.parse((EXAMPLES / "from_scratch.py").read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "." for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [name for name in names if name.startswith((".", "pyro"))]


# --- Every example as a program ---


def test_a_script_that_warns_fails(tmp_path: Path, hostile_server: Hostile) -> None:
    script = tmp_path / "warns.py"
    script.write_text("import sys, warnings\nprint(sys.argv[1:])\nwarnings.warn('odd')\nprint(2)")
    outcome = hostile_server("a", "b", cwd=tmp_path, script=script)
    assert (outcome.status, outcome.out) == (1, "['a', 'b']\n")
    assert "UserWarning: odd" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "from_scratch",
        "tutorial_recipe --estimator reinforce",
        "tutorial_recipe --estimator rloo",
        "tutorial_recipe --estimator trace",
        "swap_prior",
        "swap_likelihood",
        "own_network",
        "semi_supervised --labels-per-class 2 5 --hidden 30 --latents 3",
    ],
)
def test_example_prints_finite_elbos(command: str, tmp_path: Path, hostile_server: Hostile) -> None:
    out = run(hostile_server, *command.split(), "--epochs", "1", "--num-data", "200", cwd=tmp_path)
    elbos = [float(number) for number in re.findall(r"ELBO +(\S+?),?\s", out)]
    assert len(elbos) >= 2
    assert all(map(math.isfinite, elbos))
    name = command.partition(" ")[0]
    pictures = [] if name in {"from_scratch", "tutorial_recipe"} else [f"{name}.png"]
    assert [path.name for path in tmp_path.iterdir()] == pictures
    assert all((tmp_path / picture).stat().st_size > 5_000 for picture in pictures)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["bernoulli", "logistic-mixture"])
def test_rgb_images_are_painted_learnt_and_drawn(
    likelihood: str, tmp_path: Path, hostile_server: Hostile
) -> None:
    options = ["--likelihood", likelihood, "--num-data", "20", "--epochs", "1"]
    out = run(hostile_server, "rgb_images", *options, "--network", "conv:2", cwd=tmp_path)
    elbos = [float(number) for number in re.findall(r"ELBO +(\S+)", out)]
    assert len(elbos) == 2
    assert all(map(math.isfinite, elbos))
    assert (tmp_path / "rgb_images.png").stat().st_size > 10_000
    digits = torch.zeros(3, 28, 28)
    digits[:, 10, 10] = 255
    painted = load("rgb_images").paint(digits)
    assert painted.shape == (3, 3, 33, 45)
    assert [len(image.flatten(1).unique(dim=1).mT) for image in painted] == [2, 2, 2]


@pytest.mark.slow
def test_text_counts_prints_perplexity_and_topics(tmp_path: Path, hostile_server: Hostile) -> None:
    out = run(
        hostile_server,
        "text_counts",
        "--epochs=1",
        "--num-documents=150",
        "--vocabulary=60",
        cwd=tmp_path,
    )
    assert len(re.findall(r"test ELBO +-\d+\.\d\d", out)) == 3
    perplexity = re.search(r"perplexity (\d+) per word", out)
    assert perplexity is not None
    assert 1 < int(perplexity[1]) < 90  # of 60 words, before much was learnt
    assert len(re.findall(r"z\d=\d \( *\d+%\): \w+", out)) == 24


@pytest.mark.slow
def test_conditional_digits_draws_a_row_a_class(tmp_path: Path, hostile_server: Hostile) -> None:
    out = run(hostile_server, "conditional_digits", "--num-data=200", cwd=tmp_path)
    elbos = re.search(r"test ELBO (\S+), a bound on log p\(x\|y\) = (\S+)", out)
    assert elbos is not None
    assert float(elbos[1]) <= float(elbos[2]) + 1e-3
    assert (tmp_path / "conditional_digits.png").stat().st_size > 10_000


@pytest.mark.slow
def test_your_own_program_trains_by_every_loss(tmp_path: Path, hostile_server: Hostile) -> None:
    out = run(hostile_server, "your_own_program", "--steps", "20", cwd=tmp_path)
    elbos = [float(line.split()[-1]) for line in out.splitlines()[1:]]
    assert len(elbos) == 5
    assert all(map(math.isfinite, elbos))
    example = load("your_own_program")
    for part in (example.model, example.documents, example.Guide.__init__, example.Guide.forward):
        assert "ELBO" not in inspect.getsource(part)


@pytest.mark.slow
def test_compare_estimators_writes_a_table_and_a_figure(
    tmp_path: Path, hostile_server: Hostile
) -> None:
    options = ["--estimators", "rloo,reinmax", "--seconds", "0.1", "--curve-images", "20"]
    run(hostile_server, "compare_estimators", *options, "--out", "out", cwd=tmp_path)
    options = ["--estimators", "rloo", "--cpu-seconds", "0.1", "--annealing", "1", "--seed", "1"]
    options += ["--batch-size", "50"]
    out = run(
        hostile_server,
        "compare_estimators",
        *options,
        "--curve-images",
        "20",
        "--out",
        "out",
        cwd=tmp_path,
    )
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")]
    assert sorted((r["estimator"], r["seed"]) for r in results) == [
        ("reinmax", 0),
        ("rloo", 0),
        ("rloo", 1),
    ]
    assert {r["seed"]: r["batch_size"] for r in results} == {0: 100, 1: 50}
    assert all(r["elbo"] < r["log_marginal"] < 0 for r in results)
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.strip() in out
    assert table.count("| rloo |") == 2
    assert (tmp_path / "out" / "compared.png").stat().st_size > 10_000


def test_a_prior_of_your_own_learns() -> None:
    prior = load("swap_prior").SharedPrior(D, K)
    vae = DiscreteVAE(MLPEncoder(EVENT, D, K), MLPDecoder(EVENT, D, K), prior, Bernoulli())
    x, _ = data_and_codes()
    list(fit(vae, RlooELBO(), x, None, epochs=1))
    assert (prior.logits != 0).all()


@pytest.mark.slow
def test_the_gap_has_two_parts(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ("--latents", "2", "--num-data", "200", "--num-test", "50")
    out = run(hostile_server, "inference_gap", *options, cwd=tmp_path)
    for line in out.splitlines():
        gap, family, encoder = map(float, re.findall(r"(?:gap|family|encoder) (-?[\d.]+)", line))
        assert gap == pytest.approx(family + encoder, abs=0.011)
        assert family >= 0
    assert len(out.splitlines()) == 2
    assert (tmp_path / "inference_gap.png").stat().st_size > 5_000
