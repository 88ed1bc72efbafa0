"""Tests of opening data by name or path."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from pyro_dvae.data import (
    TORCHVISION_SETS,
    DataError,
    Rows,
    SubsetRows,
    load_images,
    open_source,
)
from pyro_dvae.data.read.images import ImageRows

NAMES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]


def everything(rows: Rows | None) -> torch.Tensor:
    assert rows is not None
    return rows.read(torch.arange(len(rows)))


def labels_of(rows: Rows | None) -> Any:
    assert rows is not None
    return None if rows.labels is None else rows.labels.tolist()


def write_idx(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(array, np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_set(folder: Path, suffix: str = "-ubyte", shape: tuple[int, ...] = (2, 3)) -> None:
    for i, name in enumerate(NAMES):
        array = [1, 0] if "labels" in name else np.full((2, *shape), i)
        write_idx(folder / f"{name}{suffix}", array)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No download, an empty cache; return the cache."""

    def fail(root: str, **options: Any) -> None:
        if options.get("download"):
            raise RuntimeError("no network")
        raise RuntimeError("Dataset not found.")

    for name in ("MNIST", "CIFAR10", "CIFAR100", "QMNIST", "USPS", "SVHN", "Omniglot"):
        monkeypatch.setattr(torchvision.datasets, name, fail)
    for name in ("FashionMNIST", "KMNIST", "EMNIST"):
        cls = getattr(torchvision.datasets, name)
        monkeypatch.setattr(cls, "__init__", lambda self, root, **options: fail(root, **options))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PDVAE_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "xdg" / "pyro_dvae"


class TestNames:
    @pytest.mark.parametrize("name", [None, "mnist-sample"])
    def test_mnist_is_what_load_images_loads(self, name: str | None) -> None:
        images, source = load_images(name), open_source(name)
        assert source.name == images.name == "mnist-sample"
        assert (source.where, source.notice) == (images.source, images.notice)
        assert torch.equal(everything(source.train), images.train)
        assert torch.equal(everything(source.test), images.test)
        assert labels_of(source.test) == images.test_labels.tolist()

    def test_a_name_before_a_path(self, tmp_path: Path) -> None:
        Path("mnist").mkdir()
        with pytest.raises(DataError, match="Expected MNIST"):
            open_source("mnist")
        for path in ("./mnist", Path("mnist").resolve()):
            with pytest.raises(DataError, match="Expected images"):
                open_source(path)

    @pytest.mark.parametrize("layout", ["FashionMNIST/raw", "fashion-mnist", "."])
    @pytest.mark.parametrize("suffix", ["-ubyte", "-ubyte.gz"])
    def test_idx_sets(self, tmp_path: Path, layout: str, suffix: str) -> None:
        write_set(tmp_path / "d" / layout, suffix, (28, 28))
        source = open_source("fashion-mnist", data_dir="d")
        assert (source.name, source.where, source.notice) == ("fashion-mnist", "d", None)
        assert everything(source.train).unique().tolist() == [0]
        assert everything(source.test).unique().tolist() == [2]
        assert source.train.event_shape == (28, 28)
        assert source.train.label_names is not None
        assert source.train.label_names[:2] == ("T-shirt/top", "Trouser")

    def test_the_top_of_a_folder_that_was_not_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Path
    ) -> None:
        write_set(tmp_path / "d")  # MNIST's own, say
        monkeypatch.setenv("PDVAE_DATA_DIR", "d")
        with pytest.raises(DataError, match=r"the download failed .no network"):
            open_source("kmnist")
        write_set(offline / "KMNIST" / "raw")
        assert open_source("kmnist").where == str(offline)
        write_set(tmp_path / "d" / "kmnist")
        assert open_source("kmnist").where == "d"

    def test_emnist(self, offline: Path) -> None:
        for split, labels in (("balanced", [46, 0]), ("letters", [1, 26])):
            for part in ("train", "test"):
                stem = f"EMNIST/raw/emnist-{split}-{part}"
                write_idx(offline / f"{stem}-images-idx3-ubyte", np.zeros((2, 28, 28)))
                write_idx(offline / f"{stem}-labels-idx1-ubyte", labels)
        source = open_source("emnist")
        assert source.notice is not None
        assert "split balanced; its images lie on their sides" in source.notice
        assert source.train.label_names is not None
        assert (len(source.train.label_names), labels_of(source.test)) == (47, [46, 0])
        names = open_source("emnist-letters").train.label_names
        assert names is not None
        assert names[26] == "z"

    def test_a_download(self, monkeypatch: pytest.MonkeyPatch, offline: Path) -> None:
        def succeed(self: Any, root: str, *, train: bool, download: bool) -> None:
            write_set(Path(root) / "KMNIST" / "raw")

        monkeypatch.setattr(torchvision.datasets.KMNIST, "__init__", succeed)
        assert labels_of(open_source("kmnist").train) == [1, 0]
        monkeypatch.setattr(torchvision.datasets.FashionMNIST, "__init__", lambda *a, **b: None)
        with pytest.raises(DataError, match="the download left nothing"):
            open_source("fashion-mnist")

    @pytest.mark.parametrize(
        ("name", "cls"), [("cifar10", "CIFAR10"), ("omniglot", "Omniglot"), ("svhn", "SVHN")]
    )
    def test_sets_that_torchvision_reads(
        self, monkeypatch: pytest.MonkeyPatch, name: str, cls: str
    ) -> None:
        class Fake(torch.utils.data.Dataset[Any]):
            classes = ("plane", "car")

            def __init__(self, root: str, **options: Any) -> None:
                assert root == "d"
                self.part = next(iter(options.values()))

            def __len__(self) -> int:
                return 3 if self.part in (True, "train") else 2

            def __getitem__(self, i: int) -> Any:
                return Image.new("RGB", (5, 4), (i, 0, 0)), i % 2

        monkeypatch.setattr(torchvision.datasets, cls, Fake)
        source = open_source(name, data_dir=Path("d"))
        assert everything(source.train).shape == (3, 3, 4, 5)
        assert everything(source.test)[:, 0, 0, 0].tolist() == [0, 1]
        assert (labels_of(source.train), source.train.label_names) == ([0, 1, 0], Fake.classes)

        def needs(root: str, **options: Any) -> None:
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

        monkeypatch.setattr(torchvision.datasets, cls, needs)
        with pytest.raises(DataError, match=r"Expected the package scipy, to read .*pip install"):
            open_source(name, data_dir="d")

    @pytest.mark.parametrize("name", TORCHVISION_SETS)
    def test_what_cannot_be_had(self, name: str) -> None:
        for options in ({}, {"data_dir": "nowhere"}):
            with pytest.raises(DataError, match=f"^Expected {name} ") as error:
                open_source(name, **options)
            assert "\n" not in str(error.value)
            assert ("no network" in str(error.value)) == (not options)


