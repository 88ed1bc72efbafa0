"""`pdvae evaluate`, `compare` and `info`."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pdvae_cli.figures import print_figures
from pdvae_cli.main import main
from pdvae_cli.tables import aligned
from zoo import make_vae, tiny_data

from pyro_dvae import Config, Evaluation, build_vae, evaluate, load_images, load_run
from pyro_dvae.data import fingerprint, make_splits
from pyro_dvae.evaluation import SimpleModels, ordering
from pyro_dvae.runs import DataRecord, with_simple_models
from pyro_dvae.runs.checkpoints import write_weights
from pyro_dvae.runs.log import append_metrics, write_figures
from pyro_dvae.runs.settings import write_config
from pyro_dvae.streams import RandomStream

Run = Callable[..., tuple[int, str, str]]

FIT = "--data mnist-sample --hidden 16 --latents 2 --categories 3 --epochs 2 --batch-size 1000"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, which tests must leave as it is."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(folder), *FIT.split()])
    assert not stop.value.code
    return folder


@pytest.fixture
def pdvae(pdvae: Run, trained: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command beside `run`, a copy of the trained run."""
    shutil.copytree(trained, "run")
    capsys.readouterr()
    return pdvae


def _scores(folder: str, part: str, **options: Any) -> Evaluation:
    run = load_run(Path(folder))
    splits = make_splits(
        load_images("mnist-sample"),
        binarize=run.config.binarize,
        validation=run.config.validation,
        seed=run.config.seed,
    )
    x = splits.part(part).x
    scores = evaluate(run.vae, x, seed=run.config.seed, **options)
    return with_simple_models(scores, run.vae, run.config, splits, (x, None))


def _stored(folder: str, part: str) -> dict[str, Any]:
    return dict(json.loads(Path(folder, "evaluation.json").read_text())[part])


def test_evaluate_prints_and_stores_what_the_library_says(pdvae: Run) -> None:
    status, out, err = pdvae("evaluate", "run", "--iw-samples", "50", "--device", "cpu")
    assert (status, err) == (0, "")
    scores = _scores("run", "test", importance_samples=50, refine=5)
    error = scores.standard_errors["importance_bound"]
    assert scores.log_marginal is not None
    assert scores.posterior_gap is not None
    for line in (
        f"test ELBO {scores.elbo:.2f} nats/image (exact; dynamic binarisation, 1000 images)",
        f"  = entropy {scores.entropy:.2f} - D log K {2 * math.log(3):.2f} "
        f"- BCE {-scores.log_likelihood:.2f}",
        f"  log p(x) {scores.log_marginal:.2f} (exact, all codes)",
        f"  bound(50) {scores.importance_bound:.2f} ± {error:.2g} (importance-weighted)",
        f"  {ordering(scores)}",
    ):
        assert line in out.splitlines()
    rows = {tuple(line.split("  = ")[0].split()) for line in out.splitlines()}
    assert ("posterior", "gap", f"{scores.posterior_gap:.2f}") in rows
    assert ("family", "gap", f"{scores.family_gap:.2f}") in rows
    assert ("encoder", "gap", f"{scores.encoder_gap:.2f}") in rows
    assert ("encoder", f"{scores.encoder_elbo:.2f}") in rows
    assert ("refined", f"{scores.refined_elbo:.2f}", "by", "5", "sweeps") in rows
    assert ("exact", f"{scores.log_marginal:.2f}") in rows
    assert ("importance", "gap", f"{scores.importance_gap:.2f}", "±", f"{error:.2g}") in rows
    assert ("KL(q", "||", "prior)", f"{scores.kl:.2f}") in rows
    bits = -scores.elbo / (784 * math.log(2))
    assert ("bits", "per", "dimension", f"{bits:.4f}") in rows
    assert scores.kl_per_latent is not None
    for latent in range(2):
        carried = scores.information_per_latent[latent], scores.perplexity_per_latent[latent]
        values = (scores.kl_per_latent[latent], *carried)
        assert (f"z{latent + 1}", *(f"{value:.3f}" for value in values)) in rows
    simple = scores.simple_models
    assert simple is not None
    assert ("independent", "elements", f"{simple.independent:.2f}") in {row[:3] for row in rows}
    assert ("mixture", "of", str(simple.mixture_size), f"{simple.mixture:.2f}") in {
        row[:4] for row in rows
    }
    assert f"the model saves {scores.bits_saved:.2f} bits per image" in out
    assert f"{scores.active_latents} of 2 latents active" in out
    assert f"{scores.codes_used} codes used, perplexity {scores.code_perplexity:.1f}" in out
    assert _stored("run", "test") == json.loads(json.dumps({**asdict(scores), "epoch": 2}))


