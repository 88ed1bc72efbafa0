"""Groups and times of rows that are in a file beside the data, an array, or the folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyro_dvae.data import DataError, open_source
from pyro_dvae.data.read.rows import ids_in

WHO = ["b", "a", "b", "c"]
"""The group of each of four rows."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`x.npy` of four rows, and `images` of four: one writer per folder, one class per image."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(8.0).reshape(4, 2))
    for i, name in enumerate(("cat/b/1.png", "cat/a/2.png", "dog/b/3.png", "dog/c/4.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((3, 3), i, np.uint8)).save(path)
    return tmp_path


def _groups(data: Any, group: Any) -> list[int]:
    """The first row of the group of each row."""
    found = open_source(data, group=group).groups
    assert found is not None
    return [found.tolist().index(number) for number in found.tolist()]


FIRST = [0, 1, 0, 3]


@pytest.mark.parametrize(
    "text",
    [
        "b\na\nb\nc\n",
        "who\nb\na\nb\nc\n",
        "7\n3\n7\n5\n",
        "\ufeffwho\r\n1.5\r\n2\r\n1.5\r\n3\r\n",
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_text_file_has_one_value_per_line(text: str) -> None:
    Path("who.csv").write_text(text, encoding="utf-8")
    assert _groups("x.npy", "who.csv") == FIRST
    assert open_source("x.npy", group="who.csv").arguments["group"] == "who.csv"


@pytest.mark.parametrize("data", ["x.npy", "x.npz", "x.csv", "some-images-idx3"])
@pytest.mark.usefixtures("folder")
def test_every_kind_of_data_takes_files(data: str) -> None:
    x = np.load("x.npy")
    if data == "some-images-idx3":
        Path(data).write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 4, 0, 0, 0, 2, *range(8)]))
    elif data == "x.npz":
        np.savez(data, x=x)
    elif data == "x.csv":
        np.savetxt(data, x, delimiter=",", header="p,q", comments="")
    np.save("who.npy", WHO)
    np.savez("who.npz", who=WHO, day=np.array([3, 0, 2, 1]))
    assert _groups(data, "who.npy") == _groups(data, Path("who.npz:who")) == FIRST
    times = open_source(data, time="who.npz:day").times
    assert times is not None
    assert times.tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("names", ["path", "file", "stem"])
def test_a_table_names_the_images(folder: Path, names: str) -> None:
    paths = [Path(name) for name in ids_in(open_source("images").train) or ()]
    calls = {"path": Path.as_posix, "file": lambda path: path.name, "stem": lambda path: path.stem}
    lines = [f"{calls[names](path)},{path.parent.name},2024-01-0{path.stem}" for path in paths]
    lines = ["image,writer,day", *reversed(lines), f"other{names},x,2024-01-01"]
    Path("of.csv").write_text("\n".join(lines))
    by_folder = [path.parent.name for path in paths]
    expected = [by_folder.index(name) for name in by_folder]
    assert _groups("images", "of.csv:writer") == _groups("images", "folder") == expected
    times = open_source("images", time="of.csv:day").times
    assert times is not None
    assert (times - times.min()).tolist() == [int(path.stem) - 1 for path in paths]
    two = [line.rpartition(",")[0] for line in lines[1:]]
    Path("two.csv").write_text("\n".join(two))  # and no line of names
    assert _groups(folder / "images", "two.csv") == expected


@pytest.mark.parametrize(
    ("data", "text", "given", "message"),
    [
        ("x.npy", "", "who.csv", "a file with one group for each row"),
        ("x.npy", "b\na\nb\n", "who.csv", "one value per row, 4; got 2 in .*who.csv"),
        ("x.npy", "who\nb\na\nb\n", "who.csv", "one value per row, 4; got 3 in .*who.csv"),
        ("x.npy", "who\nb\n\nb\nc\n", "who.csv", "a group for each row in who.csv; got none in r"),
        ("x.npy", "p,q\n1,2\n1,2\n1,2\n1,2\n", "who.csv", "got several. Name the .* who.csv:q"),
        ("x.npy", "p,q\n1,2\n1,2\n1,2\n1,2\n", "who.csv:r", "which has p, q; got no 'r'"),
        ("x.npy", "", "none.csv", "Expected group=... as a file with .*'none.csv', which is none"),
        ("x.npy", "", "./none.csv", r"got .*none.csv \(No such file"),
        ("x.npy", "", "folder", "Expected group=... as a file .*'folder', which is none"),
        ("x.csv", "", "none.csv", "Expected a column of .*x.csv: p, q; got 'none.csv'"),
        ("images", "", "who", 'or "folder"; got .who., which is none'),
        ("images", "b\na\nb\n", "who.csv", "one value per row, 4; got 2 in"),
        ("images", "p,q\n1,2\n", "who.csv", "a column with the names of the images in .*who.csv"),
        ("images", "p,q\n1,a\n2,a\n3,b\n", "who.csv", "line for each row .* got none for '4'"),
        ("images", "p,q\n1,a\n2,a\n3,b\n4,b\n1,b\n", "who.csv", "several for '1', .* 1 in all"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_other_files_are_refused(data: str, text: str, given: str, message: str) -> None:
    np.savetxt("x.csv", np.load("x.npy"), delimiter=",", header="p,q", comments="")
    Path("who.csv").write_text(text)
    with pytest.raises(DataError, match=message) as refused:
        open_source(data, group=given)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["./who.csv", "./who.npy"])
def test_a_pipe_is_not_waited_for(name: str) -> None:
    os.mkfifo(name)
    with pytest.raises(DataError, match="which is a pipe or a device"):
        open_source("x.npy", group=name)
