"""Priors, guides and estimators of the user's own, as `module:factory`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pdvae_cli import train

from pyro_dvae import Config, build_elbo, build_vae, load_run
from pyro_dvae.runs import inspect_run, own_code
from pyro_dvae.runs.sizes import memory_of

PARTS = """
import torch
from torch import nn
import pyro.distributions as dist
from pyro.infer import Trace_ELBO
from pyro_dvae import CausalCodes, CausalNetwork, RlooELBO, ScoreFunctionELBO

class Shared(nn.Module):
    def __init__(self, num_latents, num_categories):
        super().__init__()
        self.num_latents = num_latents
        self.logits = nn.Parameter(torch.zeros(num_categories))
    def forward(self):
        logits = self.logits.expand(self.num_latents, -1)
        return dist.OneHotCategorical(logits=logits).to_event(1)

class Labelled(nn.Module):
    takes = "labels"
    def __init__(self, num_latents, num_categories, num_classes):
        super().__init__()
        self.num_classes = num_classes
        self.logits = nn.Parameter(torch.zeros(num_classes, num_latents, num_categories))
    def forward(self, labels):
        return dist.OneHotCategorical(logits=self.logits[labels]).to_event(1)

class Tempered(nn.Module):
    num_outputs = 4
    def __init__(self, num_categories):
        super().__init__()
        self.out = nn.Linear(4, num_categories)
    def forward(self, context):
        return dist.OneHotCategorical(logits=self.out(context)).to_event(1)

class BatchMean(ScoreFunctionELBO):
    is_unbiased = True
    def advantage(self, signal):
        return signal - (signal.sum() - signal) / max(signal.numel() - 1, 1)

class Rloo(RlooELBO):
    def __init__(self, num_particles=3, beta=1.0, max_plate_nesting=1):
        super().__init__(num_particles, beta=beta, max_plate_nesting=max_plate_nesting)

def trace():
    return Trace_ELBO()
"""

SIZES: dict[str, Any] = {"num_latents": 2, "num_categories": 3, "hidden": (5,)}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write myparts.py in the working folder, which starts with good ones, for a new process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second

    def write(text: str) -> None:
        sys.modules.pop("myparts", None)
        Path("myparts.py").write_text(PARTS + text)

    write("")
    yield write
    sys.modules.pop("myparts", None)


@pytest.mark.usefixtures("write")
def test_own_parts_are_built_by_the_config() -> None:
    config = Config(prior="myparts:Shared", guide="myparts:Tempered", **SIZES)
    assert "myparts" not in sys.modules
    assert own_code(config) == ["myparts:Shared", "myparts:Tempered"]
    before = torch.get_rng_state()
    vae = build_vae(config, (4,))
    assert vae.prior_codes().event_shape == (2, 3)
    assert vae.encode(torch.zeros(5, 4)).shape == (5, 2, 4)
    assert vae.posterior(torch.zeros(5, 4)).event_shape == (2, 3)
    torch.set_rng_state(before)
    again = build_vae(config, (4,))  # the trial drew nothing
    for ours, theirs in zip(vae.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert 0 < memory_of(config, (4,), 10) < 1e5


@pytest.mark.usefixtures("write")
def test_an_own_estimator_gets_the_settings_that_it_takes() -> None:
    config = Config(estimator="myparts:Rloo", **SIZES)
    assert (config.num_particles, config.annealing) == (None, None)
    assert own_code(config) == ["myparts:Rloo"]
    elbo: Any = build_elbo(config, (4,))
    assert (type(elbo).__name__, elbo.num_particles, elbo.beta) == ("Rloo", 3, 1.0)
    elbo = build_elbo(Config(estimator="myparts:Rloo", num_particles=5, beta=2.0, **SIZES), (4,))
    assert (elbo.num_particles, elbo.beta) == (5, 2.0)
    with pytest.raises(ValueError, match="to take free_bits by keyword; got free_bits=1, which"):
        build_elbo(Config(estimator="myparts:Rloo", free_bits=1, **SIZES), (4,))
    with pytest.raises(ValueError, match="to take num_particles by keyword; got num_particles=2"):
        build_elbo(Config(estimator="myparts:trace", num_particles=2, **SIZES), (4,))


BAD: dict[str, tuple[str, str, str]] = {
    "no module": ("prior", "def bad(): return 3", r"return a torch\.nn\.Module; got int\. Return"),
    "no ELBO": ("estimator", "def bad(): return 3", "return an ELBO of Pyro; got int"),
    "raises": ("estimator", "def bad(): 1 / 0", r"be built; got ZeroDivisionError.*myparts\.py"),
    "sizes": (
        "prior",
        "def bad(): return Shared(2, 4)",
        r"batch shape \(\) and event shape \(num_latents, num_categories\) = \(2, 3\); got \(\) "
        r"and \(2, 4\)\. Call",
    ),
    "latents apart": (
        "guide",
        "class bad(nn.Module):\n    def forward(self, context):\n"
        "        return dist.OneHotCategorical(logits=context)",
        r"batch shape \(2,\) and event shape .*; got \(2, 2\) and \(3,\)\. Call \.to_event",
    ),
    "a tensor": (
        "guide",
        "class bad(nn.Module):\n    def forward(self, context): return context",
        "to return a distribution over codes; got AttributeError",
    ),
    "torch's": (
        "prior",
        "class bad(nn.Module):\n    def forward(self):\n        one = "
        "torch.distributions.OneHotCategorical(logits=torch.zeros(2, 3))\n"
        "        return torch.distributions.Independent(one, 1)",
        "return a distribution of Pyro; got Independent",
    ),
    "context": (
        "guide",
        "def bad(): return Tempered(3).out",
        r"over codes; got RuntimeError: mat1 and mat2",
    ),
    "labels without classes": (
        "prior",
        "def bad(): return Labelled(2, 3, 4)",
        "to have an argument num_classes, as a prior with takes = 'labels'; got it without",
    ),
    "no num_classes": (
        "prior",
        "class bad(Shared):\n    num_classes = 3",
        "to have num_classes 0; got 3",
    ),
    "not there": ("prior", "", "function or class bad in .*; got nothing of that name"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_parts(write: Callable[[str], None], what: str) -> None:
    part, text, message = BAD[what]
    write(text)
    config = Config(**{part: "myparts:bad"}, **SIZES)
    with pytest.raises(ValueError, match=f"^Expected .*{message}") as error:
        build_elbo(config, (4,)) if part == "estimator" else build_vae(config, (4,))
    assert "\n" not in str(error.value)
    assert "myparts:bad" in str(error.value)


# --- On the command line ---

Run = Callable[..., tuple[int, str, str]]
SMALL = ["--data=bits.npz", "--latents=2", "--categories=3", "--epochs=1", "--device=cpu"]
SMALL += ["--batch-size=16", "--hidden=5"]


@pytest.fixture
def command(
    pdvae: Run, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run the command as a new process would, beside 80 labelled rows; what it prints."""
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)
    source = np.random.default_rng(0)
    np.savez("bits.npz", x=source.integers(0, 2, (80, 6)), y=source.integers(0, 4, 80))

    def run(*arguments: str) -> str:
        sys.modules.pop("myparts", None)
        status, out, err = pdvae(*arguments)
        assert (status, err) == (0, ""), arguments
        return out

    return run