def test_another_posterior_is_shown_and_not_stored(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The simple models, which take most of the time, are those that the training has stored.
    monkeypatch.setattr("pyro_dvae.evaluation.simple.best_mixture", None)
    before = Path("run", "evaluation.json").read_text()
    options = ["--posterior", "exact", "--refine", "1", "--iw-samples", "0"]
    options += ["--ais", "1", "--ais-data", "5"]
    status, out, err = pdvae("evaluate", "run", *options)
    assert (status, err) == (0, "")
    run = load_run("run")
    few = {"ais": 1, "ais_data": 5}
    scores = evaluate(run.vae, run.rows("test").x[:], posterior="exact", refine=1, **few)
    error = scores.standard_errors["annealed_bound"]
    bound = f"  annealed(1) {scores.annealed_bound:.2f} ± {error:.2g} (annealed importance"
    assert f"{bound} sampling, 10 chains, 5 of the images)\n" in out
    assert "also over the choice of 5 images" in out
    row = f"{scores.annealed_gap:.2f} ± {scores.standard_errors['annealed_gap']:.2g}"
    assert row.split() in [line.split()[2:5] for line in out.splitlines()]
    assert f"test ELBO {scores.elbo:.2f} nats/image (exact, exact q(z|x); dynamic" in out
    assert f"{scores.refined_elbo:.2f}    by 1 sweep\n" in out
    assert Path("run", "evaluation.json").read_text() == before
    status, _, err = pdvae("evaluate", "run", "--refine", "0", "--posterior", "refined")
    assert (status, "Expected --refine of at least 1" in err) == (2, True)


@pytest.mark.slow
def test_posteriors_are_compared_by_draws_or_not_at_all(pdvae: Run) -> None:
    few = ["--iw-samples", "0"]
    drawn = pdvae("evaluate", "run", "--no-exact", "--refine", "2", *few)[1]
    error = _scores("run", "test", exact=False, refine=2).standard_errors["refined_elbo"]
    assert f"± {error:.2g}  by 2 sweeps\n" in drawn
    assert "ELBO by q(z|x)" not in pdvae("evaluate", "run", "--refine", "0", *few)[1]


def test_simple_models_are_fitted_once(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pdvae("evaluate", "run")
    first = _stored("run", "test")["simple_models"]
    monkeypatch.setattr("pyro_dvae.evaluation.simple.best_mixture", None)
    assert pdvae("evaluate", "run")[0] == 0
    assert _stored("run", "test")["simple_models"] == first


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_evaluate_json_is_the_whole_evaluation(pdvae: Run, part: str) -> None:
    options = ["--split", part, "--iw-samples", "5", "--json"]
    status, out, err = pdvae("evaluate", "run", *options)
    assert (status, err, out.count("\n")) == (0, "", 1)
    content = json.loads(out)
    scores = _scores("run", part, importance_samples=5, refine=5)
    assert content == content | json.loads(json.dumps(asdict(scores)))
    assert content["num_data"] == {"train": 4750, "validation": 250, "test": 1000}[part]
    facts = {name: content[name] for name in ("run", "part", "epoch", "version", "ordering")}
    version = load_run(Path("run")).version
    assert facts == {
        "run": "run",
        "part": part,
        "epoch": 2,
        "version": version,
        "ordering": ordering(scores),
    }
    assert content["data"]["fingerprint"] == fingerprint(load_images("mnist-sample"))
    assert _stored("run", part)["elbo"] == scores.elbo


def test_batch_size_changes_no_figure(pdvae: Run) -> None:
    options = ["--split", "validation", "--iw-samples", "5", "--json"]
    one, other = (
        json.loads(pdvae("evaluate", "run", *options, "--batch-size", size)[1])
        for size in ("7", "250")
    )
    for name in ("elbo", "log_marginal", "importance_bound", "information_per_latent"):
        assert one[name] == pytest.approx(other[name], rel=1e-6)


def test_evaluate_by_draws_says_how_sure_it_is(pdvae: Run) -> None:
    shutil.copytree("run", "runs/one")
    arguments = ["evaluate", "--split", "validation", "--no-exact", "--iw-samples", "0"]
    status, out, _ = pdvae(*arguments)
    assert status == 0
    assert out.startswith("runs/one: weights of epoch 2 (complete, 2 of 2 epochs), mnist-sample")
    scores = _scores("run", "validation", exact=False)
    error = scores.standard_errors["elbo"]
    assert f"validation ELBO {scores.elbo:.2f} ± {error:.2g} nats/image (by draws; dynamic" in out
    assert "log p(x): not summed over all codes" in out
    assert "bound(" not in out
    assert "(±: one standard error, over the draws of z" in out
    assert _stored("runs/one", "validation")["importance_bound"] is None

    _, other, _ = pdvae(*arguments, "--seed", "5")
    assert out.splitlines()[1] != other.splitlines()[1]
    assert pdvae(*arguments, "--seed", "0")[1] == out


def test_evaluate_says_since_when_a_latent_has_collapsed(pdvae: Run) -> None:
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    Path("run/metrics.jsonl").unlink()
    for line, information in zip(lines, ([1.0, 0.0], [1.0, 1.0]), strict=True):
        append_metrics(Path("run"), {**line, "validation_information": information})
        append_metrics(Path("run"), {"epoch": line["epoch"] + 1, "step": 1, "train_elbo": -1.0})
    run = load_run(Path("run"))
    weights = {name: value.clone() for name, value in run.vae.state_dict().items()}
    last = [name for name in weights if name.startswith("encoder")][-2:]
    write_weights(Path("run"), weights | {name: 0 * weights[name] for name in last}, epoch=2)
    _, out, _ = pdvae("evaluate", "run", "--iw-samples", "0")
    # The weights of epoch 2 as they are, not what the metrics say of them.
    assert "(z1 since epoch 2, z2 since epoch 1)" in out.splitlines()[-1]
    assert "0 of 2 latents active" in out
    assert "such as --epochs 400 and --patience 200 if" in out
    assert "; --estimator marginal, which" in out
    Path("run/metrics.jsonl").unlink()
    _, out, _ = pdvae("evaluate", "run", "--iw-samples", "0", "--json")
    collapse = json.loads(out)["collapse"]
    assert "(z1, z2)" in collapse
    assert "such as --epochs 400 and --patience 200 if" in collapse


def test_evaluate_prints_what_it_cannot_store(pdvae: Run) -> None:
    Path("run/evaluation.json").unlink()
    Path("run/evaluation.json").mkdir()
    status, out, err = pdvae("evaluate", "run", "--iw-samples", "0")
    assert status == 0
    assert "test ELBO" in out
    assert err.startswith("pdvae: the figures were not stored: Cannot write run/evaluation.json")
    assert err.count("\n") == 1


def _untrained(folder: str, **settings: Any) -> None:
    """A run folder before its first epoch."""
    config = Config(**{"hidden": (4,), "num_latents": 2, "num_categories": 2} | settings)
    path = Path(folder)
    path.mkdir()
    with RandomStream(0):
        vae = build_vae(config, (28, 28))
    data = DataRecord(config, "mnist-sample", "somewhere", fingerprint="0123")
    data = replace(data, num_train=4750, num_validation=250, num_test=1000)
    write_config(path, data, (28, 28))
    write_weights(path, vae.state_dict(), epoch=0)


def _epoch(folder: str, epoch: int, *, is_best: bool = True, of_guide: bool = False) -> None:
    elbo = {"train_elbo": -100.0, "validation_elbo": -99.0, "validation_log_marginal": None}
    rest = {"validation_information": [0.5, 0.5], "is_best": is_best, "seconds": 7.0 * epoch}
    part = {"of_guide": True} if of_guide else {}  # which older versions did not write
    append_metrics(Path(folder), {"epoch": epoch, **elbo, **rest, **part})


def _figures(folder: str, elbo: float, part: str = "test", **others: Any) -> None:
    names = Evaluation.__dataclass_fields__
    figures = dict.fromkeys(names, None) | {"standard_errors": {}, "active_latents": 1}
    figures |= {"elbo": elbo, "log_marginal": elbo + 2, "posterior_gap": 2.0, "epoch": 0}
    write_figures(Path(folder), part, figures | others)


def _table(out: str) -> list[dict[str, str]]:
    """The rows of a table, by the place of its headings."""
    lines = [line for line in out.splitlines()[1:] if not line.startswith(("±", "bits", "Runs of"))]
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def test_compare_is_one_table_best_first(pdvae: Run) -> None:
    _untrained("a", num_latents=3, num_categories=5, epochs=0)
    _untrained("b", learning_rate=0.01, hidden=(4, 3), epochs=0)
    _untrained("c", epochs=0)
    _figures("a", -90.25, active_latents=2, importance_bound=-89.0, importance_samples=9)
    _figures("b", -80.5, standard_errors={"elbo": 0.012, "importance_bound": 0.5})
    _figures("b", -80.5, importance_bound=-79.5, importance_samples=7)
    _figures("c", -100.0, log_marginal=None, posterior_gap=None)
    status, out, err = pdvae("compare", "a", "b", "c")
    assert (status, err) == (0, "")
    assert out.startswith("test part, nats per image, best ELBO first")
    shared = {"seconds": "0", "epochs": "0"}
    assert _table(out) == [
        {
            "run": "b",
            "ELBO": "-80.50",
            "log p(x)": "-78.50",
            "bound(7)": "-79.50",
            "bound(9)": "-",
            "gap": "2.00",
            "D log K": f"{2 * math.log(2):.2f}",
            "active": "1/2",
            "D": "2",
            "K": "2",
            "hidden": "4,3",
            "lr": "0.01",
            **shared,
        },
        {
            "run": "a",
            "ELBO": "-90.25",
            "log p(x)": "-88.25",
            "bound(7)": "-",
            "bound(9)": "-89.00",
            "gap": "2.00",
            "D log K": f"{3 * math.log(5):.2f}",
            "active": "2/3",
            "D": "3",
            "K": "5",
            "hidden": "4",
            "lr": "0.001",
            **shared,
        },
        {
            "run": "c",
            "ELBO": "-100.00",
            "log p(x)": "-",
            "bound(7)": "-",
            "bound(9)": "-",
            "gap": "-",
            "D log K": f"{2 * math.log(2):.2f}",
            "active": "1/2",
            "D": "2",
            "K": "2",
            "hidden": "4",
            "lr": "0.001",
            **shared,
        },
    ]
    _, out, _ = pdvae("compare", "a", "b", "c", "--json")
    content = json.loads(out)
    assert [row["run"] for row in content["runs"]] == ["b", "a", "c"]
    assert content["comparable"] is True
    assert content["runs"][1]["d_log_k"] == pytest.approx(3 * math.log(5), abs=1e-12)
    assert content["runs"][1]["figures"]["elbo"] == -90.25
    assert content["runs"][0]["settings"]["learning_rate"] == 0.01


def test_compare_by_settings_shows_groups_over_seeds(pdvae: Run) -> None:
    for seed, less in enumerate((1.0, 0.5, 0.6)):
        for estimator, elbo in (("rloo", -90.0), ("vimco", -90.0 - less)):
            folder = f"{estimator}{seed}"
            _untrained(folder, estimator=estimator, seed=seed, epochs=0)
            _figures(folder, elbo + seed)
    _untrained("without", estimator="vimco", seed=9, epochs=0)
    folders = [str(path) for path in sorted(Path().glob("*[o0-9t]")) if path.name != "run"]
    status, out, err = pdvae("compare", *folders, "--by", "estimator,lr")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "test ELBO, nats per image, best mean first"
    rows = [line.split(maxsplit=9) for line in lines[1:4]]
    assert rows[0][:3] == ["estimator", "lr", "runs"]
    assert rows[1] == ["rloo", "0.001", "3", "3", "-89.000", "1.000", "-", "-", "-", "best"]
    assert rows[2][:3] == ["vimco", "0.001", "3"]
    assert rows[2][6:] == ["-0.700", "0.153", "3", "worse"]  # sqrt(0.14 / (3 * 2))
    assert lines[-1] == "left out, without test figures of their weights: without"
    content = json.loads(pdvae("compare", *folders, "--by", "estimator", "--json")[1])
    assert content["by"] == ["estimator"]
    assert [group["settings"] for group in content["groups"]] == [
        {"estimator": "rloo"},
        {"estimator": "vimco"},
    ]
    assert content["groups"][1]["difference"] == pytest.approx(-0.7)
    _, out, _ = pdvae("compare", *folders, "--by", "lr")
    assert "the runs of a group differ in estimator too" in out


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("seed", "Expected --by as options with commas between; got 'seed'."),
        ("lr,nothing", "Expected --by as options with commas between; got 'nothing'."),
    ],
)
def test_compare_by_what_is_no_setting(pdvae: Run, by: str, told: str) -> None:
    status, out, err = pdvae("compare", "run", "--by", by)
    assert (status, out) == (2, "")
    assert err.startswith(f"pdvae: {told}")