class TestIdx:
    def test_a_folder(self, tmp_path: Path) -> None:
        write_set(tmp_path / "my idx")
        source = open_source(tmp_path / "my idx")
        assert source.name == "my idx"
        assert everything(source.test).shape == (2, 2, 3)
        assert labels_of(source.train) == [1, 0]
        (tmp_path / "my idx/t10k-images-idx3-ubyte").unlink()
        with pytest.raises(DataError, match=r"got no t10k-images-idx3-ubyte. Add the files"):
            open_source(tmp_path / "my idx")
        (tmp_path / "my idx/t10k-labels-idx1-ubyte").unlink()
        assert open_source(tmp_path / "my idx").test is None

    @pytest.mark.parametrize("suffix", ["-ubyte", "-ubyte.gz"])
    @pytest.mark.parametrize("other", ["-ubyte", "-ubyte.gz"])
    def test_a_file_and_its_labels(self, tmp_path: Path, suffix: str, other: str) -> None:
        write_idx(tmp_path / f"some-images-idx3{suffix}", np.ones((2, 3, 3)))
        write_idx(tmp_path / f"some-labels-idx1{other}", [4, 5])
        assert labels_of(open_source(f"some-images-idx3{suffix}").train) == [4, 5]
        np.save("y.npy", ["u", "v"])
        source = open_source(f"some-images-idx3{suffix}", labels="y.npy")
        assert source.train.label_names == ("u", "v")

    def test_any_name_and_rank(self, tmp_path: Path) -> None:
        write_idx(tmp_path / "numbers", np.arange(12).reshape(3, 4))
        source = open_source("numbers")
        assert (source.train.event_shape, labels_of(source.train)) == ((4,), None)
        assert everything(source.train)[2].tolist() == [8, 9, 10, 11]


