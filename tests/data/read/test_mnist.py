"""Tests of MNIST and its sample; none touches the network or the real cache."""

import gzip
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from pyro_dvae.data import DataError, Images, fingerprint, load_images, read_idx

NAMES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
EXAMPLE = Path(__file__).parents[3] / "examples" / "make_mnist_sample.py"


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def tiny_arrays(num_train: int = 6, num_test: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    return {
        "train_images": rng.randint(0, 256, (num_train, 28, 28)),
        "train_labels": np.arange(num_train) % 10,
        "test_images": rng.randint(0, 256, (num_test, 28, 28)),
        "test_labels": np.arange(num_test) % 10,
    }


def write_mnist(
    folder: Path, arrays: dict[str, np.ndarray] | None = None, *, gz: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for key, array in (arrays or tiny_arrays()).items():
        if gz:
            (folder / f"{NAMES[key]}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / NAMES[key]).write_bytes(idx(array))


@pytest.fixture(autouse=True)
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Point the cache at an empty folder and let each download fail; list their roots."""
    roots: list[str] = []

    def fail(root: str, *, download: bool) -> None:
        roots.append(root)
        assert download
        assert socket.getdefaulttimeout() == 10.0
        print("progress")
        print("progress", file=sys.stderr)
        raise RuntimeError("Error downloading:\n<urlopen error no route>")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PDVAE_DATA_DIR", raising=False)
    return roots


class TestReadIdx:
    @pytest.mark.parametrize("gz", [False, True])
    @pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
    def test_round_trip(self, tmp_path: Path, gz: bool, shape: tuple[int, ...]) -> None:
        array = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
        path = tmp_path / "file"
        path.write_bytes(gzip.compress(idx(array)) if gz else idx(array))
        result = read_idx(path)
        assert result.dtype == np.uint8
        assert result.flags.writeable
        np.testing.assert_array_equal(result, array)

    def test_gzip_is_told_by_content(self, tmp_path: Path) -> None:
        path = tmp_path / "unpacked.gz"
        path.write_bytes(idx(np.arange(3)))
        assert read_idx(str(path)).tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        ("content", "match"),
        [
            (b"", r"magic number is b''"),
            (b"\0\0\x08", r"magic number"),
            (b"\0\0\x0d\x01" + bytes(8), r"magic number is b'.*', not 00 00 08"),
            (b"<html>not found</html>", r"magic number is b'<htm'"),
            (idx(np.zeros((2, 3)))[:-1], r"has 17 bytes, not 18 for its shape \(2, 3\)"),
            (idx(np.zeros((2, 3))) + b"\0", r"has 19 bytes, not 18"),
            (idx(np.zeros((2, 3)))[:7], r"has 7 bytes, not"),
            (b"\0\0\x08\x03" + b"\xff" * 12, r"has 16 bytes, not"),
            (b"\0\0\x08\xff" + bytes(4 * 255), r"got .*file .*dimension"),
            (gzip.compress(idx(np.arange(200)), mtime=0)[:-20], r"\(.*end-of-stream"),
            (gzip.compress(idx(np.arange(200)), mtime=0)[:12], r"got .*file"),
            (b"\x1f\x8b\x08" + b"\xff" * 40, r"got .*file"),
            (gzip.compress(idx(np.arange(9)), mtime=0)[:-8] + bytes(8), r"CRC check failed"),
            (gzip.compress(b"", mtime=0), r"magic number is b''"),
        ],
    )
    def test_damaged_file(self, tmp_path: Path, content: bytes, match: str) -> None:
        path = tmp_path / "the-file"
        path.write_bytes(content)
        with pytest.raises(DataError, match=match) as error:
            read_idx(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    def test_absent_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"Expected a whole IDX file.*No such file"):
            read_idx(tmp_path / "absent")


class TestLoadMnist:
    @pytest.mark.parametrize("gz", [False, True])
    @pytest.mark.parametrize("layout", ["MNIST/raw", "mnist", "."])
    @pytest.mark.parametrize("name", [None, "mnist"])
    def test_layouts(
        self, tmp_path: Path, downloads: list[str], gz: bool, layout: str, name: str | None
    ) -> None:
        arrays = tiny_arrays()
        write_mnist(tmp_path / layout, arrays, gz=gz)
        images = load_images(name, tmp_path)
        assert images.name == "mnist"
        assert images.notice is None
        assert images.source == str(tmp_path)
        for tensor, key in [
            (images.train, "train_images"),
            (images.test, "test_images"),
            (images.train_labels, "train_labels"),
            (images.test_labels, "test_labels"),
        ]:
            assert tensor.dtype == (torch.uint8 if "images" in key else torch.int64)
            np.testing.assert_array_equal(tensor.numpy(), arrays[key])
        assert downloads == []

    def test_plain_and_gzipped_mixed(self, tmp_path: Path) -> None:
        write_mnist(tmp_path)
        plain = tmp_path / NAMES["train_images"]
        (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
        assert len(load_images("mnist", str(tmp_path)).train) == 6

    def test_fullest_layout_wins(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw", {"train_images": np.zeros((9, 28, 28))})
        write_mnist(tmp_path)
        assert len(load_images("mnist", tmp_path).train) == 6

    def test_order_of_folders(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[str]
    ) -> None:
        cache, named, given = tmp_path / "xdg/pyro_dvae", tmp_path / "named", tmp_path / "given"
        write_mnist(cache / "MNIST/raw", tiny_arrays(num_train=1))
        assert len(load_images().train) == 1
        monkeypatch.setenv("PDVAE_DATA_DIR", str(named))
        assert len(load_images().train) == 1
        write_mnist(named, tiny_arrays(num_train=2))
        assert len(load_images().train) == 2
        write_mnist(given, tiny_arrays(num_train=3))
        assert len(load_images(data_dir=given).train) == 3
        assert downloads == []

    def test_cache_without_xdg(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv("HOME", str(tmp_path))
        write_mnist(tmp_path / ".cache/pyro_dvae")
        assert load_images().name == "mnist"

    def test_successful_download(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def succeed(root: str, *, download: bool) -> None:
            write_mnist(Path(root) / "MNIST/raw")

        monkeypatch.setattr(torchvision.datasets, "MNIST", succeed)
        images = load_images()
        assert (images.name, images.notice) == ("mnist", None)
        assert images.source == str(tmp_path / "xdg/pyro_dvae")

    def test_download_that_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torchvision.datasets, "MNIST", lambda root, download: None)
        with pytest.raises(DataError, match=r"Expected the MNIST files in .*; got no"):
            load_images()


class TestMissingMnist:
    @pytest.mark.parametrize("name", [None, "mnist"])
    def test_data_dir_that_does_not_exist(
        self, tmp_path: Path, downloads: list[str], name: str | None
    ) -> None:
        with pytest.raises(DataError, match=r"in .*nowhere; got no such folder\. For the full set"):
            load_images(name, tmp_path / "nowhere")
        assert downloads == []

    @pytest.mark.parametrize("name", [None, "mnist"])
    def test_data_dir_without_files(
        self, tmp_path: Path, downloads: list[str], name: str | None
    ) -> None:
        with pytest.raises(DataError, match=f"got no {', '.join(NAMES.values())}"):
            load_images(name, tmp_path)
        assert downloads == []

    def test_data_dir_with_some_files(self, tmp_path: Path) -> None:
        write_mnist(tmp_path)
        (tmp_path / NAMES["test_labels"]).unlink()
        with pytest.raises(DataError, match=r"got no t10k-labels-idx1-ubyte\."):
            load_images(data_dir=tmp_path)

    def test_notice_when_no_name_is_given(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], downloads: list[str]
    ) -> None:
        images = load_images()
        assert images.name == "mnist-sample"
        notice = images.notice or ""
        assert "\n" not in notice
        for fact in [
            "download failed (Error downloading: <urlopen error no route>)",
            "5,000 training and 1,000 test images",
            "data_dir=",
            "PDVAE_DATA_DIR",
            "train-images-idx3-ubyte",
        ]:
            assert fact in notice
        assert downloads == [str(tmp_path / "xdg/pyro_dvae")]
        assert capfd.readouterr() == ("", "")

    def test_error_when_mnist_is_named(self) -> None:
        with pytest.raises(
            DataError,
            match=r"Expected MNIST in .*download failed \(Error.*data_dir=.*PDVAE_DATA_DIR"
            r".*mnist-sample.*5,000 training and 1,000 test",
        ) as error:
            load_images("mnist")
        assert "\n" not in str(error.value)

    def test_no_download(self, downloads: list[str]) -> None:
        assert "downloading is turned off" in (load_images(download=False).notice or "")
        with pytest.raises(DataError, match="downloading is turned off"):
            load_images("mnist", download=False)
        assert downloads == []

    def test_notice_names_the_folder_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PDVAE_DATA_DIR", str(tmp_path / "typo"))
        assert str(tmp_path / "typo") in (load_images().notice or "")

    @pytest.mark.parametrize(
        "error", [URLError("no route"), OSError("disk full"), ImportError("no torchvision")]
    )
    def test_other_failures(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(root: str, *, download: bool) -> None:
            raise error

        monkeypatch.setattr(torchvision.datasets, "MNIST", fail)
        assert str(error) in (load_images().notice or "")

    def test_socket_timeout_is_restored(self) -> None:
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(77.0)
        try:
            load_images()
            assert socket.getdefaulttimeout() == 77.0
        finally:
            socket.setdefaulttimeout(before)

    def test_unknown_name(self) -> None:
        with pytest.raises(DataError, match=r"'mnist', 'mnist-sample'.*got 'cifar'"):
            load_images("cifar")


class TestDamagedMnist:
    @pytest.mark.parametrize("name", [None, "mnist"])
    @pytest.mark.parametrize("key", NAMES)
    def test_truncated_gzip(self, tmp_path: Path, name: str | None, key: str) -> None:
        write_mnist(tmp_path, gz=True)
        path = tmp_path / f"{NAMES[key]}.gz"
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(DataError, match=f"got .*{path.name} .*Replace the file"):
            load_images(name, tmp_path)

    @pytest.mark.parametrize(
        ("key", "array", "match"),
        [
            ("train_images", np.zeros((6, 28, 27)), r"got \(6, 28, 27\) in .*train-images-idx3"),
            ("train_images", np.zeros((6, 784)), r"got \(6, 784\) in .*train-images-idx3"),
            ("test_images", np.zeros((3, 28, 28)), r"\(3, 28, 28\) in .*t10k.*with \(4,\)"),
            ("train_labels", np.zeros(5), r"\(6, 28, 28\) in .* with \(5,\) in .*train-labels"),
            ("test_labels", np.zeros((4, 1)), r"with \(4, 1\) in .*t10k-labels"),
        ],
    )
    def test_wrong_shapes(self, tmp_path: Path, key: str, array: np.ndarray, match: str) -> None:
        write_mnist(tmp_path, tiny_arrays() | {key: array})
        with pytest.raises(DataError, match=match):
            load_images(data_dir=tmp_path)

    def test_empty_part(self, tmp_path: Path) -> None:
        write_mnist(tmp_path, tiny_arrays(num_test=0))
        with pytest.raises(DataError, match=r"N > 0 labels; got \(0, 28, 28\) in .*t10k"):
            load_images(data_dir=tmp_path)

    def test_damage_is_never_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_mnist(tmp_path / "named")
        (tmp_path / "named" / NAMES["train_images"]).write_bytes(b"")
        monkeypatch.setenv("PDVAE_DATA_DIR", str(tmp_path / "named"))
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte .its magic number"):
            load_images()


class TestSample:
    def test_contents(self, downloads: list[str]) -> None:
        images = load_images("mnist-sample")
        assert (images.name, images.notice) == ("mnist-sample", None)
        assert images.source == "bundled sample"
        assert images.train.shape == (5000, 28, 28)
        assert images.test.shape == (1000, 28, 28)
        assert images.train.dtype == images.test.dtype == torch.uint8
        assert images.train_labels.dtype == images.test_labels.dtype == torch.int64
        assert torch.bincount(images.train_labels).tolist() == [500] * 10
        assert torch.bincount(images.test_labels).tolist() == [100] * 10
        assert images.train.amax((1, 2)).min() > 128
        assert len(images.train.flatten(1).unique(dim=0)) == 5000
        assert downloads == []

    @pytest.mark.slow
    def test_script(self, tmp_path: Path) -> None:
        arrays = tiny_arrays(num_train=5200, num_test=1100)
        write_mnist(tmp_path, arrays)
        out = tmp_path / "out.npz"
        subprocess.run(
            [sys.executable, str(EXAMPLE), str(tmp_path), str(out)],
            check=True,
            env=os.environ | {"PYTHONPATH": str(EXAMPLE.parent.parent)},
        )
        with np.load(out, allow_pickle=False) as sample:
            assert {key: sample[key].shape for key in sample} == {
                "train_images": (5000, 28, 28),
                "train_labels": (5000,),
                "test_images": (1000, 28, 28),
                "test_labels": (1000,),
            }
            assert all(sample[key].dtype == np.uint8 for key in sample)
            assert np.bincount(sample["train_labels"]).tolist() == [500] * 10
            assert np.bincount(sample["test_labels"]).tolist() == [100] * 10
            known = {
                image.astype(np.uint8).tobytes(): label
                for image, label in zip(arrays["test_images"], arrays["test_labels"], strict=True)
            }
            for image, label in zip(sample["test_images"], sample["test_labels"], strict=True):
                assert known[image.tobytes()] == label


class TestFingerprint:
    def images(self, **changed: Any) -> Images:
        return load_images("mnist-sample")._replace(**changed)

    def test_is_the_contents_alone(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "here")
        write_mnist(tmp_path / "there/mnist", gz=True)
        here, there = (load_images(data_dir=tmp_path / name) for name in ("here", "there"))
        assert fingerprint(here) == fingerprint(there)
        assert fingerprint(here) != fingerprint(self.images())

    def test_is_the_same_everywhere(self) -> None:
        images = self.images()
        assert fingerprint(images) == "1595a8ab8b18dee2"
        mirrored = images.train.transpose(1, 2).contiguous().transpose(1, 2)
        assert not mirrored.is_contiguous()
        assert fingerprint(self.images(train=mirrored, name="x", source="x")) == "1595a8ab8b18dee2"

    @pytest.mark.parametrize("part", ["train", "test", "train_labels", "test_labels"])
    def test_tells_every_change(self, part: str) -> None:
        whole = fingerprint(self.images())
        values = getattr(self.images(), part)
        changed = values.clone()
        changed.view(-1)[-1] += 1
        for other in (changed, values[:-1], values[None], values.to(torch.int32), values.flip(0)):
            assert fingerprint(self.images(**{part: other})) != whole

    def test_tells_which_part_is_which(self) -> None:
        images = self.images()
        swapped = images._replace(train=images.test, test=images.train)
        assert fingerprint(swapped) != fingerprint(images)