def test_compare_by_without_figures(pdvae: Run) -> None:
    _untrained("without", epochs=0)
    status, _, err = pdvae("compare", "without", "--by", "lr")
    assert status == 2
    assert "runs with test figures of their weights; got none" in err


def test_compare_shows_a_real_run(pdvae: Run) -> None:
    status, out, _ = pdvae("compare", "run")
    assert status == 0
    scores = _scores("run", "test")
    (row,) = _table(out)
    assert row["ELBO"] == f"{scores.elbo:.2f}"
    assert row["log p(x)"] == f"{scores.log_marginal:.2f}"
    assert (row["epochs"], row["active"]) == ("2", f"{scores.active_latents}/2")
    assert "notes" not in row


def test_compare_shows_the_bits_saved_where_they_are_known(pdvae: Run) -> None:
    names = SimpleModels.__dataclass_fields__
    simple = dict.fromkeys(names, None) | {"independent": -90.0, "mixture_size": 0}
    simple |= {"prior_codes": -95.0, "num_train": 10}
    for name, known in {"a": simple, "b": None}.items():
        _untrained(name, epochs=0)
        _figures(name, -80.0, simple_models=known)
    status, out, err = pdvae("compare", "a", "b")
    assert (status, err) == (0, "")
    saved = f"{(-78.0 + 90.0) / math.log(2):.2f}"
    assert {row["run"]: row["bits saved"] for row in _table(out)} == {"a": saved, "b": "-"}
    assert "\nbits saved: per image, against independent elements\n" in out
    content = json.loads(pdvae("compare", "a", "b", "--json")[1])
    assert f"{content['runs'][0]['bits_saved']:.2f}" == saved
    assert content["runs"][1]["bits_saved"] is None
    _figures("a", -80.0)
    assert "bits saved" not in pdvae("compare", "a", "b")[1]


