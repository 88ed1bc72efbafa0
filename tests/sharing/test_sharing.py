"""Runs that people share: what leaves the machine, and what comes back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard, ModelCardData, PyTorchModelHubMixin
from huggingface_hub.repocard_data import eval_results_to_model_index
from torch import nn

from pyro_dvae import Config, DiscreteVAE, build_vae, load_run
from pyro_dvae.data import open_source
from pyro_dvae.runs import start_guide, start_run
from pyro_dvae.sharing import FILES, describe_shared, pull_run, push_run, share_run
from pyro_dvae.sharing.private import last
from pyro_dvae.streams import RandomStream

SECRET = "7.6543"
"""A value of a row that is neither the least nor the greatest."""
PATIENT = "patient-of-row-17"
"""What a row is called, which the model does not see."""
SMALL: dict[str, Any] = {"hidden": (4,), "num_latents": 2, "num_categories": 3, "epochs": 1}
SMALL |= {"estimator": "rloo", "batch_size": 50, "patience": None, "guide_epochs": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, files beside them, and two runs."""
    torch.set_default_dtype(torch.float32)
    home = tmp_path_factory.mktemp("ann-smith")
    with RandomStream(0):
        table = torch.randn(60, 2)
        counts = torch.randint(9, (60, 5))
    rows = ["id,height,weight,island,kind"]
    for i, (x, y) in enumerate(table.tolist()):
        name = PATIENT if i == 17 else f"other{i}"
        shown = SECRET if i == 17 else f"{10 + x:.4f}"
        rows.append(f"{name},{shown},{y:.4f},{('north', 'south')[i % 2]},{'ab'[i // 2 % 2]}")
    (home / "table.csv").write_text("\n".join(rows) + "\n")
    np.save(home / "counts.npy", counts[:40].numpy())
    np.save(home / "test.npy", counts[40:].numpy())
    np.save(home / "classes.npy", np.arange(40) % 2)
    groups = "\n".join(f"visit{i // 2}" for i in range(40))
    (home / "visits.csv").write_text(f"visit\n{groups}\n")
    sources = {
        "table": open_source(home / "table.csv", labels="kind", ids="id"),
        "counts": open_source(
            home / "counts.npy", labels=home / "classes.npy", group=home / "visits.csv"
        ),
    }
    tests = {"table": 20, "counts": str(home / "test.npy")}
    for name, source in sources.items():
        likelihood = {"table": "mixed", "counts": "poisson"}[name]
        settings = {**SMALL, "likelihood": likelihood, "test": tests[name], "validation": 10}
        with start_run(source, home / name, **settings) as training:
            list(training.epochs())
            training.finish()
    return home


@pytest.fixture(autouse=True)
def single() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["table", "counts"])
def run(home: Path, request: pytest.FixtureRequest) -> Path:
    return home / str(request.param)


@pytest.fixture
def shared(run: Path, home: Path, tmp_path: Path) -> Path:
    """The shared folder of a run, which is written once for all tests."""
    made = home.parent / f"{home.name}-{run.name}-shared"
    if not made.exists():
        share_run(run, made)
    shutil.copytree(made, tmp_path / "shared")
    return tmp_path / "shared"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_bytes().decode(errors="replace") for path in folder.iterdir()}


def test_what_leaves_is_what_the_line_says(home: Path, run: Path, shared: Path) -> None:
    assert set(FILES) == set(contents(shared))
    for name, text in contents(shared).items():
        assert SECRET not in text, name
        assert PATIENT not in text, name
        assert home.name not in text, name
        assert str(Path.home()) not in text, name
        assert str(home.parent) not in text, name
    told = describe_shared(load_run(run))
    assert "no rows of the data and no paths of this machine" in told
    if run.name == "table":
        assert "the names of 3 columns, the names of the levels of island" in told
        assert "the names of 2 classes, the name table.csv" in told


def test_a_second_stage_does_not_tell_where_the_first_lies(home: Path, tmp_path: Path) -> None:
    first = load_run(home / "counts")
    with start_guide(first, tmp_path / "second", epochs=1, patience=None) as training:
        list(training.epochs())
    share_run(tmp_path / "second", tmp_path / "shared")
    assert not [name for name, text in contents(tmp_path / "shared").items() if home.name in text]
    stage = pull_run(tmp_path / "shared", tmp_path / "pulled").data.second_stage
    assert stage is not None
    assert stage.run == "counts"


