"""A user's own networks: imported, tried on two rows, refused in the user's terms."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pdvae_cli import train
from pdvae_cli.main import main
from PIL import Image

from pyro_dvae import Config, build_vae, load_run
from pyro_dvae.networks.plugins import own_decoder, own_encoder, own_likelihood
from pyro_dvae.networks.trust import secret_file
from pyro_dvae.runs.checkpoints import create_run, write_weights
from pyro_dvae.runs.config import own_code, preparation_of
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.run import inspect_run
from pyro_dvae.runs.settings import write_config
from pyro_dvae.runs.sizes import memory_of

NETWORKS = """
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self, event_shape, num_latents, num_outputs):
        super().__init__()
        self.shape = (num_latents, num_outputs)
        size = 1
        for side in event_shape:
            size *= side
        self.layers = nn.Sequential(nn.Linear(size, 6), nn.Tanh(), nn.Dropout(0.5), self.out(6))
    def out(self, size):
        return nn.Linear(size, self.shape[0] * self.shape[1])
    def forward(self, x):
        return self.layers(x.flatten(1)).unflatten(-1, self.shape)

class Decoder(nn.Module):
    def __init__(self, event_shape, num_latents, num_categories, num_params):
        super().__init__()
        self.shape = event_shape + ((num_params,) if num_params > 1 else ())
        self.layer = nn.Linear(num_latents * num_categories, torch.Size(self.shape).numel())
    def forward(self, z):
        return self.layer(z.flatten(-2)).unflatten(-1, self.shape)

def make_decoder(**settings):
    return Decoder(**settings)

import pyro.distributions as dist
from pyro.distributions import constraints
from pyro_dvae import Likelihood

class StudentT(Likelihood):
    num_params = 3
    def forward(self, params, event_dim):
        df, loc, scale = params.unbind(-1)
        scale = nn.functional.softplus(scale) + 1e-3
        return dist.StudentT(2.1 + df.exp(), loc, scale).to_event(event_dim)

class Inflated(nn.Module):
    num_params, kind, support = 2, "counts", constraints.nonnegative_integer
    def __init__(self, event_shape):
        super().__init__()
        self.register_buffer("seen", torch.zeros(event_shape))
    def calibrate(self, x):
        self.seen.copy_(x.mean(0))
    def forward(self, params, event_dim):
        gate, rate = params.unbind(-1)
        rate = nn.functional.softplus(rate) + 1e-3
        return dist.ZeroInflatedPoisson(rate, gate_logits=gate).to_event(event_dim)
