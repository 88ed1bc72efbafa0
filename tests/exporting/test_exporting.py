"""Exported graphs compute what the run computes, and say what they take and give."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn

import pyro_dvae.exporting.export
from pyro_dvae import (
    Bernoulli,
    Config,
    DiscreteVAE,
    LearnedPrior,
    MLPDecoder,
    MLPEncoder,
    Run,
    SemiSupervisedVAE,
    UniformPrior,
    export_run,
    grid_size,
    save_run,
)
from pyro_dvae.exporting import TOLERANCE
from pyro_dvae.runs import DataRecord

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


SPECS = {
    "categorical": "categorical:5",
    "ordinal": "ordinal:5",
    "normal, fixed scale": "normal:0.3",
    "laplace, fixed scale": "laplace:0.3",
    "mixed": "mixed:bernoulli,categorical:3,normal*2",
    "masked": "masked:mixed:bernoulli,categorical:3,normal*2",
}
"""Row of `zoo.LIKELIHOODS` -> the setting of a run, where that is another."""


def run_of(vae: DiscreteVAE, likelihood: str = "bernoulli", **settings: Any) -> Run:
    """The run of a model, calibrated where its data are rows."""
    if isinstance(vae.encoder, MLPEncoder):
        vae.likelihood.calibrate(zoo.LIKELIHOODS[likelihood].data((20, zoo.P)).float())
    config = Config(likelihood=SPECS.get(likelihood, likelihood), **settings)
    with torch.no_grad():
        shape = tuple(vae.decoder(torch.zeros(1, *code_shape(vae))).shape[1:])
    event = shape[:-1] if vae.likelihood.num_params > 1 else shape
    return Run(Path("run"), event, DataRecord(config), "0", 1, 0, vae.eval())


def code_shape(vae: DiscreteVAE) -> tuple[int, ...]:
    labels = torch.zeros(1, dtype=torch.int64) if vae.takes_labels else None
    return tuple(vae.prior_codes(labels).event_shape)


def image_vae(network: str, event: tuple[int, ...]) -> DiscreteVAE:
    encoder, decoder = zoo.NETWORKS[network]
    d = int(torch.tensor(grid_size(event)).prod()) if network == "conv-grid" else zoo.D
    prior = zoo._drawn(LearnedPrior(d, zoo.K))
    return DiscreteVAE(encoder(event, d, zoo.K), decoder(event, d, zoo.K), prior, Bernoulli())


def onnx_is_there() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the onnx extra is not installed")


# Every prior and guide of the library, with some of the likelihoods, which differ for a graph in
# their number of parameters alone.
ROWS = [
    (likelihood, prior, guide)
    for likelihood, prior, guide in zip(
        cycle(zoo.LIKELIHOODS),
        zoo.PRIORS,
        cycle(["mean-field", "mean-field", "autoregressive"]),
        strict=False,
    )
]


def test_every_prior_is_exported_in_a_row() -> None:
    assert {prior for _, prior, _ in ROWS} == set(zoo.PRIORS)
    assert {guide for _, _, guide in ROWS} == set(zoo.GUIDES)


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "prior", "guide"), ROWS)
def test_torch_graphs_of_every_part(likelihood: str, prior: str, guide: str) -> None:
    vae = zoo.make_vae(prior, likelihood, guide)
    run = run_of(vae, likelihood)
    found = export_run(run, "out", format="torch")
    assert found.differences.keys() >= {"encoder", "decoder"}
    assert max(found.differences.values()) <= TOLERANCE
    # By hand, too: for 5 rows, a number that the check does not use.
    told = json.loads(Path("out/metadata.json").read_text())
    x, labels = zoo.LIKELIHOODS[likelihood].data((5, zoo.P)).float(), torch.arange(5) % 2
    codes = run.vae.sample_codes(5, labels if run.vae.takes_labels else None)
    with torch.no_grad():
        params = torch.export.load("out/decoder.pt2").module()(codes)
        assert torch.allclose(params, run.vae.decoder(codes), atol=1e-5)
        encoder = torch.export.load("out/encoder.pt2").module()
        q = run.vae.posterior(x)
        logits = encoder(x) if guide == "mean-field" else encoder(x, codes)
        assert torch.allclose((logits * codes).sum((1, 2)), q.log_prob(codes), atol=1e-5)
        p = run.vae.prior_codes(labels if run.vae.takes_labels else None)
        if told["prior"]["kind"] == "factorised":
            own = torch.tensor(told["prior"]["logits"])
        else:
            given = (codes, labels) if run.vae.takes_labels else (codes,)
            own = torch.export.load("out/prior.pt2").module()(*given)
        assert torch.allclose((own * codes).sum((1, 2)), p.log_prob(codes), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["conv", "conv-grid"])
def test_torch_graphs_of_every_network(network: str) -> None:
    run = run_of(image_vae(network, (3, 9, 8)))
    assert max(export_run(run, "out", format="torch").differences.values()) <= TOLERANCE


ONNX: dict[str, Callable[[], Run]] = {
    "conv": lambda: run_of(image_vae("conv", (9, 8))),
    "mixture": lambda: run_of(zoo.make_vae("mixture", "masked", "autoregressive"), "masked"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONNX)
def test_onnx_graphs(name: str) -> None:
    onnx_is_there()
    import onnxruntime

    found = export_run(ONNX[name](), "out")
    assert max(found.differences.values()) <= TOLERANCE
    told = json.loads(Path("out/metadata.json").read_text())
    for graph in told["graphs"].values():
        inside = onnxruntime.InferenceSession(f"out/{graph['file']}").get_modelmeta()
        read = {key: json.loads(value) for key, value in inside.custom_metadata_map.items()}
        assert {key: read[key] for key in told} == told


def test_the_packages_of_onnx_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    run = run_of(zoo.make_vae())
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pyro-dvae\[onnx\]'"):
        export_run(run, "out")
    assert not Path("out").exists()


def test_what_stands_in_the_folder_is_kept() -> None:
    run = run_of(zoo.make_vae())
    Path("out").mkdir()
    with pytest.raises(ValueError, match="Expected a new folder; got out, which exists"):
        export_run(run, "out", format="torch")
    Path("out/thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="an export and nothing else; got out"):
        export_run(run, "out", format="torch", replace=True)
    with pytest.raises(ValueError, match="format to be one of onnx, torch; got 'tflite'"):
        export_run(run, "other", format="tflite")
    with pytest.raises(ValueError, match="Expected a folder to write into; got no"):
        export_run(run, "no/out", format="torch")
    assert [path.name for path in Path("out").iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_a_difference_leaves_nothing_behind(
    pdvae: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run("run", zoo.make_vae().eval())
    with monkeypatch.context() as patch:
        patch.setattr(pyro_dvae.exporting.export, "TOLERANCE", -1.0)
        status, out, err = pdvae("export", "run", "--format=torch", "-o", "out")
    assert (status, out) == (2, "")
    assert err.startswith("pdvae: Expected the exported encoder of run to agree with the run")
    assert err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["run"]
    status, out, err = pdvae("export", "run", "--format=torch", "-o", "out")
    assert (status, err) == (0, "")
    assert "largest difference from the run: 0.0e+00 (encoder)" in out
    assert {path.name for path in Path("out").iterdir()} == {
        "encoder.pt2",
        "decoder.pt2",
        "metadata.json",
    }
    assert pdvae("export", "run", "--format=torch", "-o", "out")[0] == 2
    assert pdvae("export", "run", "--format=torch", "-o", "out", "--force")[0] == 0


class Branching(nn.Module):
    """A decoder that looks at the numbers of the codes, which no graph can."""

    def __init__(self, num_latents: int, num_categories: int) -> None:
        super().__init__()
        self.layer = nn.Linear(num_latents * num_categories, zoo.P)

    def forward(self, z: Tensor) -> Tensor:
        x = self.layer(z.flatten(-2))
        return x if float(z.sum()) > 0 else -x


@pytest.mark.slow
def test_a_part_that_cannot_be_traced_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    encoder = MLPEncoder((zoo.P,), zoo.D, zoo.K)
    vae = DiscreteVAE(encoder, Branching(zoo.D, zoo.K), UniformPrior(zoo.D, zoo.K), Bernoulli())
    run = run_of(vae)
    capfd.readouterr()
    with pytest.raises(ValueError, match="Expected the decoder of run, Branching, to be") as told:
        export_run(run, "out", format="torch")
    assert "\n" not in str(told.value)
    assert capfd.readouterr() == ("", "")
    assert not [path for path in Path().iterdir() if "out" in path.name]


def metadata(vae: DiscreteVAE, run: Run) -> dict[str, Any]:
    from pyro_dvae.exporting.graphs import graphs_of
    from pyro_dvae.exporting.metadata import metadata_of

    graphs = graphs_of(vae)
    files = {graph.name: f"{graph.name}.onnx" for graph in graphs}
    return json.loads(json.dumps(metadata_of(run, vae, graphs, "onnx", files)))


@pytest.mark.parametrize("name", zoo.LIKELIHOODS)
def test_every_parameter_has_a_meaning(name: str) -> None:
    likelihood = zoo.LIKELIHOODS[name].build((zoo.P,))
    if name not in ("mixed", "masked"):  # whose blocks have theirs
        assert len(likelihood.param_meanings) == likelihood.num_params


def test_metadata_of_a_table() -> None:
    torch.manual_seed(0)
    likelihood = zoo._columns()
    vae = DiscreteVAE(
        MLPEncoder((4,), 2, 3, (5,)),
        MLPDecoder((4,), 2, 3, (5,), likelihood.num_params),
        zoo._drawn(LearnedPrior(2, 3)),
        likelihood,
    )
    told = metadata(vae, run_of(vae, "mixed"))
    blocks = told["likelihood"]["blocks"]
    assert [block["columns"] for block in blocks] == [[0], [1], [2, 3]]
    assert blocks[2]["constants"]["location"] == pytest.approx(
        likelihood.blocks[2].location.tolist()
    )
    assert blocks[1]["params"] == [f"the logit of level {level}" for level in range(3)]
    assert told["x"]["kind"] == "columns"
    logits = vae.prior_codes().base_dist.logits
    assert torch.tensor(told["prior"]["logits"]).allclose(logits)
    assert told["graphs"]["decoder"]["output"]["shape"] == ["N", 4, 3]


def test_metadata_of_bits() -> None:
    run = run_of(
        zoo.tiny_vae(), binarize="threshold", range=(0, 16), num_latents=2, num_categories=3
    )
    told = metadata(run.vae, run)
    assert told["x"]["how"].endswith("b = (v - 0) / 16. x is 1 where b >= 1/2.")
    assert told["code"] | {"order": ""} == {
        "num_latents": 2,
        "num_categories": 3,
        "order": "",
        "first_latent_is_the_class": False,
    }
    assert told["prior"]["logits"] is not None


def test_metadata_of_classes() -> None:
    parts = vars(zoo.tiny_vae())["_modules"]
    vae = SemiSupervisedVAE(
        *(parts[name] for name in ("encoder", "decoder", "prior", "likelihood")), alpha=1.0
    )
    assert metadata(vae, run_of(vae))["code"]["first_latent_is_the_class"]
