from __future__ import annotations

import errno
import fcntl
import os
import pickle
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from pyro_dvae.runs.plots import save_figure
from pyro_dvae.runs.storage import only_writer, read_tensors, write_atomically, write_tensors
from pyro_dvae.runs.tables import write_csv, write_rows

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7, dtype=torch.int64)}


def test_tensors_and_plain_values_come_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {**TENSORS, "t": TENSORS["a"].T}, {"epoch": 3, "best": None})
    tensors, metadata = read_tensors(path, "numbers")
    assert metadata == {"epoch": 3, "best": None}
    assert torch.equal(tensors["a"], TENSORS["a"])
    assert torch.equal(tensors["t"], TENSORS["a"].T)
    assert tensors["b"].dtype == torch.int64
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_the_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_tensors(tmp_path / "file", TENSORS, {})
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_never_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {})
    with pytest.raises(FloatingPointError, match=r"finite numbers to save; got NaN.* in c"):
        write_tensors(path, {**TENSORS, "c": torch.tensor([0.0, value])}, {})
    assert read_tensors(path, "numbers")[0].keys() == TENSORS.keys()


def test_equal_contents_are_equal_bytes(tmp_path: Path) -> None:
    for i in range(8):  # safetensors writes several metadata in an order that changes
        write_tensors(tmp_path / f"{i}", TENSORS, {"epoch": 3, "seconds": 0.5})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"Cannot write .*file \(\d+ MiB free\): disk full"):
        write_atomically(target, write)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupted_write_leaves_nothing_beside(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", write)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {"epoch": 3})
    content, refused = path.read_bytes(), 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            tensors, metadata = read_tensors(path, "numbers")
        except ValueError:
            refused += 1
        else:  # of the names of what only later versions read, say
            assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
            assert metadata.get("epoch", 3) == 3
    assert refused > 0.8 * len(content)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(0, 3),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.eye(3).bool(),
        torch.arange(6).reshape(2, 3).T,
        torch.rand(2, 3)[:, 1],
    ],
    ids=lambda value: f"{value.dtype} {tuple(value.shape)}",
)
def test_tensors_of_any_type_have_a_checksum(tmp_path: Path, value: torch.Tensor) -> None:
    write_tensors(tmp_path / "file", {"a": value}, {})
    assert torch.equal(read_tensors(tmp_path / "file", "numbers")[0]["a"], value)


def test_a_file_without_checksums_is_read_and_its_numbers_are_finite(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file(TENSORS, path)
    assert read_tensors(str(path), "numbers")[0].keys() == TENSORS.keys()
    for value in (float("nan"), -float("inf")):
        save_file({**TENSORS, "c": torch.tensor([0.0, value])}, path)
        with pytest.raises(ValueError, match=r"got: NaN or infinity in c\. Restore"):
            read_tensors(path, "numbers")


def test_a_pipe_in_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"Expected numbers in .*no regular file\. Restore"):
        read_tensors(tmp_path / "pipe", "numbers")


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("executed",))


def _header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


HOSTILE = {
    "pickle": pickle.dumps(_Payload()),
    "empty": b"",
    "zip": b"PK\x03\x04" + b"\0" * 100,
    "header of an exabyte": (2**60).to_bytes(8, "little") + b"{}",
    "header longer than the file": (1000).to_bytes(8, "little") + b"{}",
    "header that is no JSON": _header(b"not JSON"),
    "deep header": _header(b"[" * 10_000),
    "tensor of a petabyte": _header(
        b'{"a":{"dtype":"F32","shape":[1000000000,250000],"data_offsets":[0,1000000000000000]}}'
    ),
    "tensor beyond the end": _header(b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'),
    "metadata that is no JSON": _header(b'{"__metadata__":{"pyro_dvae":"{"}}'),
    "deep metadata": _header(b'{"__metadata__":{"pyro_dvae":"' + b"[" * 100_000 + b'"}}'),
    "metadata that is a list": _header(b'{"__metadata__":{"pyro_dvae":"[1]"}}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"Expected numbers in file; got: .*Restore") as error:
        read_tensors(Path("file"), "numbers")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_pickle_would_have_run_its_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["pickle"])
    assert Path("executed").is_dir()


@pytest.mark.parametrize(
    "shapes",
    [
        {"a": (2, 3)},
        {"a": (3, 2), "b": ()},
        {"a": (2, 3), "b": (), "c": ()},
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, shapes: Any) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    with pytest.raises(ValueError, match=r"Expected numbers in .*, not .*Restore"):
        read_tensors(tmp_path / "file", "numbers", shapes)


HOLDER = """
import sys, time
from pathlib import Path
from pyro_dvae.runs.storage import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_one_writer_at_a_time_and_a_killed_one_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / ".file.1.part").touch()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not list(tmp_path.glob("*.part"))
        with (
            pytest.raises(ValueError, match=r"nobody else trains in; got .*another process holds"),
            only_writer(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 10
        while True:
            try:
                with only_writer(tmp_path):
                    break
            except ValueError:
                assert time.monotonic() < deadline


def _failing(code: int) -> Any:
    def call(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(
    ("code", "works"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)]
)
def test_a_file_system_that_cannot_flush_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, works: bool
) -> None:
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        (_failing(code) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else flush)(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if works:
        write_tensors(tmp_path / "file", TENSORS, {})
    else:
        with pytest.raises(OSError, match=r"Cannot write .*Input/output error"):
            write_tensors(tmp_path / "file", TENSORS, {})


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", _failing(code))
    with (
        pytest.warns(UserWarning, match="no locks .*: going on without one"),
        only_writer(tmp_path),
    ):
        pass


@pytest.mark.parametrize("damage", ["a link", "a folder"])
def test_a_lock_that_cannot_be_made_is_one_line(tmp_path: Path, damage: str) -> None:
    if damage == "a link":
        (tmp_path / ".lock").symlink_to("/etc/hostname")
    else:
        (tmp_path / ".lock").mkdir()
    refusal = pytest.raises(ValueError, match=r"Expected a folder to write the lock .*Remove")
    with refusal as error, only_writer(tmp_path):
        pass
    assert "\n" not in str(error.value)


def test_outputs_may_be_named_by_text(tmp_path: Path) -> None:
    write_csv(f"{tmp_path}/a.csv", ["a"], [[1]])
    write_rows(f"{tmp_path}/b.npy", "b", [torch.ones(2, 3)], 2)
    save_figure(Figure(), f"{tmp_path}/c.png")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.csv", "b.npy", "c.png"]
