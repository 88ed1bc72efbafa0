"""Tests of `pdvae data`: what is odd is read right or refused in one line."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

Run = Callable[..., tuple[int, str, str]]


def write(text: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(text.encode() if isinstance(text, str) else text) and None


def npy(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, np.asarray(array), allow_pickle=True)


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def compressed(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, x=GREY)


def images(**files: tuple[str, tuple[int, int]]) -> Callable[[Path], None]:
    """A folder of images; underscores in names are folders."""

    def make(path: Path) -> None:
        path.mkdir()
        for name, (mode, size) in files.items():
            file = path / f"{name.replace('_', '/')}.png"
            file.parent.mkdir(exist_ok=True)
            Image.new(mode, size).save(file)

    return make


def idx(array: Any, cut: int | None = None, kind: int = 8) -> Callable[[Path], None]:
    x = np.asarray(array, np.uint8)
    header = struct.pack(f">4B{x.ndim}I", 0, 0, kind, x.ndim, *x.shape)
    return write((header + x.tobytes())[:cut])


def _truncated(path: Path) -> None:
    np.save(path, np.zeros((9, 9)))
    path.write_bytes(path.read_bytes()[:-1])


class _Bomb:
    def __reduce__(self) -> Any:
        return (Path("executed").touch, ())


ZEROS = np.zeros((4, 3))
WITH_GAP = np.array([[1.0, 2], [np.nan, 4], [5, np.inf]])
BAD: dict[str, tuple[str, Callable[[Path], Any], list[str], str]] = {
    # arrays
    "nothing there": ("x.npy", lambda path: None, [], "which is not there"),
    "an empty file": ("x.npy", write(""), [], "it has 0 bytes"),
    "a truncated array": ("x.npy", _truncated, [], "a whole .npy or .npz file"),
    "a pickle": ("x.npy", write(pickle.dumps(_Bomb())), [], "it starts with"),
    "objects": ("x.npy", npy(np.array([1, "a"], object)), [], "Python objects"),
    "text": ("x.npy", npy(["a", "b"]), [], "Expected numbers .* dtype <U1"),
    "complex numbers": ("x.npy", npy([1j]), [], "dtype complex128"),
    "times": ("x.npy", npy(np.zeros(2, "M8[s]")), [], "dtype datetime64"),
    "records": ("x.npy", npy(np.zeros(2, [("a", "f4")])), [], "Expected numbers as"),
    "no rows": ("x.npy", npy(np.zeros((0, 3))), [], r"at least one row .* shape \(0, 3\)"),
    "a scalar": ("x.npy", npy(3.0), [], r"at least one row .* shape \(\)"),
    "gaps": ("x.npy", npy(WITH_GAP), [], r"1 missing \(NaN\) and 1 infinite, .* row 1, place 0"),
    "a key for one array": ("x.npy", npy(ZEROS), ["--key", "x"], "Expected --key with .npz"),
    "columns of an array": ("x.npy", npy(ZEROS), ["--columns", "a"], "Expected --columns with"),
    "several arrays": ("x.npz", npz(a=ZEROS, b=ZEROS), [], "a, b; got no key. Name one"),
    "a key that is not there": ("x.npz", npz(a=ZEROS), ["--key", "c"], "got the key 'c'"),
    "too few labels": ("x.npz", npz(a=ZEROS, y=[1, 2]), [], r"labels of shape \(4,\), one for"),
    "fractions as labels": ("x.npz", npz(a=ZEROS, y=ZEROS[0] + 0.5), [], "got 0.5. Number the"),
    "labels that are not there": ("x.npz", npz(a=ZEROS), ["--labels", "z"], "a; got 'z'"),
    "no zip": ("x.npz", write("PK\3\4 and so on"), [], "a whole .npy or .npz file"),
    # tables
    "an empty table": ("x.csv", write(""), [], "No columns to parse"),
    "a header alone": ("x.csv", write("a,b\n"), [], "at least one row in x.csv"),
    "text among numbers": ("x.csv", write("a\n1\nu\n"), [], "got 'u' in row 1 .*--nominal"),
    "dates": ("x.csv", write("a,b\n2024-12-31,u\n"), [], "--drop a, or .* with --dates"),
    "an empty column": ("x.csv", write("a,b\n1,\n3,\n"), [], "got none in column 'b'.*--drop b"),
    "a row too long": ("x.csv", write("a,b\n1,2\n3,4,5\n"), [], "Expected 2 fields in line 3"),
    "no name": ("x.csv", write(",a\n0,5\n0,6\n"), [], "got none for column 0"),
    "an unknown column": ("x.csv", write("a\n1\n"), ["--columns", "b"], "a; got 'b'"),
    "unknown labels": ("x.csv", write("a\n1\n"), ["--labels", "b"], "a; got 'b'"),
    "no parquet": ("x.parquet", write("PAR1PAR1"), [], "a whole table of .*; got x.parquet"),
    # IDX
    "IDX cut short": ("x-idx3", idx(np.zeros((2, 3, 3)), -1), [], "it has 33 bytes, not 34"),
    "IDX of floats": ("x-idx3.gz", write(gzip.compress(b"\0\0\x0d\1\0\0\0\0")), [], "magic number"),
    "no gzip": ("x.gz", write("\x1f\x8bno".encode("latin1")), [], "a whole IDX file"),
    # images
    "an empty folder": ("d", images(), [], "Expected images .* in d; got an empty folder"),
    "two sizes": (
        "d",
        images(a=("L", (4, 3)), b=("L", (4, 3)), c=("L", (27, 33))),
        [],
        "2 of 3 x 4 L, 1 of 33 x 27 L, with c.png 33 x 27. Pass --size 3x4",
    ),
    "two modes": ("d", images(a=("L", (4, 3)), b=("RGB", (4, 3))), [], "Pass --channels 1 or"),
    "alpha": ("d", images(a=("RGBA", (4, 3))), [], "with a.png with alpha. Pass --channels"),
    "grey of 16 bits": ("d", images(a=("I;16", (4, 3))), ["--channels", "3"], "8 bits .* I;16"),
    "images here and there": (
        "d",
        images(a=("L", (4, 3)), b_c=("L", (4, 3))),
        [],
        "got 1 beside the folders b",
    ),
    "a size that is none": ("d", images(a=("L", (4, 3))), ["--size", "4"], "Expected --size as"),
    "channels that are none": ("d", images(a=("L", (4, 3))), ["--channels", "2"], "1 or 3"),
    "a key of a folder": ("d", images(a=("L", (4, 3))), ["--key", "x"], "Expected --key with"),
    "a damaged image": ("d", lambda p: (p.mkdir(), (p / "x.png").touch()), [], "Expected an image"),
    # others
    "an unknown kind": ("x.h5", write("..."), [], r"got x\.h5. Convert it"),
    "a model": ("x.pt", write(pickle.dumps(_Bomb())), [], r"got x\.pt. Convert it"),
    "a name misspelt": ("mnits", lambda path: None, [], "Did you mean mnist"),
    "no such folder": ("fashion-mnist", lambda p: None, ["--data-dir", "no"], "got no such files"),
    "a folder for a file": ("x.npy", npy(ZEROS), ["--data-dir", "."], "the name of a data set"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_one_line_and_status_2(pdvae: Run, case: str) -> None:
    name, make, options, said = BAD[case]
    make(Path(name))
    status, out, err = pdvae("data", name, *options)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("pdvae: Expected ")
    assert re.search(said, err), err
    assert bool(out) == ("finite" in err)  # the scan itself is shown
    assert len(err) < 600
    assert not Path("executed").exists()


GREY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
ODD: dict[str, tuple[str, Callable[[Path], Any], list[str], dict[str, Any]]] = {
    "big-endian": ("x.npy", npy(GREY.astype(">i4")), [], {"dtype": "int32", "high": 23}),
    "Fortran order": ("x.npy", npy(np.asfortranarray(GREY)), [], {"num_duplicates": 0, "high": 23}),
    "float64": ("x.npy", npy(GREY / 10), [], {"dtype": "float64", "high": 2.3}),
    "float16": ("x.npy", npy(GREY.astype("f2")), [], {"dtype": "float16", "num_distinct": 24}),
    "bool": ("x.npy", npy(GREY > 3), [], {"dtype": "bool", "num_distinct": 2}),
    "16 bits": ("x.npy", npy(GREY.astype("u2") * 999), [], {"dtype": "int32", "high": 22977}),
    "one datum": ("x.npy", npy(GREY[:1]), [], {"num_data": 1, "event_shape": [3, 4]}),
    "numbers": ("x.npy", npy([1, 2, 2]), [], {"event_shape": [], "num_duplicates": 1}),
    "131 x 2": ("x.npy", npy(np.zeros((2, 131, 2))), [], {"event_shape": [131, 2]}),
    "a name": ("a: é 数.npy", npy(GREY), [], {"num_data": 2}),
    "names as labels": ("x.npz", npz(x=GREY, y=["u", "v"]), [], {"classes": {"u": 1, "v": 1}}),
    "a key": ("x.npz", npz(a=GREY, b=GREY + 9), ["--key", "b"], {"low": 9, "high": 32}),
    "compressed": ("X.NPZ", compressed, [], {"high": 23}),
    "columns": ("x.csv", write("a,b,c\n1,2,3\n"), ["--columns", "c, 0"], {"low": 1, "high": 3}),
    "a range": ("x.csv", write("a,b,c\n1,2,3\n"), ["--columns", "1-2"], {"low": 2, "high": 3}),
    "tabs": ("x y.tsv", write("a\tb\n1\t2.5\n"), [], {"event_shape": [2], "high": 2.5}),
    "class names": (
        "x.csv",
        write("a,kind\n1,u\n2,NA\n3,u\n"),
        ["--labels", "kind"],
        {"classes": {"NA": 1, "u": 2}, "event_shape": [1]},
    ),
    "parquet": (
        "x.parquet",
        lambda path: pd.DataFrame({"a": [1, 2], "b": [True, False]}).to_parquet(path),
        [],
        {
            "event_shape": [2],
            "columns": [
                {
                    **{"name": "a", "low": 1.0, "high": 2.0, "num_missing": 0},
                    **{"levels": None, "likelihood": "normal", "numbers": None},
                },
                {
                    **{"name": "b", "low": 0.0, "high": 1.0, "num_missing": 0},
                    **{"levels": ["False", "True"], "likelihood": "bernoulli", "numbers": None},
                },
            ],
        },
    ),
    "any IDX": ("numbers", idx(np.ones((3, 2))), [], {"event_shape": [2], "num_duplicates": 2}),
    "27 x 33": ("d", images(a=("L", (33, 27))), [], {"event_shape": [27, 33], "dtype": "uint8"}),
    "classes": (
        "d",
        images(a_x=("RGB", (4, 3)), b_x=("RGB", (4, 3))),
        [],
        {"event_shape": [3, 3, 4], "classes": {"a": 1, "b": 1}},
    ),
    "bits": ("d", images(a=("1", (4, 3))), [], {"dtype": "bool", "event_shape": [3, 4]}),
    "deep grey": ("d", images(a=("I;16", (4, 3))), [], {"dtype": "int32", "num_distinct": 1}),
    "a size": (
        "d",
        images(a=("RGB", (4, 3)), b=("RGB", (8, 8))),
        ["--size", "5x2"],
        {"event_shape": [3, 5, 2]},
    ),
    "alpha on request": ("d", images(a=("RGBA", (4, 3))), ["--channels", "1"], {"low": 255}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_data_are_read_right(pdvae: Run, case: str) -> None:
    name, make, options, wanted = ODD[case]
    if case == "parquet":
        pytest.importorskip("pyarrow")
    make(Path(name))
    status, out, err = pdvae("data", name, "--json", *options)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["name"], found["where"]) == (name, name)
    assert {key: found["train"][key] for key in wanted} == wanted
    assert found["train"]["num_missing"] == found["train"]["num_infinite"] == 0
    status, out, err = pdvae("data", name, *options)
    assert (status, err) == (0, "")
    assert out.startswith(f"{name}\n")
    assert "bernoulli" in out


def test_named_sets_have_two_parts(pdvae: Run) -> None:
    status, out, err = pdvae("data", "mnist-sample")
    assert (status, err) == (0, "")
    assert out.startswith("mnist-sample from bundled sample\n\ntrain:\ndata  ")
    assert "\n\ntest:\ndata " in out
    assert "5,000 rows of 28 x 28" in out
    found = json.loads(pdvae("data", "mnist-sample", "--json")[1])
    assert (found["train"]["num_data"], found["test"]["num_data"]) == (5000, 1000)


def test_notes_and_gaps_in_the_test_part(pdvae: Run, tmp_path: Path) -> None:
    for part, value in (("train", 1.0), ("test", float("nan"))):
        (tmp_path / "d" / part).mkdir(parents=True)
        image = Image.fromarray(np.full((2, 2), value, np.float32))
        image.save(tmp_path / "d" / part / "x.tif")
    (tmp_path / "d/train/notes.txt").touch()
    status, out, err = pdvae("data", "d")
    assert status == 2
    assert err.startswith("pdvae: In the test data: Expected finite numbers; got 4 missing (NaN)")
    assert "\nnote: left out, being no images: train/notes.txt\n" in out
    assert json.loads(pdvae("data", "d", "--json")[1])["test"]["low"] is None


def test_training_images_in_the_test_part_are_counted(pdvae: Run, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (14, 4, 4), np.uint8)
    for part, index in (("train", range(9)), ("test", range(6, 14))):
        (tmp_path / "d" / part).mkdir(parents=True)
        for i in index:
            Image.fromarray(pixels[i]).save(tmp_path / "d" / part / f"{i}.png")
    status, out, err = pdvae("data", "d")
    assert (status, err) == (0, "")
    assert "3 of the 8 test rows are in the training data too: --drop-copies leaves such" in out
    assert json.loads(pdvae("data", "d", "--json")[1])["test_rows_in_training"] == 3
    options = ["--data", "d", "--epochs", "0", "--hidden", "3", "--val", "2"]
    status, out, err = pdvae("fit", "run", *options)
    assert (status, "7 training and 2 validation images" in out) == (0, True)
    assert "of the 8 test rows are in the training data too: --drop-copies" in err
    status, out, err = pdvae("fit", "dropped", *options, "--drop-copies")
    assert status == 0
    assert "3 rows that are in other validation or test data too: left out" in err


def test_memory_is_not_filled(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block that is read is much larger than it must be."""
    from pyro_dvae.data.read.array_rows import ArrayRows

    sizes = []
    read = ArrayRows.read

    def watched(self: ArrayRows, index: torch.Tensor) -> torch.Tensor:
        values = read(self, index)
        sizes.append(values.nbytes)
        return values

    monkeypatch.setattr(ArrayRows, "read", watched)
    np.save("x.npy", np.zeros((100, 200_000), np.uint8))
    assert pdvae("data", "x.npy")[0] == 0
    assert sum(sizes) == 20_000_000
    assert max(sizes) <= 2**22