def test_a_pulled_run_gives_the_same_figures(
    home: Path, run: Path, shared: Path, tmp_path: Path
) -> None:
    before = load_run(run)
    pulled = pull_run(shared, tmp_path / "pulled")
    assert pulled.folder == tmp_path / "pulled"
    assert pulled.evaluation == before.evaluation != {}
    assert pulled.metrics == before.metrics != []
    assert (pulled.status, pulled.epoch, pulled.version) == (
        "complete",
        before.epoch,
        before.version,
    )
    weights = pulled.vae.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in before.vae.state_dict().items())
    # The files of the data are found by their names, also those beside them and the test part.
    data_dir = tmp_path / "elsewhere"
    data_dir.mkdir()
    for path in home.iterdir():
        if path.is_file():
            shutil.copy(path, data_dir)
    rows, its = pulled.rows("test", data_dir=data_dir), before.rows("test")
    assert torch.equal(rows.x[:], its.x[:])
    assert len(rows.x) == 20
    for labels in (rows.labels, its.labels):
        assert (labels is None) == (run.name == "counts")
    with RandomStream(1):
        sample = pulled.vae.sample(3)
    with RandomStream(1):
        assert torch.equal(sample, before.vae.sample(3))


@pytest.mark.slow
def test_commands_work_on_a_pulled_run(
    home: Path, pdvae: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    status, out, err = pdvae("push", home / "table", "-o", "shared", "--license", "mit")
    assert (status, err) == (0, "")
    assert out.startswith("shared: README.md, config.json, model.safetensors, ")
    assert "no rows of the data" in out
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "pdvae fit --data table.csv" in card
    assert "pdvae pull OWNER/NAME -o run" in card
    assert pdvae("pull", "shared", "-o", "pulled")[0] == 0
    for command in (
        ["evaluate", "--json"],
        ["encode", "-o", "{}.csv"],
        ["sample", "-o", "{}s.csv"],
    ):
        outs = []
        for folder, where in ((home / "table", []), ("pulled", ["--data-dir", home])):
            where = [] if command[0] == "sample" else where
            options = [option.format(Path(folder).name) for option in command[1:]]
            status, out, err = pdvae(command[0], folder, *options, *where)
            assert status == 0, err
            outs.append(json.loads(out) if command[0] == "evaluate" else options[-1])
        if command[0] == "evaluate":
            one, other = ({**out, "run": None, "seconds": None, "data": None} for out in outs)
            assert one == other
        else:
            assert Path(outs[0]).read_bytes() == Path(outs[1]).read_bytes()


@pytest.mark.slow
def test_the_hub_reads_the_card(run: Path, tmp_path: Path) -> None:
    share_run(run, tmp_path, license="cc-by-4.0", name="my-model")
    card = ModelCard.load(tmp_path / "README.md")
    data = card.data
    assert isinstance(data, ModelCardData)
    assert (data.library_name, data.license) == ("pyro_dvae", "cc-by-4.0")
    assert {"discrete-latents", "tables"} <= set(data.tags or ())
    found = {result.metric_type: result for result in data.eval_results or ()}
    assert data.metrics == list(found)
    stored = load_run(run).evaluation["test"]
    for name, result in found.items():
        assert result.metric_value == pytest.approx(vars(stored)[name], abs=1e-4)
        assert result.dataset_name == {"table": "table.csv", "counts": "counts.npy"}[run.name]
    # The library writes what it reads: nothing of the front matter is unknown to it.
    index = eval_results_to_model_index("my-model", data.eval_results or [])
    assert data.to_dict()["model-index"] == index
    assert "| = ELBO |" in card.text
    assert f"{stored.elbo:.2f}" in card.text
    assert "open_source(" in card.text
    assert "standard error" in card.text


@pytest.mark.slow
def test_a_card_of_hostile_names_is_text(home: Path, tmp_path: Path) -> None:
    name = 'x"\n---\n| <script>alert(1)</script> `` \\'
    share_run(home / "table", tmp_path, name=name)
    text = (tmp_path / "README.md").read_text()
    assert "<script>" not in text.split("\n---\n", 2)[1]
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.model_name == name.replace("\n", " ")
    with pytest.raises(ValueError, match="Expected license="):
        share_run(home / "table", tmp_path / "other", license="mit\nfoo: bar")


@pytest.mark.slow
def test_without_its_data_a_run_shares_the_stored_figures(home: Path, tmp_path: Path) -> None:
    for name in ("table", "table.csv"):
        copy = shutil.copytree if (home / name).is_dir() else shutil.copy
        copy(home / name, tmp_path / name)
    config = tmp_path / "table" / "config.json"
    config.write_text(config.read_text().replace(str(home), str(tmp_path / "gone")))
    share_run(tmp_path / "table", tmp_path / "shared")
    text = (tmp_path / "shared" / "README.md").read_text()
    elbo = load_run(home / "table").evaluation["test"].elbo
    assert f"| elbo | {elbo:.2f} |" in text
    assert "gone" not in text
    share_run(tmp_path / "table", tmp_path / "shared", data_dir=tmp_path)  # replaces its own files
    assert "| = ELBO |" in (tmp_path / "shared" / "README.md").read_text()


def test_no_other_files_are_replaced(home: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"which holds notes\.txt"):
        share_run(home / "table", tmp_path)
    assert contents(tmp_path) == {"notes.txt": "mine"}


# --- The hub's own library ---


class Mixed(nn.Module, PyTorchModelHubMixin):
    """A model of that library, which builds itself from config.json."""

    def __init__(self, config: dict[str, Any], event_shape: list[int]) -> None:
        super().__init__()
        for name, value in build_vae(Config(**config), tuple(event_shape)).named_children():
            self.add_module(name, value)


def test_the_layout_is_that_of_the_mixin(run: Path, shared: Path, tmp_path: Path) -> None:
    model = Mixed.from_pretrained(shared)
    before = load_run(run).vae
    weights = model.state_dict()
    assert weights.keys() == before.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in before.state_dict().items())
    config = json.loads((shared / "config.json").read_text())
    model.save_pretrained(tmp_path / "theirs", config=config)
    assert (tmp_path / "theirs" / "model.safetensors").is_file()
    pulled = pull_run(tmp_path / "theirs", tmp_path / "pulled").vae
    assert isinstance(pulled, DiscreteVAE)
    assert all(torch.equal(value, weights[name]) for name, value in pulled.state_dict().items())


