"""`pdvae compress` and `pdvae decompress`."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Pdvae = Callable[..., tuple[int, str, str]]
_SMALL = ("--epochs=1", "--hidden=8", "--latents=2", "--categories=4")


def fit(pdvae: Pdvae, data: str, *options: str) -> None:
    status, _, err = pdvae("fit", "run", "--data", data, *_SMALL, *options)
    assert (status, err) == (0, "")


@pytest.fixture
def bits(pdvae: Pdvae) -> Any:
    """200 images of zeros and ones in d.npy, big-endian, and a run on them."""
    images = (np.random.default_rng(0).random((200, 6, 6)) < 0.2).astype(">i4")
    np.save("d.npy", images)
    fit(pdvae, "d.npy")
    return images


def test_arrays_come_back_as_they_were(
    pdvae: Pdvae, bits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = pdvae("compress", "run", "d.npy", "-o", "d.pdv", "--stats")
    assert (status, err) == (0, "")
    first, *table = out.splitlines()
    assert first.startswith(f"d.pdv: 200 images of d.npy in {Path('d.pdv').stat().st_size:,} bytes")
    assert "(--way exact); run, weights of epoch" in first
    names = [line[2:].split("  ")[0] for line in table]
    assert names[1:6] == [
        "this file",
        "its header and checksums",
        "promise of --way code",
        "promise of --way bits-back",
        "promise of --way exact",
    ]
    assert names[6:] == ["gzip", "bz2", "xz", "zstd"] + [
        f"{name}, {how}" for name in ("PNG", "WebP") for how in ("one sheet", "one by one")
    ]
    status, out, err = pdvae("decompress", "run", "d.pdv", "-o", "again.npy")
    assert (status, err) == (0, "")
    assert out.startswith("again.npy: 200 images of d.pdv, >i4, shape (200, 6, 6); run, weights of")
    again = np.load("again.npy")
    assert (again.dtype, again.tobytes()) == (bits.dtype, bits.tobytes())
    assert pdvae("decompress", "run", "d.pdv", "-o", "again.npz")[0] == 0
    assert np.load("again.npz")["data"].tobytes() == bits.tobytes()
    status, out, _ = pdvae("compress", "run", "d.npy", "-o", "c.pdv", "--way=code", "--json")
    assert json.loads(out)["way"] == "code"
    assert json.loads(out)["size"] == Path("c.pdv").stat().st_size
    _refuse(pdvae, monkeypatch)


def _refuse(pdvae: Pdvae, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command refuses, in one line, and without writing anything."""
    content = Path("d.pdv").read_bytes()
    Path("cut.pdv").write_bytes(content[:-1])
    Path("folder.pdv").mkdir()
    for arguments, reason in [
        (("compress", "run", "d.npy", "-o", "d.zip"), "Expected an output .pdv"),
        (("compress", "run", "d.npy", "-o", "d.pdv"), "Use --force"),
        (("compress", "run", "x", "d.npy", "-o", "e.pdv"), "got 3 names"),
        (("compress", "run", "d.npy", "-o", "e.pdv", "--refine=2"), "Expected --refine 2"),
        (("decompress", "run", "d.pdv", "-o", "e.csv"), "Expected a .npy or .npz file"),
        (("decompress", "run", "d.npy", "-o", "e.npy"), "Name a .pdv file"),
        (("decompress", "run", "cut.pdv", "-o", "e.npy"), "Restore the file"),
        (("decompress", "run", "none.pdv", "-o", "e.npy"), "none.pdv"),
        (("decompress", "run", "folder.pdv", "-o", "e.npy"), "regular file"),
    ]:
        status, out, err = pdvae(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), arguments
        assert reason in err
        assert not any(Path(name).exists() for name in ("e.pdv", "e.npy", "e.csv"))

    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.split(".")[0] == "constriction":
            raise ModuleNotFoundError(name)
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    for arguments in (
        ("compress", "run", "d.npy", "-o", "e.pdv"),
        ("decompress", "run", "d.pdv", "-o", "e.npy"),
    ):
        status, out, err = pdvae(*arguments)
        assert (status, out) == (2, "")
        assert "pip install 'pyro-dvae[codec]'" in err


@pytest.mark.slow
def test_tables_come_back_with_the_names_of_columns_and_levels(pdvae: Pdvae) -> None:
    generator = np.random.default_rng(0)
    rows = [
        f"{generator.choice(['red', 'blue'])},{generator.integers(2)},{generator.poisson(3)}"
        for _ in range(60)
    ]
    table = "\n".join(["colour,sold,number", *rows]) + "\n"
    Path("t.csv").write_text(table, encoding="utf-8")
    kinds = "mixed:categorical:2,bernoulli,poisson"
    fit(pdvae, "t.csv", "--likelihood", kinds)
    assert pdvae("compress", "run", "t.csv", "-o", "t.pdv")[0] == 0
    assert pdvae("decompress", "run", "t.pdv", "-o", "again.csv")[0] == 0
    assert Path("again.csv").read_text(encoding="utf-8") == table


@pytest.mark.slow
def test_grey_images_are_compressed_only_as_what_the_run_makes_of_them(pdvae: Pdvae) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (100, 5, 5), dtype=np.uint8)
    np.save("d.npy", grey)
    fit(pdvae, "d.npy")
    status, _, err = pdvae("compress", "run", "d.npy", "-o", "d.pdv")
    assert status == 2
    assert "all are 0 or 255" in err
    assert "Use --as-bits" in err
    assert not Path("d.pdv").exists()
    assert pdvae("compress", "run", "test", "-o", "d.pdv", "--as-bits")[0] == 0
    assert pdvae("decompress", "run", "d.pdv", "-o", "bits.npy")[0] == 0
    assert set(np.load("bits.npy").ravel().tolist()) == {0, 1}
    np.save("two.npy", np.where(grey > 127, 255, 0).astype(np.uint8))
    assert pdvae("compress", "run", "two.npy", "-o", "two.pdv")[0] == 0
    assert pdvae("decompress", "run", "two.pdv", "-o", "again.npy")[0] == 0
    assert np.load("again.npy").tobytes() == np.load("two.npy").tobytes()