"""

EVENT, D, K = (3, 4), 2, 5


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write mynets.py in the working folder, which starts with good ones, for a new process."""
    monkeypatch.chdir(tmp_path)

    def forget() -> None:
        for name in ("mynets", "below", "below.mynets"):
            sys.modules.pop(name, None)

    def write(text: str, path: str = "mynets.py") -> None:
        forget()
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(NETWORKS + text)

    path = list(sys.path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
    write("")
    yield write
    forget()
    assert sys.path == path


def encoder(name: str = "mynets:bad", num_outputs: int = K) -> Any:
    return own_encoder(name, EVENT, D, num_outputs)


def decoder(name: str = "mynets:bad", num_params: int = 1) -> Any:
    return own_decoder(name, EVENT, D, K, num_params)


@pytest.mark.parametrize("path", ["mynets.py", "below/mynets.py"])
@pytest.mark.parametrize("event", [(3, 4), (7,)], ids=str)
def test_own_networks_are_built_by_the_config(
    write: Callable[..., None], path: str, event: tuple[int, ...]
) -> None:
    write("", path)
    name = path.removesuffix(".py").replace("/", ".")
    config = Config(
        encoder=f"{name}:Encoder",
        decoder=f"{name}:make_decoder",
        num_latents=D,
        num_categories=K,
        likelihood="normal",
        guide="autoregressive:7",
    )
    before = torch.get_rng_state()
    vae = build_vae(config, event)
    assert type(vae.encoder).__name__ == "Encoder"
    assert vae.encode(torch.rand(4, *event)).shape == (4, D, K + 7)
    assert vae.decode(torch.zeros(6, 1, D, K)).batch_shape == (6, 1)
    torch.set_rng_state(before)
    again = build_vae(config, event)  # the trial, with its Dropout, drew nothing
    for ours, theirs in zip(vae.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert vae.encoder.training


def test_one_own_network_goes_with_one_of_ours(write: Callable[..., None]) -> None:
    vae = build_vae(Config(decoder="mynets:Decoder", network="conv:2"), (9, 5))
    assert type(vae.encoder).__name__ == "ConvEncoder"
    assert vae.decode(vae.encode(torch.rand(3, 9, 5)).softmax(-1)).event_shape == (9, 5)


BAD_NAMES = {
    "mynets": r"Expected module:factory for the encoder; got 'mynets'\. Write networks:make",
    ":make": "got ':make'",
    "mynets:": "got 'mynets:'",
    "no_such:make": "a module no_such for the encoder no_such:make; got none in /.*no_such.py, "
    "or put that folder on PYTHONPATH",
    "mynets.inner:make": "Expected a module mynets.inner for the encoder",
    "below.no_such:make": r"that holds below/no_such\.py",
    "mynets:no_such": r"class no_such in /.*mynets\.py for the .*; got nothing of that name",
    "mynets:number": "function or class number in .*; got int",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(write: Callable[..., None], name: str) -> None:
    write("", "below/other.py")
    write("number = 3")
    with pytest.raises(ValueError, match=BAD_NAMES[name]) as error:
        encoder(name)
    assert "\n" not in str(error.value)


ENCODER = "\nclass bad(Encoder):\n    def forward(self, x):\n        "
DECODER = "\nclass bad(Decoder):\n    def forward(self, z):\n        "
INIT = "\nclass bad(Encoder):\n    def __init__(self, **settings):\n        "
OUT = "super().forward(x)"

# What was wrong -> (end of mynets.py, the message).
BAD_ENCODERS = {
    "syntax": ("def", r"to be imported; got SyntaxError: .*\. Mend it"),
    "needs a module": (
        "\nimport no_such_thing",
        r"to be imported; got ModuleNotFoundError: No module named 'no_such_thing' \(/.*py, line",
    ),
    "raises on import": (
        "\nraise KeyError(3)",
        r"imported; got KeyError: 3 \(/.*mynets.py, line",
    ),
    "exits": ("\nraise SystemExit(3)", r"to be imported; got SystemExit: 3"),
    "arguments": (
        "\ndef bad(event_shape): return 1",
        "encoder mynets:bad to take event_shape, num_latents, num_outputs by keyword; got "
        r"TypeError: .*unexpected keyword argument .*\. Give the factory these arguments",
    ),
    "raises": ("\ndef bad(**_):\n    1 / 0", r"to be built; got ZeroDivisionError.*py, line \d+\)"),
    "type error within": ("\ndef bad(**_):\n    1 + ''", r"to be built; got TypeError: .*py, line"),
    "no module": ("\ndef bad(**_): return [1]", r"return a torch\.nn\.Module; got list"),
    "flat": (
        ENCODER + f"return {OUT}.flatten(1)",
        r"encoder mynets:bad to map data \(2, 3, 4\), float64, to \(2, 2, 5\), \(rows, "
        r"num_latents, num_outputs\); got \(2, 10\)\. Size it by what the factory gets: "
        r"event_shape=\(3, 4\), num_latents=2, num_outputs=5\.",
    ),
    "a pair": (ENCODER + f"return {OUT}, 1", r"got tuple\. Return one tensor"),
    "whole": (ENCODER + f"return {OUT}.argmax(-1, True).expand(-1, 2, 5)", r"got torch\.int64"),
    "NaN": (ENCODER + f"return {OUT} / 0 * 0", "got NaN or infinity"),
    "input": (
        ENCODER + "return self.layers(x.long())",
        r"data .*; got RuntimeError: .* line \d+\)",
    ),
    "size": (ENCODER + "return self.layers(x)", "RuntimeError: mat1 and mat2"),
    "batch mean": (ENCODER + f"return {OUT} - {OUT}.mean(0)", "each row by itself; got another"),
    "random": (ENCODER + f"return {OUT} + torch.rand(1)", "one result for the same data"),
    "batch norm": (
        INIT + "super().__init__(**settings)\n        self.layers.insert(1, nn.BatchNorm1d(6))",
        r"each row by itself; got BatchNorm1d at layers\.1, which mixes a batch\. Use GroupNorm",
    ),
    "frozen": (
        INIT + "super().__init__(**settings)\n        self.requires_grad_(False)",
        "parameters to train; got none that need gradients",
    ),
}


@pytest.mark.parametrize("what", BAD_ENCODERS)
def test_bad_encoders(write: Callable[..., None], what: str) -> None:
    text, message = BAD_ENCODERS[what]
    write(text)
    with pytest.raises(ValueError, match=message) as error:
        encoder()
    assert re.match("Expected .*; got .*[.]$", str(error.value))
    assert "\n" not in str(error.value)


BAD_DECODERS = {
    "two dimensions": (
        DECODER + "return self.layer(z.flatten(1)).unflatten(-1, self.shape)",
        1,
        r"decoder mynets:bad to map codes with two leading dimensions \(2, 3, 2, 5\), float64, "
        r"to \(2, 3, 3, 4\), \(\.\.\., \*event_shape\); got RuntimeError.* Flatten the leading",
    ),
    "leading dimensions lost": (
        DECODER + "return super().forward(z.flatten(0, -3))",
        1,
        r"to \(2, 3, 3, 4\), .*; got \(6, 3, 4\)\. Flatten the leading dimensions, z\.flatten",
    ),
    "one parameter of two": (
        "\nclass bad(Decoder):\n    def __init__(self, num_params, **settings):\n"
        "        super().__init__(num_params=1, **settings)",
        2,
        r"to \(2, 3, 4, 2\), \(\.\.\., \*event_shape, num_params\); got \(2, 3, 4\)\. .*=2\.",
    ),
    "batch mean": (DECODER + "return super().forward(z - z.mean(0))", 1, "another result for the"),
    "infinite": (DECODER + "return super().forward(z).exp() / 0", 1, "got NaN or infinity"),
}


@pytest.mark.parametrize("what", BAD_DECODERS)
def test_bad_decoders(write: Callable[..., None], what: str) -> None:
    text, num_params, message = BAD_DECODERS[what]
    write(text)
    with pytest.raises(ValueError, match=message) as error:
        decoder(num_params=num_params)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "num_params"), [("StudentT", "real", 3), ("Inflated", "counts", 2)]
)
def test_an_own_likelihood_is_built_by_the_config(
    write: Callable[..., None], name: str, kind: str, num_params: int
) -> None:
    config = Config(likelihood=f"mynets:{name}", prior="vamp:2", hidden=(3,))
    assert config.binarize == "dynamic"  # nothing is imported to find out
    assert "mynets" not in sys.modules
    assert own_code(config) == [f"mynets:{name}"]
    before = torch.get_rng_state()
    vae = build_vae(config, (4,))
    assert (vae.likelihood.kind, vae.likelihood.num_params) == (kind, num_params)
    assert vae.sample(5).shape == (5, 4)
    torch.set_rng_state(before)
    again = build_vae(config, (4,))
    for ours, theirs in zip(vae.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    preparation = preparation_of(config, (4,))
    assert (preparation.kind, preparation.binarize) == (kind, "none")
    assert 0 < memory_of(config, (4,), 10) < 1e5


LIKELIHOOD = "\nclass bad(StudentT):\n    "
FORWARD = LIKELIHOOD + "def forward(self, params, event_dim):\n        "
BAD_LIKELIHOODS = {
    "arguments": (
        LIKELIHOOD + "def __init__(self, scale): pass",
        "likelihood mynets:bad to take no",
    ),
    "no module": ("\ndef bad(): return 3", r"return a torch\.nn\.Module; got int"),
    "no num_params": (
        "\nclass bad(nn.Module): pass",
        "a likelihood with the member num_params; got bad without it",
    ),
    "no forward": (
        "\nclass bad(nn.Module):\n    num_params = 1",
        r"to take parameters \(3, 1, 3, 4\) and event_dim=2; got NotImplementedError",
    ),
    "no parameters": (LIKELIHOOD + "num_params = 0", "num_params of at least 1; got 0"),
    "kind": (LIKELIHOOD + "kind = 'colours'", "kind of the likelihood .* one of bits.*'colours'"),
    "columns": (LIKELIHOOD + "kind = 'columns'", "kind of .* real; got 'columns'"),
    "raises": (FORWARD + "params.no_such_thing", r"got AttributeError: .*py, line \d+\)"),
    "a tensor": (FORWARD + "return params", "return a distribution of Pyro; got Tensor"),
    "torch's": (
        FORWARD + "return torch.distributions.Normal(params[..., 0], 1.)",
        "return a distribution of Pyro; got Normal",
    ),
    "no event": (
        FORWARD + "return super().forward(params, 0)",
        r"event shape \(3, 4\), one for each code; got \(3, 1, 3, 4\) and \(\).*to_event",
    ),
    "a code lost": (FORWARD + "return super().forward(params[0], event_dim)", r"got \(1,\) and"),
    "NaN": (FORWARD + "return super().forward(params / 0 * 0, event_dim)", "got .*[nN]a[nN]"),
    "features": (
        LIKELIHOOD + "def features(self, x): return x[:, 0]",
        r"give what the encoder sees of data as a tensor \(2, 3, 4\); got \(2, 4\)",
    ),
    "its draws": (
        LIKELIHOOD + "support = constraints.boolean",
        "to take its own draws as data; got ValueError: Expected data in the support of bad",
    ),
}


@pytest.mark.parametrize("what", BAD_LIKELIHOODS)
def test_bad_likelihoods(write: Callable[..., None], what: str) -> None:
    text, message = BAD_LIKELIHOODS[what]
    write(text)
    with pytest.raises(ValueError, match=message) as error:
        own_likelihood("mynets:bad", EVENT)
    assert re.match("Expected .*; got .*[.]$", str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["poison", "normal:x", "mixed:x:y", "my nets:bad", "a.b.:c"])
def test_what_is_no_code_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"likelihood to be one of|after normal:|kind of column"):
        build_vae(Config(likelihood=name), (2,))


def test_frozen_batch_norm_mixes_nothing(write: Callable[..., None]) -> None:
    write(
        "\nclass Frozen(nn.BatchNorm1d):\n    def train(self, mode=True):\n"
        "        return super().train(False)"
        + INIT
        + "super().__init__(**settings)\n        self.layers.insert(1, Frozen(6))"
    )
    assert encoder().training


# --- On the command line ---

Run = Callable[..., tuple[int, str, str]]
SMALL = ["--latents=2", "--categories=3", "--epochs=1", "--device=cpu", "--batch-size=8"]
OWN = ["--encoder=mynets:Encoder", "--decoder=mynets:make_decoder"]


@pytest.fixture
def pdvae(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run the command as a new process would; exit status, stdout, stderr."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(train, "_draw", lambda *_: None)
    source = np.random.default_rng(0)
    Path("pictures").mkdir()
    for number in range(12):
        pixels = source.integers(0, 256, (11, 9, 3), np.uint8)
        Image.fromarray(pixels).save(f"pictures/{number}.png")

    def run(*arguments: str) -> tuple[int, str, str]:
        sys.modules.pop("mynets", None)
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run


@pytest.mark.parametrize("network", ["conv:2", "conv-grid:2"])
def test_pictures_of_odd_size_train_a_convolutional_network(pdvae: Run, network: str) -> None:
    latents = ["--latents=30"] if "grid" in network else []
    network = f"--network={network}"
    status, _, err = pdvae("fit", "run", "--data=pictures", network, *SMALL, *latents)
    assert (status, err) == (0, "")
    vae = load_run(Path("run")).vae
    assert type(vae.decoder).__name__ == "ConvDecoder"
    assert vae.decoder.event_shape == (3, 11, 9)
    assert pdvae("sample", "run", "-ox.png")[0] == 0
    status, _, err = pdvae("fit", "--resume=run", "--network=mlp")
    assert (status, err.count("\n")) == (2, 1)


def test_a_grid_of_another_size_is_refused_before_a_folder_is_made(pdvae: Run) -> None:
    options = ("--data=pictures", "--network=conv-grid", *SMALL)
    status, _, err = pdvae("fit", "run", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected 30 latents" in err
    assert not Path("run").exists()


def test_own_networks_train_and_are_found_again(pdvae: Run, tmp_path: Path) -> None:
    status, _, err = pdvae("fit", "run", "--data=pictures", *OWN, *SMALL)
    assert (status, err) == (0, "")
    assert pdvae("fit", "--resume=run", "--epochs=2")[0] == 0
    assert json.loads(Path("run/config.json").read_text())["config"]["encoder"] == OWN[0][10:]
    assert pdvae("evaluate", "run", "--split=train")[0] == 0
    assert pdvae("sample", "run", "-ox.png")[0] == 0

    Path("mynets.py").write_text(NETWORKS.replace("size, 6", "size, 7").replace("out(6", "out(7"))
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "to fit mynets:Encoder and mynets:make_decoder as they are now" in err
    Path("mynets.py").unlink()
    status, _, err = pdvae("sample", "run", "--force", "-ox.png")
    assert (status, err.count("\n")) == (2, 1)
    assert "Run from the folder that holds mynets.py" in err


def test_own_likelihoods_train_and_are_found_again(pdvae: Run) -> None:
    np.save("counts.npy", np.random.default_rng(0).poisson(3, (24, 4, 4)))
    options = ("--data=counts.npy", "--likelihood=mynets:Inflated", "--hidden=4", *SMALL)
    status, out, err = pdvae("fit", "run", *options)
    assert (status, err) == (0, "")
    assert "mynets:Inflated likelihood" in out
    run = load_run(Path("run"))
    assert run.config.binarize == "none"
    assert 2 < vars(run.vae.likelihood)["_buffers"]["seen"].mean() < 4  # calibrated
    assert "bits per dimension" in out
    assert pdvae("fit", "--resume=run", "--epochs=2")[0] == 0
    for command in (
        ("evaluate", "run", "--split=train", "--no-exact", "--iw-samples=0"),
        ("sample", "run", "-n", "4", "--draws"),
        ("score", "run", "--data=counts.npy", "--top=1"),
        ("reconstruct", "run", "-n", "2", "-or.png"),
        ("gradients", "run", "--estimators=rloo,reinforce", "--draws=20", "--batch-size=4"),
        ("fit-prior", "run", "fitted", "--prior=learned", "--epochs=1"),
    ):
        status, _, err = pdvae(*command)
        assert (status, err) == (0, ""), command
    sys.modules.pop("mynets")
    status, out, err = pdvae("compare", "run", "fitted")
    assert (status, err) == (0, "")
    status, out, err = pdvae("info", "run")
    assert (status, err) == (0, "")
    assert "mynets:Inflated, not imported here" in out
    assert "mynets" not in sys.modules
    reals = np.random.default_rng(0).normal(size=(20, 4, 4))
    np.save("reals.npy", reals)
    options = ("--data=reals.npy", "--likelihood=mynets:Inflated", *SMALL)
    status, out, err = pdvae("fit", "none", *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "whole numbers from 0 to 2^24 for the Inflated likelihood" in err
    status, out, err = pdvae("fit", "none", "--data=counts.npy", "--likelihood=mynets:no", *SMALL)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "Expected a function or class no" in err
    assert not Path("none").exists()


def test_a_run_that_names_no_code_imports_none(pdvae: Run, write: Callable[..., None]) -> None:
    write("\nraise SystemExit('imported')")
    assert pdvae("fit", "run", "--data=pictures", "--hidden=4", *SMALL)[0] == 0
    assert pdvae("sample", "run", "-ox.png")[0] == 0
    assert "mynets" not in sys.modules


@pytest.mark.parametrize("what", ["flat", "raises", "needs a module", "batch norm"])
def test_bad_own_networks_are_refused_before_a_folder_is_made(
    pdvae: Run, write: Callable[..., None], what: str
) -> None:
    write(BAD_ENCODERS[what][0])
    status, _, err = pdvae("fit", "run", "--data=pictures", "--encoder=mynets:bad", *SMALL)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("pdvae: Expected the encoder mynets:bad to ")
    assert not Path("run").exists()


# --- Whose code a run names ---


def _own_run(folder: Path, part: str = "encoder", name: str = "Encoder") -> Path:
    """A run that names a part of mynets.py, written by this process."""
    sizes: dict[str, Any] = {"num_latents": D, "num_categories": K, "hidden": (3,)}
    config = Config(**{part: f"mynets:{name}"}, **sizes)
    vae = build_vae(config, EVENT)  # which imports it
    create_run(folder, "")
    write_weights(folder, vae.state_dict(), 1)
    write_config(folder, DataRecord(config), EVENT)
    return folder


def _as_a_new_process() -> None:
    sys.modules.pop("mynets", None)


def test_an_own_run_is_known_wherever_it_is_copied(
    write: Callable[..., None], tmp_path: Path
) -> None:
    run = _own_run(tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy")
    _as_a_new_process()
    for folder in (run, tmp_path / "copy"):
        assert type(load_run(folder).vae.encoder).__name__ == "Encoder"


@pytest.mark.parametrize(
    ("part", "name"), [("encoder", "Encoder"), ("likelihood", "StudentT")], ids=["encoder", "lik"]
)
@pytest.mark.parametrize("what", ["no mark", "another mark", "another name", "another place"])
def test_a_stranger_s_run_imports_nothing(
    write: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    part: str,
    name: str,
) -> None:
    path = _own_run(tmp_path / "run", part, name) / "config.json"
    content = json.loads(path.read_text())
    if what == "no mark":
        del content["mark"]
    elif what == "another mark":
        content["mark"] = "0" * 64
    elif what == "another name":
        content["config"][part] = "mynets:make_decoder"
    else:  # a mark that was published, and a module of the stranger's beside it
        (tmp_path / "theirs").mkdir()
        monkeypatch.chdir(tmp_path / "theirs")
    path.write_text(json.dumps(content))
    Path("mynets.py").write_text("open('it-has-run', 'w').close()\n" + NETWORKS)
    _as_a_new_process()
    with pytest.raises(ValueError, match=r"names mynets:\w+: to load it would run mynets\. Lo"):
        load_run(tmp_path / "run")
    assert inspect_run(tmp_path / "run").num_parameters is None
    assert "mynets" not in sys.modules
    assert not Path("it-has-run").exists()
    if what != "another name":
        assert load_run(tmp_path / "run", trust_code=True).epoch == 1
        assert Path("it-has-run").exists()


def test_code_that_has_not_run_here_gets_no_mark(
    write: Callable[..., None], tmp_path: Path
) -> None:
    config = Config(encoder="mynets:Encoder")
    with pytest.warns(UserWarning, match="will need trust_code=True"):
        write_config(tmp_path, DataRecord(config), EVENT)
    assert "mark" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("what", ["a file in its way", "readable by others", "cut short"])
def test_a_secret_that_cannot_be_kept_is_said(
    write: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    _own_run(tmp_path / "first")
    assert secret_file().stat().st_mode & 0o777 == 0o600
    if what == "a file in its way":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mynets.py"))
    elif what == "readable by others":
        secret_file().chmod(0o644)
    else:
        secret_file().write_bytes(b"1")
    with pytest.warns(UserWarning, match="will need trust_code=True: no secret can be kept"):
        run = _own_run(tmp_path / "run")
    _as_a_new_process()
    with pytest.raises(ValueError, match="would run mynets"):
        load_run(run)
    assert load_run(run, trust_code=True).epoch == 1
