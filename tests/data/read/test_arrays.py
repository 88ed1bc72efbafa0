"""Tests of reading a user's own arrays; a bad file is one line."""

import copy
import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_dvae.data import DataError, load_array
from pyro_dvae.data.read.array_rows import ArrayRows

GREY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def save(path: Path, array: Any = GREY, **named: Any) -> Path:
    """Write one array, or the named ones, as the suffix says."""
    if named:
        np.savez(path, **named)
    else:
        np.save(path, array, allow_pickle=True)
    return path


class TestLoadArray:
    @pytest.mark.parametrize("suffix", ["npy", "npz", "NPZ"])
    def test_round_trip(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"x.{suffix}"
        with path.open("wb") as file:
            np.save(file, GREY) if suffix == "npy" else np.savez(file, whatever=GREY)
        for name in (path, str(path)):
            values, labels = load_array(name)
            assert values.dtype == torch.uint8
            assert values.tolist() == GREY.tolist()
            assert labels is None

    @pytest.mark.parametrize(
        "dtype",
        ["bool", "u1", "i1", "<i2", ">i2", ">i4", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8"],
    )
    def test_dtypes_are_kept_and_byte_orders_mended(self, tmp_path: Path, dtype: str) -> None:
        array = np.array([[0, 1], [1, 0]], dtype)
        values, _ = load_array(save(tmp_path / "x.npy", array))
        assert str(values.dtype) == f"torch.{array.dtype.name}"
        assert values.tolist() == array.tolist()

    @pytest.mark.parametrize(("dtype", "wider"), [("<u2", torch.int32), (">u4", torch.int64)])
    def test_unsigned_integers_widen(self, tmp_path: Path, dtype: str, wider: torch.dtype) -> None:
        array = np.array([0, np.iinfo(dtype).max], dtype)
        values, _ = load_array(save(tmp_path / "x.npy", array))
        assert values.dtype == wider
        assert values.tolist() == array.tolist()

    @pytest.mark.parametrize(
        "layout", [np.asfortranarray, lambda a: a[::-1, :, ::2], lambda a: a.swapaxes(0, 2)]
    )
    def test_layouts(self, tmp_path: Path, layout: Callable[[Any], Any]) -> None:
        array = layout(GREY)
        values, _ = load_array(save(tmp_path / "x.npy", array))
        assert values.is_contiguous()
        assert values.tolist() == array.tolist()

    @pytest.mark.parametrize("labels", ["labels", "y"])
    @pytest.mark.parametrize("dtype", ["u1", "i8", ">f8", "bool"])
    def test_labels_are_carried_along(self, tmp_path: Path, labels: str, dtype: str) -> None:
        path = save(tmp_path / "x.npz", **{labels: np.array([1, 0], dtype), "x": GREY})
        for key in (None, "x"):
            values, found = load_array(path, key)
            assert values.tolist() == GREY.tolist()
            assert found is not None
            assert found.dtype == torch.int64
            assert found.tolist() == [1, 0]

    def test_labels_before_y(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.npz", x=GREY, y=np.zeros(2), labels=np.ones(2))
        assert load_array(path).labels.tolist() == [1, 1]  # type: ignore[union-attr]

    def test_labels_alone_are_data(self, tmp_path: Path) -> None:
        assert load_array(save(tmp_path / "x.npz", y=GREY)).labels is None
        path = save(tmp_path / "x.npz", x=GREY, labels=np.arange(2))
        values, labels = load_array(path, "labels")
        assert values.tolist() == [0, 1]
        assert labels is None

    def test_key_picks_one_of_several(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.npz", a=GREY, b=GREY + 1)
        assert load_array(path, "b").values.tolist() == (GREY + 1).tolist()


def refused(path: Path, match: str, key: str | None = None) -> None:
    with pytest.raises(DataError, match=match) as error:
        load_array(path, key)
    message = str(error.value)
    assert message.startswith("Expected ")
    assert str(path) in message
    assert "\n" not in message


class TestFilesRefused:
    def test_absent(self, tmp_path: Path) -> None:
        refused(
            tmp_path / "no.npy", r"got .*no\.npy \(No such file or directory\)\. Check the path"
        )

    def test_folder(self, tmp_path: Path) -> None:
        (tmp_path / "x.npy").mkdir()
        refused(tmp_path / "x.npy", r"\(Is a directory\)")

    @pytest.mark.parametrize("name", ["x.csv", "x", "npy"])
    def test_suffix(self, tmp_path: Path, name: str) -> None:
        refused(tmp_path / name, r"Expected a \.npy or \.npz file; got .*Save it with numpy")

    @pytest.mark.parametrize("suffix", ["npy", "npz"])
    @pytest.mark.parametrize(
        ("content", "match"),
        [
            (b"", r"\(it has 0 bytes\)"),
            (b"0.5,0.5\n", r"\(it starts with b'0\.5,0\.'\)"),
            (b"\x80\x04K\x01.", r"\(it starts with b'.x80.x04K"),
            (b"PK\x05\x06", r"is not a zip file"),
            (b"\x93NUMPY", r"got .*x\.np"),
            (b"\x93NUMPY\x01\x00\x04\x00((((", r"got .*x\.np"),
            (
                b"\x93NUMPY\x01\x00\x20\x4e" + b" " * 20000,
                r"\(Header info length .*\.\.\.\)\. Check",
            ),
        ],
    )
    def test_content(self, tmp_path: Path, suffix: str, content: bytes, match: str) -> None:
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(content)
        refused(path, match)

    @pytest.mark.parametrize("suffix", ["npy", "npz"])
    def test_every_truncation(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"x.{suffix}"
        whole = save(path, GREY, **({"x": GREY} if suffix == "npz" else {})).read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            refused(path, r"Expected a whole \.npy or \.npz file of numbers; got")

    @pytest.mark.parametrize("suffix", ["npy", "npz"])
    def test_any_damaged_byte_is_data_or_a_data_error(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"x.{suffix}"
        whole = save(path, GREY, **({"x": GREY} if suffix == "npz" else {})).read_bytes()
        for position in range(len(whole)):
            path.write_bytes(whole[:position] + b"\xfe" + whole[position + 1 :])
            with suppress(DataError):
                load_array(path)

    def test_header_that_claims_more_memory_than_there_is(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npy"
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**18,)}
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(99))
        refused(path, r"Expected a whole .*\(it holds 99 bytes of numbers, not 10{18} for")

    def test_pickles_never_run(self, tmp_path: Path) -> None:
        class Payload:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "ran"),)

        objects = np.array([Payload()], dtype=object)
        refused(save(tmp_path / "x.npy", objects), r"Object arrays cannot be loaded")
        refused(save(tmp_path / "x.npz", x=objects), r"Object arrays cannot be loaded")
        assert not (tmp_path / "ran").exists()

    def test_member_that_is_no_array(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
        refused(path, r"Expected numbers as the data in .*; got dtype .S5")


class TestKeysRefused:
    def test_missing_key(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.npz", first=GREY, second=GREY, labels=np.arange(2))
        refused(path, r"in .*: first, second, labels; got the key 'third'\. Name one", "third")
        refused(path, r"in .*: first, second, labels; got no key\. Name one")

    def test_no_arrays(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npz"
        with zipfile.ZipFile(path, "w"):
            pass
        refused(path, r": none at all; got no key")

    def test_key_of_a_file_without_any(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.npy")
        refused(path, r"Expected no key for the one array in .*; got 'x'\. Omit it", "x")


class TestValuesRefused:
    @pytest.mark.parametrize(
        ("array", "match"),
        [
            (np.array(["a", "b"]), r"Expected numbers as the data in .*; got dtype <U1\. Convert"),
            (np.zeros(2, complex), r"got dtype complex128"),
            (np.zeros(2, "M8[s]"), r"got dtype datetime64"),
            (np.zeros(2, "u8"), r"got dtype uint64\. Convert to uint8 or float32"),
            (np.zeros(2, [("a", "u1"), ("b", "f4")]), r"got dtype \[\('a'"),
            (np.float64(1), r"Expected at least one row as the data in .*; got shape \(\)\."),
            (np.zeros((0, 3)), r"got shape \(0, 3\)"),
            (np.zeros((3, 0)), r"got shape \(3, 0\)"),
        ],
    )
    def test_no_numbers(self, tmp_path: Path, array: Any, match: str) -> None:
        refused(save(tmp_path / "x.npy", array), match)

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["f2", ">f4", "f8"])
    def test_not_finite(self, tmp_path: Path, dtype: str, order: Any) -> None:
        array = np.zeros((4, 3, 2), dtype, order)
        array[1, 2, 0] = np.nan
        array[2, 0, 0] = -np.inf
        array[3, 0, 0] = np.inf
        match = r"finite numbers as the data in .*; got 3 that are NaN or infinite, the first at "
        refused(save(tmp_path / "x.npy", array), match + r"\(1, 2, 0\)\. Drop or replace them")

    @pytest.mark.parametrize(
        ("labels", "match"),
        [
            (np.arange(3), r"Expected labels of shape \(2,\) in .*; got \(3,\)\. Give as many"),
            (np.zeros((2, 1)), r"Expected labels of shape \(2,\) in .*; got \(2, 1\)"),
            (np.array([0, 0.5]), r"Expected whole numbers as labels in .*; got torch.float64"),
            (np.array([0, np.nan]), r"finite numbers as the labels in .*the first at \(1,\)"),
            (np.array(["cat", "dog"]), r"Expected numbers as the labels in .*; got dtype <U3"),
        ],
    )
    def test_labels(self, tmp_path: Path, labels: Any, match: str) -> None:
        refused(save(tmp_path / "x.npz", x=GREY, labels=labels), match)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    "part",
    [
        lambda values: values,
        lambda values: values[5:],
        lambda values: values[::-2],
        lambda values: values[:, 1],
        lambda values: np.array(values),
    ],
)
def test_copies_of_rows_of_a_file_read_the_same(tmp_path: Path, how: Any, part: Any) -> None:
    """Mapped anew, and not read whole: what a worker of a `DataLoader` gets is small."""
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(np.arange(60_000.0).reshape(-1, 3).astype(">f4")))
    values = part(np.load(path, mmap_mode="r"))
    rows = ArrayRows(values, (torch.arange(len(values)), None))
    other = how(rows)
    index = torch.tensor([3, 0, 7, 2])
    assert torch.equal(other.read(index), rows.read(index))
    assert torch.equal(other.read(index), torch.from_numpy(values[index].astype("f4")))
    assert torch.equal(other.labels, rows.labels)
    assert other.event_shape == rows.event_shape
    if isinstance(values, np.memmap):
        rows.labels = None
        assert len(pickle.dumps(rows)) < 2_000
