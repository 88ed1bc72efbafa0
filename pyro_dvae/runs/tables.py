"""Tables with one row per datum, of codes or of decoded data: NumPy files and CSV."""

from __future__ import annotations

import csv
import re
import textwrap
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from pyro_dvae.data import DataError, load_array
from pyro_dvae.data.read.errors import regular_file, user_path
from pyro_dvae.data.read.npy import check_npz
from pyro_dvae.runs.storage import write_atomically

_WHOLE = re.compile(r"\s*-?[0-9]{1,18}\s*")
"""A whole number that int64 holds. `int` alone would read "1_0" too."""


class CodeTable(NamedTuple):
    """N codes of a file, and what the file tells of the data that were encoded."""

    codes: Tensor
    """(N, D) categories 0 to K - 1, int64."""
    labels: Tensor | tuple[str, ...] | None
    """(N,) int64, or the names of classes."""
    rows: Tensor | None
    """(N,) int64, the row that each had among these data; None where the file does not tell."""
    about: dict[str, Tensor | tuple[str, ...]]
    """The columns "row" and "id" of the file, (N,), where it has them: int64, or texts."""


def read_codes(
    path: Path | str, num_latents: int, num_categories: int, key: str | None = None
) -> CodeTable:
    """Read codes as category indices. Nothing in the file is executed.

    Args:
        path: A `.csv` with the columns z1 to zD, and perhaps `index`, `row`, `id` and `label`, in
            any order; or a `.npy` of integers (N, D), or a `.npz` with such an array, and perhaps
            `labels`, `row` and `id`.
        num_latents: D.
        num_categories: K.
        key: The name of the array, where a `.npz` holds several.

    Returns:
        The rows, in the order of the file.

    Raises:
        DataError: If the file cannot be read, is not a table of codes of this shape, or holds
            anything but whole numbers 0 to K - 1. The message names the first bad place.
    """
    path = user_path(path)
    if path.suffix.lower() not in (".csv", ".npz", ".npy"):
        raise DataError(f"Expected a .csv, .npz or .npy file of codes; got {path}. Name another.")
    if path.suffix.lower() != ".csv":
        return _read_array(path, num_latents, num_categories, key)
    if key is not None:
        raise DataError(f"Expected no key for the CSV file {path}; got {key!r}. Leave it out.")
    try:
        with regular_file(path).open(newline="", encoding="utf-8-sig") as file:
            columns, texts = _read_columns(csv.reader(file), path, num_latents, num_categories)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        reason = textwrap.shorten(reason, 150, placeholder=" ...")
        raise DataError(
            f"Expected a CSV table of codes; got {path} ({reason}). Check the path, or encode anew."
        ) from error
    codes = torch.stack([columns[name] for name in code_columns((num_latents,))], 1)
    known = {name: _numbers_of(column) for name, column in texts.items()}
    return CodeTable(codes, known.pop("label", None), columns.get("index"), known)


def write_rows(
    path: str | Path,
    name: str,
    blocks: Iterable[Tensor],
    num_rows: int,
    *,
    labels: Tensor | None = None,
    index: Tensor | None = None,
    others: Mapping[str, Tensor | Sequence[str]] | None = None,
) -> None:
    """Write an array of N rows block by block, so that memory holds one block at a time.

    Args:
        path: A `.npz`, a `.npy` (of the array alone) or, for codes (N, D) and their probabilities
            (N, D, K), a `.csv`.
        name: The name of the array in a `.npz`.
        blocks: Blocks (B, ...) of the rows in order, at least one.
        num_rows: N.
        labels: (N,), written as the array `labels` of a `.npz` or the column `label` of a `.csv`;
            or None.
        index: (N,), written as the array or the column `index`. If it is None, the column counts
            from 0, and there is no such array.
        others: Further columns: name -> (N,) numbers or texts. A `.npz` has arrays of these names,
            but of "label".

    Raises:
        OSError: The file cannot be written. What was there stays.
    """
    blocks = iter(blocks)
    first = next(blocks)
    blocks = chain([first], blocks)
    shape = (num_rows, *first.shape[1:])
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        carried: dict[str, Tensor | Sequence[str | int]] = {}
        carried["index"] = range(num_rows) if index is None else index
        carried |= others or {}
        if labels is not None:
            carried.setdefault("label", labels)
        header = [*carried, *code_columns(shape[1:])]
        write_csv(path, header, _table_rows([*carried.values()], blocks))
        return

    def write_npz(beside: Path) -> None:
        with ZipFile(beside, "w") as archive:
            for key, values in ((name, blocks), ("labels", labels), ("index", index)):
                if values is not None:
                    parts = [values] if isinstance(values, Tensor) else values
                    with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                        _write_npy(file, shape if key == name else (num_rows,), parts)
            for key, texts in (others or {}).items():
                if key != "label":
                    with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                        npy.write_array(file, np.asarray(texts), allow_pickle=False)

    def write_npy(beside: Path) -> None:
        with beside.open("wb") as file:
            _write_npy(file, shape, blocks)

    write_atomically(path, write_npz if suffix == ".npz" else write_npy)