def test_compare_marks_what_is_missing_stale_or_unfinished(pdvae: Run) -> None:
    for name in ("missing", "stale", "unfinished", "early"):
        _untrained(name, epochs=9, patience=2, annealing=0)
        _figures(name, -90.0)
    Path("missing/evaluation.json").unlink()
    _figures("stale", -10.0, epoch=3)
    _figures("early", -80.0)
    for epoch in (1, 2, 3):
        _epoch("early", epoch, is_best=epoch == 1)
        _epoch("unfinished", epoch)
    status, out, _ = pdvae("compare", "stale", "missing", "unfinished", "early")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["early", "unfinished", "stale", "missing"]
    assert lines[2].endswith("stopped early, 3 of 9 epochs")
    assert lines[3].endswith("unfinished, 3 of 9 epochs")
    assert "test figures of epoch 3, weights of 0: run pdvae evaluate stale" in lines[4]
    assert lines[5].endswith("no test figures: run pdvae evaluate missing")
    assert _table(out)[0]["seconds"] == "21"
    _, out, _ = pdvae("compare", "stale", "--split", "validation")
    assert "run pdvae evaluate stale --split validation" in out


def test_the_epochs_of_the_guide_count_apart(pdvae: Run) -> None:
    for name in ("done", "half", "none"):
        _untrained(name, epochs=2, patience=5, annealing=0, guide_epochs=2)
        for epoch in (1, 2):
            _epoch(name, epoch)
        _figures(name, -90.0)
    _epoch("half", 3, of_guide=True)
    for epoch in (3, 4):
        _epoch("done", epoch, of_guide=True)
    rows = {row["run"]: row for row in _table(pdvae("compare", "done", "half", "none")[1])}
    assert [rows[name]["epochs"] for name in ("done", "half", "none")] == ["4", "3", "2"]
    for name, told in (
        ("done", "complete, 2 of 2 epochs, and 2 of 2 of the guide"),
        ("half", "unfinished, 2 of 2 epochs, and 1 of 2 of the guide"),
        ("none", "unfinished, 2 of 2 epochs, and 0 of 2 of the guide"),
    ):
        assert told in pdvae("info", name)[1]
        assert (told in pdvae("compare", name)[1]) == (name != "done")