class Hub:
    """What HfApi would send to the network, and what the network would answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.asked: list[str] = []
        self.private: bool | None = None
        for name in ("create_repo", "create_commit", "model_info", "hf_hub_download"):
            monkeypatch.setattr(HfApi, name, getattr(self, name))

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        self.private = private
        return f"https://hub/{repo_id}"

    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> None:
        assert repo_id == "ann/penguins"
        assert commit_message.startswith("Share a run of pyro_dvae ")
        for operation in operations:
            with operation.as_file() as file:
                self.files[operation.path_in_repo] = file.read()

    def model_info(self, repo_id: str, *, files_metadata: bool) -> Any:
        from huggingface_hub.hf_api import ModelInfo

        assert files_metadata
        siblings = [
            {"rfilename": name, "size": self.sizes.get(name, len(content))}
            for name, content in self.files.items()
        ]
        return ModelInfo(id=repo_id, sha="c0ffee", siblings=siblings)

    def hf_hub_download(self, repo_id: str, name: str, *, revision: str, local_dir: str) -> None:
        assert (repo_id, revision) == ("ann/penguins", "c0ffee")
        self.asked.append(name)
        Path(local_dir).mkdir(exist_ok=True)
        (Path(local_dir) / name).write_bytes(self.files[name])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.mark.slow
def test_an_upload_is_the_shared_folder(home: Path, tmp_path: Path, hub: Hub) -> None:
    pushed = push_run(home / "table", "ann/penguins", license="mit")
    share_run(home / "table", tmp_path / "shared", license="mit", name="penguins")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "shared").iterdir()}
    assert hub.files == expected
    assert hub.private is True
    assert pushed.url == "https://hub/ann/penguins"
    assert pushed.files == {name: len(content) for name, content in expected.items()}


@pytest.mark.slow
def test_a_download_takes_the_files_of_a_run_alone(
    home: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(home / "table", "ann/penguins", private=False)
    assert hub.private is False
    hub.files |= {"../../evil.py": b"x", "modeling.py": b"x", "pytorch_model.bin": b"x"}
    monkeypatch.chdir(tmp_path)
    pulled = pull_run("ann/penguins")
    assert sorted(hub.asked) == sorted(FILES)
    assert pulled.folder == Path("runs/penguins-1")
    assert pulled.evaluation == load_run(home / "table").evaluation


@pytest.mark.parametrize("run", ["table"], indirect=True)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md"])
def test_a_file_that_is_too_large_is_not_downloaded(
    shared: Path, tmp_path: Path, hub: Hub, name: str
) -> None:
    hub.files = {path.name: path.read_bytes() for path in shared.iterdir()}
    hub.sizes[name] = 2**40
    with pytest.raises(ValueError, match=rf"Expected at most [\d,]+ bytes in {name}"):
        pull_run("ann/penguins", tmp_path / "run")
    assert name not in hub.asked
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["push", "pull"])
def test_a_hub_that_does_not_answer_is_one_line(
    home: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strange(Exception):
        """As those of the package that the library asks the network by."""

    def silent(*args: Any, **kwargs: Any) -> None:
        raise Strange("nobody\nthere")

    for name in ("create_repo", "model_info"):
        monkeypatch.setattr(HfApi, name, silent)
    with pytest.raises(OSError, match=r"Expected a hub .*; got: nobody\. Look at") as found:
        push_run(home / "table", "ann/x") if what == "push" else pull_run("ann/x")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["nothere", "a/b/c", "/etc", "a/", "../x/y"])
def test_names_that_cannot_be(name: str, home: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected (a folder that is there|config\.json)"):
        pull_run(name)
    if name != "/etc":
        with pytest.raises(ValueError, match="OWNER/NAME"):
            push_run(home / "table", name)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/b.csv", "b.csv"), ("../../x", "x"), ("C:\\Users\\ann\\d.npy", "d.npy"), ("/..", "data")],
)
def test_the_last_name_of_a_path(path: str, name: str) -> None:
    assert last(path) == name