def write_csv(
    path: str | Path, header: Sequence[str], rows: Iterable[Iterable[int | float | str]]
) -> None:
    """Write a table of numbers and texts row by row, so that memory holds one row at a time.

    Args:
        path: The file.
        header: The names of the columns.
        rows: Their values. A float gets 9 digits, which tell any two floats of single precision
            apart.

    Raises:
        OSError: The file cannot be written. What was there stays.
    """

    def write(beside: Path) -> None:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            table = csv.writer(file, lineterminator="\n")  # names may hold commas
            table.writerow(header)
            for row in rows:
                table.writerow([f"{x:.9g}" if isinstance(x, float) else x for x in row])

    write_atomically(path, write)


def code_columns(shape: Sequence[int]) -> list[str]:
    """The names of columns: z1 to zD for the shape (D,); z1_0, z1_1, ..., zD_K-1 for (D, K)."""
    latents = [f"z{latent + 1}" for latent in range(shape[0])]
    if len(shape) == 1:
        return latents
    return [f"{latent}_{category}" for latent in latents for category in range(shape[1])]


def _table_rows(
    carried: list[Tensor | Sequence[str | int]], blocks: Iterable[Tensor]
) -> Iterator[list[int | float | str]]:
    start = 0
    for block in blocks:
        stop = start + len(block)
        some = [values[start:stop] for values in carried]
        before = [part.tolist() if isinstance(part, Tensor) else part for part in some]
        for *left, right in zip(*before, block.flatten(1).tolist(), strict=True):
            yield [*left, *right]
        start = stop


def _write_npy(file: IO[bytes], shape: tuple[int, ...], blocks: Iterable[Tensor]) -> None:
    started = False
    for block in blocks:
        values = np.ascontiguousarray(block.numpy())
        if not started:
            descr = npy.dtype_to_descr(values.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            npy.write_array_header_1_0(file, header)
            started = True
        file.write(values.data)


def _read_columns(
    lines: Iterator[list[str]], path: Path, num_latents: int, num_categories: int
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """The columns of codes and the index, and as texts those of the label, the row and the id."""
    header = [name.strip() for name in next(lines, [])]
    wanted = code_columns((num_latents,))
    known = {*wanted, "index", "row", "id", "label"}
    if len(set(header)) < len(header) or not set(wanted) <= set(header) <= known:
        got = textwrap.shorten(",".join(header), 60, placeholder="...") or "none"
        raise DataError(
            f"Expected the columns z1 to z{num_latents}, and none but index, row, id and label "
            f"beside them, in {path}; got {got}. Take codes of this model, as category indices and "
            "with commas between."
        )
    texts: dict[str, list[str]] = {name: [] for name in ("label", "row", "id") if name in header}
    values = {name: array("q") for name in header if name not in texts}
    for number, cells in enumerate(lines, 2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(
                f"Expected {len(header)} columns in {path}; got {len(cells)} in line {number}. "
                "Mend the line."
            )
        for name, cell in zip(header, cells, strict=True):
            is_code = name in wanted
            if name in texts:
                texts[name].append(cell.strip())
                continue
            if not _WHOLE.fullmatch(cell) or (is_code and not 0 <= int(cell) < num_categories):
                kind = f"categories 0 to {num_categories - 1}" if is_code else "whole numbers"
                got = textwrap.shorten(cell, 40, placeholder="...")
                raise DataError(
                    f"Expected {kind} in {path}; got {got!r} in line {number}, column {name}. "
                    "Mend the line."
                )
            values[name].append(int(cell))
    if not values["z1"]:
        raise DataError(f"Expected at least one row in {path}; got the header alone. Add codes.")
    return {
        name: torch.frombuffer(column, dtype=torch.int64) for name, column in values.items()
    }, texts


def _numbers_of(texts: Sequence[str]) -> Tensor | tuple[str, ...]:
    """The whole numbers that all texts are, int64; the texts themselves where one is none."""
    if not all(map(_WHOLE.fullmatch, texts)):
        return tuple(texts)
    return torch.tensor([int(text) for text in texts], device="cpu")


def _read_array(path: Path, num_latents: int, num_categories: int, key: str | None) -> CodeTable:
    values, labels = load_array(path, key)
    shape = tuple(values.shape)
    if values.is_floating_point() or values.dtype == torch.bool or shape[1:] != (num_latents,):
        raise DataError(
            f"Expected integers of shape (N, {num_latents}) in {path}; got {values.dtype} of "
            f"shape {shape}. Take codes of this model, as category indices."
        )
    codes = values.to(torch.int64)
    wrong = (codes < 0) | (codes >= num_categories)
    if wrong.any():
        row, latent = (int(place) for place in wrong.nonzero()[0])
        raise DataError(
            f"Expected categories 0 to {num_categories - 1} in {path}; got "
            f"{int(codes[row, latent])} in row {row} (counted from 0), column z{latent + 1}. Mend "
            "the row."
        )
    return CodeTable(codes, labels, None, _beside_codes(path, len(codes)))


def _beside_codes(path: Path, num_codes: int) -> dict[str, Tensor | tuple[str, ...]]:
    """The arrays "row" and "id" of a file of codes, where it has them and they have N elements."""
    if path.suffix.lower() != ".npz":
        return {}
    with np.load(path, allow_pickle=False) as archive:
        names = [name for name in ("row", "id") if name in archive.files]
        for name in names:
            check_npz(archive.zip, name, str(path))
        found = {name: archive[name] for name in names}
    return {
        name: _numbers_of([str(value) for value in values])
        for name, values in found.items()
        if values.shape == (num_codes,)
    }