def test_compare_refuses_runs_that_are_not_comparable(pdvae: Run) -> None:
    _untrained("a", epochs=0)
    _untrained("b", epochs=0, binarize="threshold")
    _figures("a", -90.0)
    _figures("b", -50.0)
    status, out, err = pdvae("compare", "a", "b", "a")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert (
        "got values dynamic binarisation in a, a and threshold binarisation in b. Leave some out"
        in err
    )
    status, out, _ = pdvae("compare", "a", "b", "--force")
    assert status == 0
    rows = _table(out)
    assert [row["run"] for row in rows] == ["b", "a"]
    assert [row["binarize"] for row in rows] == ["threshold", "dynamic"]
    assert out.splitlines()[3].endswith("NOT COMPARABLE with the first: other values")
    _, out, _ = pdvae("compare", "a", "b", "--force", "--json")
    assert json.loads(out)["comparable"] is False

    status, _, err = pdvae("compare", "a", "run")
    assert status == 2
    assert "got data mnist-sample (0123) in a and mnist-sample (" in err


def test_compare_of_other_seeds(pdvae: Run) -> None:
    for seed in (0, 1):
        _untrained(f"d{seed}", epochs=0, split_seed=seed)
        _untrained(f"t{seed}", epochs=0, split_seed=seed, binarize="threshold")
        for name in (f"d{seed}", f"t{seed}"):
            _figures(name, -90.0 - seed)
            _figures(name, -90.0 - seed, part="validation")
    status, out, _ = pdvae("compare", "d0", "d1")
    assert status == 0
    assert "Runs of another --split-seed score another binary draw of the same images" in out
    status, out, _ = pdvae("compare", "t0", "t1")
    assert status == 0
    assert "another binary draw" not in out
    status, _, err = pdvae("compare", "t0", "t1", "--split", "validation")
    assert status == 2
    assert "got seed of the split 0 in t0 and 1 in t1" in err