class TestLabels:
    def test_of_arrays(self, tmp_path: Path) -> None:
        x = np.zeros((2, 3))
        np.savez("x.npz", x=x, labels=[1, 2], kind=["b", "a"])
        np.save("x.npy", x)
        np.savez("y.npz", whatever=[5, 6])
        write_idx(tmp_path / "y-idx", [7, 8])
        assert labels_of(open_source("x.npz", key="x").train) == [1, 2]
        train = open_source("x.npz", key="x", labels="kind").train
        assert (labels_of(train), train.label_names) == ([1, 0], ("a", "b"))
        assert labels_of(open_source("x.npy").train) is None
        for data in ("x.npy", "x.npz"):
            key = "x" if data == "x.npz" else None
            assert labels_of(open_source(data, key=key, labels="y.npz").train) == [5, 6]
            assert labels_of(open_source(data, key=key, labels=Path("y-idx")).train) == [7, 8]

    def test_a_key_that_is_left_over(self) -> None:
        np.savez("x.npz", x=np.zeros((2, 3)), kind=["b", "a"])
        assert labels_of(open_source("x.npz", labels="kind").train) == [1, 0]

    def test_of_tables(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("a,b,kind\n1,2,u\n3,4,v\n")
        source = open_source("x.csv", columns=["b"], labels="kind")
        assert (source.train.event_shape, source.train.label_names) == ((1,), ("u", "v"))
        assert SubsetRows(source.train, torch.tensor([1])).labels == torch.tensor([1])


def test_images(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "my: photos" / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 3)).save(tmp_path / "my: photos" / name)
    source = open_source("my: photos", size=(2, 2), channels=1)
    assert (source.name, source.where, source.test) == ("my: photos", "my: photos", None)
    assert isinstance(source.train, ImageRows)
    assert (source.train.event_shape, labels_of(source.train)) == ((2, 2), [0, 1])


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        ("", {}, "Expected a file, a folder, or one of mnist, .*; got ''"),
        ("nowhere.npy", {}, "got 'nowhere.npy', which is not there. Check the path"),
        ("fashion_mnist", {}, "Did you mean fashion-mnist?"),
        ("minst", {}, "Did you mean mnist?"),
        ("x.pt", {}, r"Expected .npy, .npz, .csv, .tsv, .parquet, IDX, .*; got x.pt. Convert it"),
        ("empty", {}, "got empty, which is empty. Convert"),
        ("mnist-sample", {"key": "x"}, "key=... with .npz; got it with the name of a data set"),
        ("x.csv", {"data_dir": "d"}, "data_dir=... with the name of a data set; got it with .csv"),
        ("x.csv", {"size": (2, 2)}, "size=... with a folder of images; got it with .csv. Leave"),
        (
            "x.npy",
            {"columns": ["a"]},
            "columns=... with .csv or .tsv or .parquet or values of a program; got it with .npy",
        ),
        (".", {"labels": "y"}, "labels=... with .npy or .*; got it with a folder of images"),
        (".", {"channels": 2}, "1 or 3 channels; got 2"),
        (".", {"size": (0, 2)}, r"at least 1; got \(0, 2\). Use size="),
        ("x.npy", {"labels": "x.csv"}, "labels in a .npy, .npz or IDX file; got x.csv"),
        ("x.npy", {"labels": "nowhere"}, "got 'nowhere', which is not there"),
        ("x.npy", {"labels": "x.npy"}, r"names, shape \(N,\), as labels in x.npy; got float64 of"),
        ("x.npy", {"labels": "three.npy"}, r"labels of shape \(2,\), one for each row; got \(3,\)"),
        ("x.npz", {"labels": "kind"}, "labels among the arrays in x.npz: x, y; got 'kind'. Name"),
        ("half.gz", {}, "Expected a whole IDX file of unsigned bytes; got half.gz"),
        ("half-idx", {}, "it has 9 bytes, not"),
    ],
)
def test_refused(tmp_path: Path, data: str, options: Any, match: str) -> None:
    np.save("x.npy", np.zeros((2, 3)))
    np.save("three.npy", np.zeros(3))
    np.savez("x.npz", x=np.zeros((2, 3)), y=[0, 1])
    (tmp_path / "x.csv").write_text("a\n1\n")
    (tmp_path / "x.pt").write_bytes(b"PK\3\4")
    (tmp_path / "empty").touch()
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"\0\0\x08\1\0\0\0\1\0")[:-5])
    (tmp_path / "half-idx").write_bytes(b"\0\0\x08\1\0\0\0\2\0")
    with pytest.raises(DataError, match=match) as error:
        open_source(data, **options)
    assert "\n" not in str(error.value)
