"""Data that state more than they hold, unpack to more than memory, or are no files at all."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyro_dvae.data import DataError, load_array, open_source, read_idx
from pyro_dvae.data.read import errors
from pyro_dvae.runs.tables import read_codes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "available_memory", lambda: 2**20)


def one_line(data: Any, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        open_source(data, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def npy(shape: str, descr: str = "|u1", data: bytes = bytes(64)) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(11 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def idx(*shape: int, data: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + data


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize(
    "shape",
    [
        *(f"({2**62}, 4)", f"({2**31}, {2**31}, 4)", f"({2**63},)", f"({10**30},)", f"({2**40},)"),
        *("(-1, 8)", "(True, 64)", "(65,)", f"({2**64}, 0)", f"(64, {2**64})", "(64.0,)"),
    ],
)
def test_a_header_that_states_more_than_there_is(suffix: str, shape: str) -> None:
    """In 64 bits some of these products are small, and others negative."""
    path = Path(f"x.{suffix}")
    if suffix == "npy":
        path.write_bytes(npy(shape))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", npy(shape))
    np.save("y.npy", np.zeros((64, 2), np.uint8))
    assert "got x." in one_line(path)
    assert "got x." in one_line("y.npy", labels="x." + suffix)
    with pytest.raises(DataError, match=r"got x\."):
        load_array(path)


@pytest.mark.usefixtures("little_memory")
def test_what_unpacks_to_more_than_memory_is_not_unpacked() -> None:
    zeros = bytes(2**21)
    Path("x-idx").write_bytes(gzip.compress(idx(2048, 32, 32, data=zeros)))
    np.savez_compressed("x.npz", x=np.zeros(2**21, np.uint8))
    np.savez_compressed("y.npz", x=np.zeros((8, 2), np.uint8), labels=np.zeros(2**18))
    np.save("x.npy", np.zeros((2, 2**20), np.uint8))
    for name in ("x-idx", "x.npz", "y.npz", "x.npy"):
        assert "Expected data that fit into memory, 0.0 GiB free; got" in one_line(name)
    with pytest.raises(DataError, match=r"which takes about 0\.0 GiB"):
        load_array("x.npy")  # which open_source maps and does not hold
    np.save("x.npy", np.zeros((2**15, 64), np.uint8))
    assert len(open_source("x.npy").train) == 2**15


@pytest.mark.parametrize("more", [1, 2**26])
def test_a_gzip_is_not_unpacked_beyond_its_header(more: int) -> None:
    Path("x-idx").write_bytes(gzip.compress(idx(5, 3, data=bytes(15 + more))))
    assert "it has more than the 27 bytes of its shape (5, 3)" in one_line("x-idx")


def test_what_is_no_file_is_not_waited_for(pdvae: Run) -> None:
    os.mkfifo("x.npy")
    Path("data").mkdir()
    os.mkfifo("data/train-images-idx3-ubyte")
    os.mkfifo("data/z.png")
    np.save("y.npy", np.zeros((4, 2), np.uint8))
    assert "got x.npy, which is neither" in one_line("x.npy")
    assert "got x.npy, which is neither" in one_line("y.npy", labels="x.npy")
    assert "Expected images (.png, .jpg, ...) in data" in one_line("data")
    for read in (load_array, read_idx, lambda path: read_codes(path, 2, 2)):
        with pytest.raises(DataError, match=r"Expected a .*; got x\.npy"):
            read("x.npy")
    os.mkfifo("x.csv")
    with pytest.raises(DataError, match=r"Expected a file; got x\.csv, which is a pipe"):
        read_codes("x.csv", 2, 2)
    status, _, err = pdvae("fit", "run", "--data=y.npy", "--val=x.npy")
    assert (status, err.count("\n")) == (2, 1)


@pytest.mark.slow
def test_names_that_no_file_can_have(pdvae: Run) -> None:
    np.save("y.npy", np.zeros((40, 2), np.uint8))
    run = "fit run --latents=2 --categories=2 --hidden=4 --epochs=1 --data y.npy --device=cpu"
    assert pdvae(*run.split())[0] == 0
    for name in ("a" * 300 + ".npy", "~nobodyhere/x.npy", "a/" * 3000, "a\0b"):
        assert "got" in one_line(name)
        assert "got" in one_line("y.npy", labels=name)
        with pytest.raises(DataError):
            open_source("mnist", data_dir=name)
        if "\0" not in name:  # which no command line can hold
            _check_commands(pdvae, name)


def _check_commands(pdvae: Run, name: str) -> None:
    for command in (
        *(["data", name], ["fit", "--data", name], ["fit", "--data=y.npy", "--val", name]),
        *(["fit", "--data=y.npy", "--labels", name], ["score", "run", "--data", name]),
        *(["encode", "run", "-oc.csv", "--data", name], ["decode", "run", name, "-oc.npz"]),
        *(["encode", "run", "-o", name + ".csv"], ["sample", "run", "-o", name + ".csv"]),
        *(["data", "mnist", "--data-dir", name], ["evaluate", "run", "--data-dir", name]),
    ):
        status, _, err = pdvae(*command)
        assert (status, err.count("\n")) == (2, 1), command