def test_info_of_a_complete_run(pdvae: Run) -> None:
    status, out, err = pdvae("info", "run")
    assert (status, err) == (0, "")
    run = load_run(Path("run"))
    lines = {line.split("  ")[0]: line.partition("  ")[2].strip() for line in out.splitlines()}
    assert lines["version"] == f"pyro_dvae {run.version}"
    assert f"fingerprint {run.data.fingerprint}" in lines["data"]
    assert lines["images"] == "4750 train, 250 validation, 1000 test; 28 x 28"
    num_parameters = sum(weight.numel() for weight in run.vae.parameters())
    assert lines["model"] == f"K^D = 3^2 = 9 codes, {num_parameters:,} parameters"
    assert lines["training"].startswith("complete, 2 of 2 epochs, ")
    assert lines["best"].startswith("epoch 2, validation ELBO -")
    scores = _scores("run", "test")
    assert lines["test"] == f"ELBO {scores.elbo:.2f}, log p(x) {scores.log_marginal:.2f} nats/image"
    assert lines["continue"] == "pdvae fit --resume run --epochs 4"
    assert lines["sample"] == "pdvae sample run"
    for value in ("hidden=16", "temperature=none", "learning_rate=0.002", "seed=0"):
        assert value in out
    size = Path("run/weights.safetensors").stat().st_size
    assert f"{size:,}  weights.safetensors" in out

    status, out, _ = pdvae("info", "run", "--json")
    content = json.loads(out)
    assert (status, content["damaged"], content["weights_epoch"]) == (0, [], 2)
    assert content["num_parameters"] == num_parameters
    assert content["files"]["weights.safetensors"] == size
    assert content["evaluation"]["test"]["elbo"] == scores.elbo
    assert content["stopped"] == {"epoch": 2, "step": 0}