def test_own_parts_train_and_are_found_again(command: Callable[..., str]) -> None:
    own = ["--prior=myparts:Shared", "--guide=myparts:Tempered", "--estimator=myparts:BatchMean"]
    out = command("fit", "run", "--key=x", *SMALL, *own)
    assert "myparts:BatchMean with 1 particles" in out
    assert "(train estimate)" in out
    config = json.loads(Path("run/config.json").read_text())["config"]
    assert (config["num_particles"], config["annealing"]) == (1, 10)
    command("fit", "--resume=run", "--epochs=2")
    for arguments in (
        ("evaluate", "run"),
        ("sample", "run", "-n3", "-os.csv"),
        ("encode", "run", "-oc.csv"),
        ("gradients", "run", "--estimators=rloo,myparts:BatchMean", "--draws=20"),
        ("fit-prior", "run", "fitted", "--prior=myparts:Shared", "--epochs=1"),
        ("evaluate", "fitted"),
    ):
        command(*arguments)
    sys.modules.pop("myparts")
    assert inspect_run("run").num_parameters is None
    assert "myparts" not in sys.modules


def test_an_own_conditional_prior_gets_the_classes(command: Callable[..., str]) -> None:
    labels = ["--key=x", "--labels=y", "--prior=myparts:Labelled"]
    command("fit", "run", *SMALL, *labels)
    run = load_run("run")
    assert run.config.num_classes == 4
    assert dict(run.vae.prior.named_parameters())["logits"].shape == (4, 2, 3)
    command("evaluate", "run")
    command("sample", "run", "-n4", "--label=2", "-os.csv")


def test_an_elbo_without_beta_is_not_annealed(command: Callable[..., str]) -> None:
    command("fit", "run", "--key=x", *SMALL, "--estimator=myparts:trace")
    assert load_run("run").config.annealing == 0
    command("fit", "--resume=run", "--epochs=2")


def test_the_default_folder_has_a_plain_name(command: Callable[..., str]) -> None:
    command("fit", "--key=x", *SMALL, "--estimator=myparts:Rloo")
    assert [path.name for path in Path("runs").iterdir()] == ["bits-d2k3-myparts-Rloo-1"]


@pytest.mark.parametrize("part", ["prior", "guide", "estimator"])
def test_a_stranger_s_run_imports_nothing(command: Callable[..., str], part: str) -> None:
    names = {"prior": "Shared", "guide": "Tempered", "estimator": "Rloo"}
    command("fit", "run", "--key=x", *SMALL, f"--{part}=myparts:{names[part]}")
    path = Path("run/config.json")
    content = json.loads(path.read_text())
    del content["mark"]
    path.write_text(json.dumps(content))
    Path("myparts.py").write_text(f"open('it-has-run', 'w').close()\n{PARTS}")
    sys.modules.pop("myparts")
    refusal = r"names myparts:\w+: to load it would run myparts\. Look"
    if part == "estimator":  # without which the model can be loaded
        assert load_run("run").config.estimator == "myparts:Rloo"
    else:
        with pytest.raises(ValueError, match=refusal):
            load_run("run")
    from pyro_dvae.runs import resume_run

    with pytest.raises(ValueError, match=refusal):
        resume_run("run", epochs=2)
    assert not Path("it-has-run").exists()
    assert resume_run("run", epochs=2, trust_code=True).config.epochs == 2
    assert Path("it-has-run").exists()
