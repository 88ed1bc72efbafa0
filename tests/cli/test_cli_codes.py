"""encode, decode, score, reconstruct and traverse, on one tiny run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from pdvae_cli.main import main

from pyro_dvae import evaluate, load_images, load_run
from pyro_dvae.data import Part, binary_inputs, make_splits
from pyro_dvae.evaluation.scoring import datum_scores
from pyro_dvae.runs import plots

Run = Callable[..., tuple[int, str, str]]
COMMANDS = {
    "encode": ["-o", "out.csv"],
    "decode": ["codes.csv", "-o", "out.npz"],
    "score": ["-o", "out.csv"],
    "reconstruct": ["-o", "out.png"],
    "traverse": ["-o", "out.png"],
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("codes") / "tiny"
    options = "--data mnist-sample --hidden 16 --latents 2 --categories 3 --epochs 2"
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(folder), *options.split(), "--batch-size", "1000"])
    assert not stop.value.code
    return folder


def _part(name: str) -> Part:
    images = load_images("mnist-sample")
    return make_splits(images, binarize="dynamic", validation=0.05, seed=0).part(name)


def _numbers(path: str) -> tuple[list[str], np.ndarray]:
    header, *lines = Path(path).read_text().splitlines()
    return header.split(","), np.array([line.split(",") for line in lines], float)


def _assert_same(figure: Figure, expected: Figure) -> None:
    for axes, same in zip(figure.axes, expected.axes, strict=True):
        ours, theirs = (a.get_images()[0].get_array() for a in (axes, same))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("part", ["test", "validation"])
def test_codes_of_a_part(pdvae: Run, run_folder: Path, part: str) -> None:
    run, (x, _, labels) = load_run(run_folder), _part(part)
    index = run.vae.encode(x).argmax(-1)
    status, out, err = pdvae("encode", run_folder, "--data", part, "-o", "codes.csv")
    assert (status, err) == (0, "")
    assert out == (
        f"codes.csv: most probable codes (D=2, K=3) of {len(x)} images of the {part} part of "
        f"mnist-sample; {run_folder}, weights of epoch {run.epoch}\n"
    )
    header, table = _numbers("codes.csv")
    # The validation rows are some of the training rows; the test rows are a part of their own.
    places = [] if part == "test" else [run.data.splits().validation_rows]
    assert header == ["index", *(["row"] if places else []), "label", "z1", "z2"]
    columns = [torch.arange(len(x)), *places, labels]
    assert (table == torch.cat([torch.stack(columns, 1), index], 1).numpy()).all()

    assert pdvae("encode", run_folder, "--data", part, "-o", "codes.npz")[0] == 0
    with np.load("codes.npz", allow_pickle=False) as arrays:
        assert arrays.files == ["codes", "labels", *(["row"] if places else [])]
        assert (arrays["codes"] == index.numpy()).all()
        assert (arrays["labels"] == labels.numpy()).all()


def test_probabilities(pdvae: Run, run_folder: Path) -> None:
    expected = load_run(run_folder).vae.encode(_part("test").x).softmax(-1).detach()
    for suffix in ("csv", "npz"):
        status, out, _ = pdvae("encode", run_folder, "--probabilities", "-o", f"p.{suffix}")
        assert status == 0
        assert "probabilities of the categories (D=2, K=3) of 1000 images" in out
    with np.load("p.npz", allow_pickle=False) as arrays:
        assert arrays.files == ["probabilities", "labels"]
        torch.testing.assert_close(torch.tensor(arrays["probabilities"]), expected)
    header, table = _numbers("p.csv")
    assert header == ["index", "label", "z1_0", "z1_1", "z1_2", "z2_0", "z2_1", "z2_2"]
    values = torch.tensor(table[:, 2:], dtype=torch.float32)
    torch.testing.assert_close(values, expected.flatten(1))
    for path in ("p.csv", "p.npz"):
        status, _, err = pdvae("decode", run_folder, path, "-o", "images.npz")
        assert (status, err.count("\n")) == (2, 1)
        assert "as category indices" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"refine": 1}, "refined q(z|x) (1 sweep)"),
        ({"posterior": "exact"}, "exact q(z|x)"),
    ],
)
def test_codes_and_scores_of_other_posteriors(
    pdvae: Run,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    words: str,
) -> None:
    run, given = load_run(run_folder), [f"--{name}={value}" for name, value in options.items()]
    status, out, err = pdvae("encode", run_folder, "-o", "codes.csv", *given)
    assert (status, err, f" by the {words}; " in out) == (0, "", True)
    codes = run.encode("test", **options)
    assert (_numbers("codes.csv")[1][:, 2 : 2 + 2] == codes.numpy()).all()
    x = _part("test").x
    log_p = evaluate(run.vae, x, posterior="exact").elbo
    status, out, err = pdvae("score", run_folder, *given, "-o", "scores.csv")
    assert (status, err, f"ELBO by the {words} of 1000" in out) == (0, "", True)
    elbo = run.score("test", **options)
    assert elbo.mean().item() <= log_p + 1e-9
    assert elbo.mean() > run.score("test", "elbo").mean()
    assert f"mean {elbo.mean():.2f} nats" in out
    code, grey = torch.nn.functional.one_hot(codes, 3).float(), load_images("mnist-sample").test
    shown: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: shown.append(figure))
    out = pdvae("traverse", run_folder, "--index", 7, *given)[1]
    assert f"image 7 of the test part of mnist-sample by the {words}; " in out
    _assert_same(shown[-1], plots.latents_figure(run.vae, x[7], code=code[7]))
    out = pdvae("reconstruct", run_folder, "-n", 3, *given)[1]
    assert f"at their most probable codes by the {words}; " in out
    images = plots.reconstruction_figure(run.vae, grey[:3] / 255, x[:3], codes=code[:3])
    _assert_same(shown[-1], images)


def test_posteriors_that_are_refused(pdvae: Run, run_folder: Path) -> None:
    for command, options, words in (
        ("encode", ["-o", "c.csv", "--refine", 2, "--posterior", "exact"], "Expected --refine 2"),
        ("score", ["--refine", 2, "--bound", "exact"], "Expected --bound elbo or --bound import"),
        ("score", ["--posterior", "exact", "--by", "ratio"], "got --by ratio"),
        ("score", ["--refine", 2, "--explain", 0], "Expected --explain without"),
        ("traverse", ["--refine", 0], "Invalid value for '--refine'"),
    ):
        status, out, err = pdvae(command, run_folder, *options)
        assert (status, out, words in err, err.count("\n")) == (2, "", True, 1), err


@pytest.mark.parametrize("codes", ["codes.csv", "codes.npz"])
def test_decode_undoes_encode(pdvae: Run, run_folder: Path, codes: str) -> None:
    run, (x, _, labels) = load_run(run_folder), _part("test")
    pdvae("encode", run_folder, "-o", codes)
    status, out, err = pdvae("decode", run_folder, codes, "-o", "images.npz")
    assert (status, err) == (0, "")
    assert out == (
        f"images.npz: 1000 means of p(x|z), codes of {codes}; {run_folder}, weights of epoch "
        f"{run.epoch}\n"
    )
    with np.load("images.npz", allow_pickle=False) as arrays:
        assert arrays.files == ["images", "labels"]
        assert arrays["images"].dtype == np.float32
        torch.testing.assert_close(torch.tensor(arrays["images"]), run.vae.reconstruct(x))
        assert (arrays["labels"] == labels.numpy()).all()
    assert pdvae("decode", run_folder, codes, "-o", "images.npy")[0] == 0
    with np.load("images.npz", allow_pickle=False) as arrays:
        assert (np.load("images.npy", allow_pickle=False) == arrays["images"]).all()


def test_rows_of_a_table_keep_their_place(pdvae: Run, run_folder: Path) -> None:
    pdvae("encode", run_folder, "-o", "codes.csv")
    header, *lines = Path("codes.csv").read_text().splitlines()
    Path("some.csv").write_text("\n".join([header, lines[700], lines[3]]) + "\n")
    assert pdvae("decode", run_folder, "some.csv", "-o", "some.npz")[0] == 0
    x, _, labels = _part("test")
    with np.load("some.npz", allow_pickle=False) as arrays:
        assert arrays["index"].tolist() == [700, 3]
        assert arrays["labels"].tolist() == labels[[700, 3]].tolist()
        means = load_run(run_folder).vae.reconstruct(x[[700, 3]])
        torch.testing.assert_close(torch.tensor(arrays["images"]), means)


def test_draws_have_a_seed_and_can_be_encoded(pdvae: Run, run_folder: Path) -> None:
    run, (x, _, labels) = load_run(run_folder), _part("test")
    pdvae("encode", run_folder, "-o", "codes.csv")
    drawn = []
    for seed, name in ((1, "a.npz"), (1, "b.npz"), (2, "c.npz")):
        arguments = ["codes.csv", "--draws", "--seed", seed, "-o", name]
        status, out, _ = pdvae("decode", run_folder, *arguments)
        assert status == 0
        assert "1000 draws from p(x|z)" in out
        assert out.endswith(f", seed {seed}\n")
        with np.load(name, allow_pickle=False) as arrays:
            drawn.append(torch.tensor(arrays["images"]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert set(drawn[0].unique().tolist()) == {0.0, 1.0}
    # The mean over data of a pixel's draws is that of its means, to within chance.
    means = run.vae.reconstruct(x)
    error = (means * (1 - means)).sum(0).sqrt() / len(x)
    assert ((drawn[0].mean(0) - means.mean(0)).abs() <= 5 * error + 1e-6).all()

    status, out, _ = pdvae("encode", run_folder, "--data", "a.npz", "-o", "again.csv")
    assert status == 0
    assert "1000 images of a.npz" in out
    _, table = _numbers("again.csv")
    assert (table[:, 1] == labels.numpy()).all()
    assert (table[:, 2:] == run.vae.encode(drawn[0]).argmax(-1).numpy()).all()


def test_grid_of_decoded_images(pdvae: Run, run_folder: Path) -> None:
    pdvae("encode", run_folder, "-o", "codes.csv")
    status, out, _ = pdvae("decode", run_folder, "codes.csv", "-o", "images.png")
    assert status == 0
    assert "images.png: the first 100 of 1000 means of p(x|z), codes of codes.csv" in out
    assert imread("images.png").std() > 0.01
    Path("one.csv").write_text("z1,z2\n2,1\n")
    status, out, _ = pdvae("decode", run_folder, "one.csv", "--draws", "-o", "one.png")
    assert status == 0
    assert "one.png: 1 draws from p(x|z)" in out


def test_a_file_is_binarised_as_the_run_says(pdvae: Run, run_folder: Path) -> None:
    grey = torch.randint(256, (5, 28, 28), dtype=torch.uint8)
    vae = load_run(run_folder).vae
    codes = vae.encode(binary_inputs(grey, (28, 28), "dynamic", 0)).argmax(-1)
    np.save("grey.npy", grey.numpy())
    np.savez("several.npz", a=grey.numpy()[:2], b=grey.numpy())
    for options in (["--data", "grey.npy"], ["--data", "several.npz", "--key", "b"]):
        assert pdvae("encode", run_folder, *options, "--force", "-o", "codes.csv")[0] == 0
        header, table = _numbers("codes.csv")
        assert header == ["index", "z1", "z2"]  # no labels
        assert (table[:, 1:] == codes.numpy()).all()
    status, out, _ = pdvae("score", run_folder, "--data", "grey.npy")
    assert status == 0
    assert "label" not in out


@pytest.mark.parametrize("bound", ["elbo", "importance", "exact"])
def test_scores(pdvae: Run, run_folder: Path, bound: str) -> None:
    run, (x, _, labels) = load_run(run_folder), _part("test")
    options = ["--bound", bound, "--iw-samples", 7]
    status, out, err = pdvae("score", run_folder, *options, "-o", "scores.csv")
    assert (status, err) == (0, "")
    said = {"elbo": "ELBO", "importance": "bound(7)", "exact": "log p(x)"}[bound]
    figures = evaluate(run.vae, x, importance_samples=7)
    name = {"elbo": "elbo", "importance": "importance_bound", "exact": "log_marginal"}[bound]
    mean, error = getattr(figures, name), figures.standard_errors.get(name)
    how = "exact" if error is None else f"± {error:.2g}, seed 0"
    assert out == (
        f"scores.csv: {said} of 1000 images of the test part of mnist-sample, mean {mean:.2f} "
        f"nats/image ({how}; dynamic binarisation); {run_folder}, weights of epoch {run.epoch}\n"
    )
    header, table = _numbers("scores.csv")
    with_error = [] if error is None else ["standard_error"]
    assert header == ["rank", "index", "label", "score", *with_error]
    rank, index, label, score = table[:, :4].T
    assert score.mean() == pytest.approx(mean, rel=1e-8)
    assert (rank == np.arange(1, 1001)).all()
    assert (np.diff(score) >= 0).all()
    assert sorted(index) == list(range(1000))
    expected = datum_scores(run.vae, x, bound=bound, importance_samples=7)  # type: ignore[arg-type]
    np.testing.assert_allclose(score, expected[index.astype(int)], rtol=1e-8)
    assert (label == labels.numpy()[index.astype(int)]).all()
    if error is not None:
        assert np.sqrt((table[:, 4] ** 2).sum()) / 1000 == pytest.approx(error, rel=1e-6)

    status, out, _ = pdvae("score", run_folder, *options)
    first, head, *lines = out.splitlines()
    assert first.startswith(f"{said} of 1000 images")
    assert head.split() == header
    assert [line.split() for line in lines] == [
        [f"{x:.0f}" if i < 3 else f"{x:.3f}" for i, x in enumerate(row)] for row in table[:20]
    ]

    status, out, _ = pdvae("score", run_folder, *options, "--top", 3, "--json")
    content = json.loads(out)
    assert content["mean"] == pytest.approx(mean, rel=1e-12)
    assert content["standard_error"] == pytest.approx(error)
    assert (content["num_data"], content["bound"]) == (1000, bound)
    assert content["importance_samples"] == (7 if bound == "importance" else None)
    np.testing.assert_allclose([list(row.values()) for row in content["scores"]], table[:3])
    assert list(content["scores"][0]) == header


def test_scores_by_draws_have_errors(
    pdvae: Run, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyro_dvae import evaluation
    from pyro_dvae.evaluation import plan

    monkeypatch.setattr(plan, "MAX_CODES", 4)
    monkeypatch.setattr(evaluation, "MAX_CODES", 4)
    scores = evaluate(load_run(run_folder).vae, _part("test").x, seed=5)
    status, out, _ = pdvae("score", run_folder, "--bound", "elbo", "--seed", 5, "--top", 1)
    assert status == 0
    error = scores.standard_errors["elbo"]
    assert f"mean {scores.elbo:.2f} nats/image (± {error:.2g}, seed 5; dynamic binarisation)" in out
    assert "standard_error" in out
    status, _, err = pdvae("score", run_folder, "--bound", "exact")
    assert (status, err.count("\n")) == (2, 1)
    assert "at most 4 codes for --bound exact; got K^D = 3^2 = 9. Use --bound importance" in err


def test_pictures(pdvae: Run, run_folder: Path) -> None:
    epoch = load_run(run_folder).epoch
    status, out, err = pdvae("reconstruct", run_folder, "-n", 3)
    assert (status, err) == (0, "")
    assert out == (
        "reconstructions.png: 3 images of the test part of mnist-sample, means and draws of p(x|z) "
        f"at their most probable codes; {run_folder}, weights of epoch {epoch}, seed 0\n"
    )
    status, out, err = pdvae("traverse", run_folder, "--index", 999)
    assert (status, err) == (0, "")
    assert out == (
        "traverse.png: means of p(x|z), D=2 latents varied over K=3 categories around the code of "
        f"image 999 of the test part of mnist-sample; {run_folder}, weights of epoch {epoch}\n"
    )
    for name in ("reconstructions.png", "traverse.png"):
        assert imread(name).std() > 0.01
    # The same images from a file give the same pictures, for the run's binarisation is the same.
    np.savez("test.npz", x=_part("test").values.numpy(), labels=np.zeros(1000, int))
    pdvae("reconstruct", run_folder, "-n", 3, "--input", "test.npz", "-o", "file.png")
    assert Path("file.png").read_bytes() == Path("reconstructions.png").read_bytes()
    pdvae(
        "traverse", run_folder, "--index", 999, "--input", "test.npz", "-o", "file.png", "--force"
    )
    assert Path("file.png").read_bytes() == Path("traverse.png").read_bytes()
    np.save("two.npy", _part("test").x[:2].numpy())
    status, out, _ = pdvae("reconstruct", run_folder, "--input", "two.npy", "--force")
    assert status == 0
    assert "reconstructions.png: 2 images of two.npy" in out


def test_pictures_show_what_was_asked_for(
    pdvae: Run, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, (x, grey, _) = load_run(run_folder).vae, _part("test")
    pdvae("encode", run_folder, "-o", "codes.csv")
    shown: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: shown.append(figure))
    for arguments, expected in (
        (["decode", "codes.csv"], plots.image_grid(vae.reconstruct(x[:100]), 10, "")),
        (
            ["reconstruct", "-n", 3, "--seed", 4],
            plots.reconstruction_figure(vae, grey[:3] / 255, x[:3], 4),
        ),
        (["traverse", "--index", 7], plots.latents_figure(vae, x[7])),
    ):
        command, *options = arguments
        assert pdvae(command, run_folder, *options, "-o", "out.png")[0] == 0
        _assert_same(shown[-1], expected)


def test_newest_run_is_the_default(pdvae: Run, run_folder: Path) -> None:
    shutil.copytree(run_folder, "runs/tiny")
    Path("codes.csv").write_text("z1,z2\n2,1\n")
    for command, options in COMMANDS.items():
        status, out, err = pdvae(command, *options, "--force")
        assert (status, err) == (0, "")
        assert "runs/tiny, weights of epoch " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_is_replaced_and_nothing_computed(
    pdvae: Run, run_folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    Path("codes.csv").write_text("z1,z2\n2,1\n")
    *options, name = COMMANDS[command]
    Path(name).write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("pyro_dvae.runs.load_run", None)  # calling it would be a TypeError
        for output, message in (
            (name, "Use --force, or another -o"),
            (f"nowhere/{name}", "folder to write into; got nowhere"),
            ("out.txt", "Change its suffix"),
            ("out", "Change its suffix"),
            ("", "Add a file name"),
        ):
            status, out, err = pdvae(command, run_folder, *options, output)
            assert (status, out, err.count("\n")) == (2, "", 1)
            assert message in err
    assert Path(name).read_text() == "old"

    # A write that fails is exit 1, and leaves what was there.
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pyro_dvae.runs.storage.os.fsync", full)
        status, out, err = pdvae(command, run_folder, *options, name, "--force")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"Cannot write {name}" in err
    assert Path(name).read_text() == "old"
    assert {path.name for path in Path.cwd().iterdir()} == {"codes.csv", name}

    status, _, err = pdvae(command, run_folder, *options, name, "--force")
    assert (status, err) == (0, "")
    assert Path(name).read_bytes() != b"old"


def _bad_files() -> None:
    np.save("shape.npy", np.zeros((3, 5), np.uint8))
    np.save("one.npy", np.zeros((28, 28), np.uint8))
    np.save("range.npy", np.full((3, 28, 28), 0.5))
    np.save("nan.npy", np.full((3, 28, 28), np.nan))
    np.save("text.npy", np.full((3, 28, 28), "a"))
    np.savez("several.npz", a=np.zeros(3), b=np.zeros(3))
    Path("empty.npy").touch()
    Path("cut.npz").write_bytes(Path("several.npz").read_bytes()[:100])
    for name, text in {
        "empty": "",
        "good": "z1,z2\n0,1\n",
        "range": "z1,z2\n0,1\n0,3\n",
        "columns": "z1,z2,z3\n0,1,2\n",
        "ragged": "z1,z2\n0,1,2\n",
        "fraction": "z1,z2\n0,1.5\n",
        "nan": "z1,z2\n0,nan\n",
    }.items():
        Path(f"{name}.csv").write_text(text)


DATA = {
    "missing.npy": "got 'missing.npy', which is not there",
    "images.png": "got 'images.png', which is not there",
    "nonsense": "Expected train, validation, test, or a file; got 'nonsense'",
    "shape.npy": "Expected data of shape (N, 28, 28) with N > 0; got (3, 5)",
    "one.npy": "Add a leading axis",
    "range.npy": "uint8 values 0 to 255, or only zeros and ones; got torch.float64 values 0.5",
    "nan.npy": "NaN",
    "text.npy": "Expected numbers",
    "empty.npy": "0 bytes",
    "cut.npz": "cut.npz (",
    "several.npz": "one of the arrays in several.npz: a, b; got no key. Name one with --key",
}
CODES = {
    "missing.csv": "got missing.csv (No such file or directory)",
    "codes.txt": ".csv, .npz or .npy file of codes; got codes.txt",
    ".": "a file of codes; got the folder .",
    "empty.csv": "Expected the columns z1 to z2",
    "empty.npy": "0 bytes",
    "range.csv": "categories 0 to 2 in range.csv; got '3' in line 3, column z2",
    "columns.csv": "got z1,z2,z3",
    "ragged.csv": "2 columns in ragged.csv; got 3 in line 2",
    "fraction.csv": "got '1.5' in line 2, column z2",
    "nan.csv": "got 'nan' in line 2, column z2",
    "shape.npy": "integers of shape (N, 2) in shape.npy; got torch.uint8 of shape (3, 5)",
}
BAD = [
    *((["encode", "RUN", "--data", name, "-o", "out.npz"], text) for name, text in DATA.items()),
    *((["decode", "RUN", name, "-o", "out.npz"], text) for name, text in CODES.items()),
    (["score", "RUN", "--data", "shape.npy"], DATA["shape.npy"]),
    (["reconstruct", "RUN", "--input", "shape.npy"], DATA["shape.npy"]),
    (["reconstruct", "RUN", "--input", "tests"], "or a file; got 'tests'"),
    (["traverse", "RUN", "--input", "nan.npy"], DATA["nan.npy"]),
    (["encode", "nowhere", "-o", "out.csv"], "run folder with a config.json; got nowhere"),
    (["encode", "-o", "out.csv"], "run below runs/; got none"),
    (["encode", "RUN"], "Missing option '--output'"),
    (["encode", "RUN", "--key", "a", "-o", "out.csv"], "--key with a .npz file; got it with test"),
    (["encode", "RUN", "--data", "nan.npy", "--data-dir", ".", "-o", "out.csv"], "--data-dir with"),
    (["decode", "-o", "out.npz"], "Missing argument"),
    (["decode", "nowhere", "good.csv", "-o", "out.npz"], "config.json; got nowhere"),
    (["decode", "RUN", "good.csv", "good.csv", "-o", "out.npz"], "got 3 names"),
    (["decode", "RUN", "good.csv", "--key", "a", "-o", "out.npz"], "no key for the CSV"),
    (["decode", "RUN", "good.csv", "-o", "."], "Add a file name"),
    (["score", "nowhere"], "config.json; got nowhere"),
    (["score", "RUN", "--bound", "best"], "--bound"),
    (["score", "RUN", "--iw-samples", "1"], "--iw-samples"),
    (["score", "RUN", "--top", "0"], "--top"),
    (["score", "RUN", "--seed", "-1"], "--seed"),
    (["reconstruct", "nowhere"], "config.json; got nowhere"),
    (["reconstruct", "RUN", "-n", "0"], "-n from 1 to 100; got 0"),
    (["reconstruct", "RUN", "-n", "101"], "-n from 1 to 100; got 101"),
    (["traverse", "nowhere"], "config.json; got nowhere"),
    (["traverse", "RUN", "--index", "1000"], "--index from 0 to 999; got 1000"),
    (["traverse", "RUN", "--index", "-1"], "--index from 0 to 999; got -1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_bad_input_is_one_line_and_exit_2(
    pdvae: Run, run_folder: Path, arguments: list[str], message: str
) -> None:
    _bad_files()
    before = sorted(Path.cwd().iterdir())
    status, out, err = pdvae(*(str(run_folder) if a == "RUN" else a for a in arguments))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(Path.cwd().iterdir()) == before


def test_a_run_that_is_no_images(pdvae: Run, run_folder: Path) -> None:
    from pyro_dvae import Config, build_vae
    from pyro_dvae.runs import DataRecord
    from pyro_dvae.runs.checkpoints import write_weights
    from pyro_dvae.runs.settings import write_config

    config = Config(num_latents=2, num_categories=3, hidden=(4,))
    Path("table").mkdir()
    write_config(Path("table"), DataRecord(config, "table", "nowhere"), (5,))
    write_weights(Path("table"), build_vae(config, (5,)).state_dict(), 1)
    np.save("rows.npy", np.eye(5))
    for arguments in (
        ["encode", "table", "--data", "rows.npy", "-o", "codes.csv"],
        ["decode", "table", "codes.csv", "-o", "rows.npz"],
        ["score", "table", "--data", "rows.npy"],
        ["traverse", "table", "--data", "rows.npy"],
    ):
        assert pdvae(*arguments)[0] == 0
    for arguments in (
        ["decode", "table", "codes.csv", "-o", "rows.png"],
        ["reconstruct", "table", "--input", "rows.npy"],
    ):
        status, _, err = pdvae(*arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert "run of images (H, W) to draw; got data of shape (5,)" in err


def test_help_has_an_example_and_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pdvae_cli.main import main\n"
        f"for name in {list(COMMANDS)}:\n"
        "    try: main([name, '--help'])\n    except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(f"Example: pdvae {name}" in done.stdout for name in COMMANDS)