def test_info_of_an_interrupted_run(pdvae: Run) -> None:
    config = json.loads(Path("run/config.json").read_text())
    config["config"]["epochs"] = 50
    Path("run/config.json").write_text(json.dumps(config))
    Path("run").rename("my run")
    status, out, _ = pdvae("info", "my run")
    assert status == 0
    assert "unfinished, 2 of 50 epochs" in out
    assert "pdvae fit --resume 'my run'\n" in out
    Path("my run/last.safetensors").unlink()
    Path("my run/metrics.jsonl").unlink()
    status, out, _ = pdvae("info", "my run")
    assert status == 0
    assert "none that a training could continue from" in out
    assert "--resume" not in out
    assert "unfinished, 0 of 50 epochs" in out


def test_info_of_a_run_that_stopped_early(pdvae: Run) -> None:
    config = json.loads(Path("run/config.json").read_text())
    config["config"] |= {"epochs": 50, "patience": 1, "annealing": 1}
    Path("run/config.json").write_text(json.dumps(config))
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    Path("run/metrics.jsonl").unlink()
    for line in lines:
        append_metrics(Path("run"), {**line, "is_best": line["epoch"] == 1})
    status, out, _ = pdvae("info", "run")
    assert status == 0
    assert "stopped early, 2 of 50 epochs" in out
    assert "--resume" not in out  # for patience would stop it at once


@pytest.mark.parametrize("content", [b"", b'{"x', b"\xff\xfe\n", b"[1]\n", b"[" * 9999 + b"\n"])
@pytest.mark.parametrize(
    "name",
    ["config.json", "metrics.jsonl", "weights.safetensors", "last.safetensors", "evaluation.json"],
)
def test_info_names_the_damaged_part(pdvae: Run, name: str, content: bytes) -> None:
    Path("run", name).write_bytes(content)
    status, out, err = pdvae("info", "run")
    assert (status, err.count("\n")) == (1, 1)
    assert f"run/{name}" in err
    assert err.startswith("pdvae: Expected ")
    for other in ("config.json", "weights.safetensors"):  # the rest is still told
        assert f"  {other}\n" in out
    status, out, _ = pdvae("info", "run", "--json")
    assert status == 1
    assert name in json.loads(out)["damaged"][0]


@pytest.mark.parametrize(
    "figures", [[], {"epoch": 2}, {"epoch": 2, "elbo": "x", "standard_errors": {}}, {"elbo": 1.0}]
)
def test_damaged_figures(pdvae: Run, figures: Any) -> None:
    Path("run/evaluation.json").write_text(json.dumps({"test": figures}))
    for command, expected in (("info", 1), ("compare", 2)):
        status, _, err = pdvae(command, "run")
        assert (status, err.count("\n")) == (expected, 1)
        assert "figures of an evaluation in run/evaluation.json" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "run below runs/; got none"),
        (["evaluate", "nowhere"], "run folder with a config.json; got nowhere"),
        (["evaluate", "run", "--split", "tests"], "Invalid value for '--split'"),
        (["evaluate", "run", "--iw-samples", "-1"], "Invalid value for '--iw-samples'"),
        (["evaluate", "run", "--iw-samples", "1"], "--iw-samples of at least 2, or 0; got 1"),
        (["evaluate", "run", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["evaluate", "run", "--seed", "-1"], "Invalid value for '--seed': "),
        (["evaluate", "run", "--seed", str(2**63)], "Invalid value for '--seed': "),
        (["sample", "run", "--seed", str(10**20)], "Invalid value for '--seed': "),
        (["evaluate", "run", "--device", "tpu"], "--device"),
        (["evaluate", "big", "--exact"], "codes for --exact; got K^D = 8^9 = 134217728"),
        (["evaluate", "other"], "Expected the run's data, mnist-sample from somewhere"),
        (["compare"], "Missing argument"),
        (["compare", "run", "nowhere"], "run folder with a config.json; got nowhere"),
        (["compare", "run", "--split", "tests"], "Invalid value for '--split'"),
        (["info"], "run below runs/; got none"),
        (["info", "nowhere"], "run folder with a config.json; got nowhere"),
        (["info", "file"], "run folder with a config.json; got file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(pdvae: Run, arguments: list[str], message: str) -> None:
    Path("file").touch()
    _untrained("big", num_latents=9, num_categories=8)
    _untrained("other")
    before = Path("run/evaluation.json").read_bytes()
    status, out, err = pdvae(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert Path("run/evaluation.json").read_bytes() == before


def test_every_command_has_an_example(pdvae: Run) -> None:
    for command in ("evaluate", "compare", "info"):
        status, out, _ = pdvae(command, "--help")
        assert status == 0
        assert f"Example: pdvae {command}" in out


def test_aligned() -> None:
    rows = [["run", "ELBO"], ["a", "-1.00"], ["bcde", "-10.00 ± 1"]]
    assert aligned(rows, "<>") == "run         ELBO\na          -1.00\nbcde  -10.00 ± 1"
    assert aligned(rows, "<<").split("\n")[1] == "a     -1.00"


@pytest.mark.parametrize(
    ("gap", "log_p", "far"),
    [(24.1, -16.7, True), (3.8, -119.1, False), (0.9, -2.0, False), (1.0, 0.5, True)],
)
def test_says_that_the_encoder_is_far_from_the_exact_posterior(
    gap: float, log_p: float, far: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = evaluate(make_vae(), tiny_data(5))
    scores = replace(scores, posterior_gap=gap, log_marginal=log_p)
    print_figures(scores, "test", Config())
    assert ("pdvae fit-guide" in capsys.readouterr().out) == far
    print_figures(scores, "test", Config(guide_epochs=5))  # which has trained it already
    shown = capsys.readouterr().out
    assert ("far from p(z|x): --posterior exact" in shown) == far
    assert "pdvae fit-guide" not in shown
    print_figures(scores, "test", Config(), posterior="exact")
    assert "pdvae fit-guide" not in capsys.readouterr().out
