"""Data as users hold them: every kind gives the same numbers, or one line says what to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pyro_dvae import BinaryImages
from pyro_dvae.data import SubsetRows, as_rows
from pyro_dvae.tensors import as_data, as_labels

BITS = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 1]])


def _read_only(dtype: str) -> Any:
    array = BITS.astype(dtype)
    array.flags.writeable = False
    return array


# Name -> the same bits in another dress.
SAME: dict[str, Callable[[], Any]] = {
    **{
        f"tensor of {dtype}": lambda dtype=dtype: torch.tensor(BITS).to(dtype)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    },
    **{
        f"tensor of {dtype}": lambda dtype=dtype: torch.tensor(BITS).to(dtype)
        for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)
    },
    **{
        f"array of {kind}": lambda kind=kind: BITS.astype(kind)
        for kind in ("f8", ">f4", "f2", "g", "i8", ">i2", "u1", "u2", "u4", "u8", "?")
    },
    "read-only array": lambda: _read_only("f4"),
    "array with strides below 0": lambda: BITS[::-1].copy()[::-1],
    "masked array without gaps": lambda: np.ma.masked_array(BITS, mask=False),
    "list": lambda: BITS.tolist(),
    "DataFrame": lambda: pd.DataFrame(BITS),
    "DataFrame of several types": lambda: pd.DataFrame(
        {"a": BITS[:, 0].astype(bool), "b": BITS[:, 1].astype(float), "c": BITS[:, 2]}
    ),
    "DataFrame of pandas' own types": lambda: pd.DataFrame(BITS).astype("Int64"),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers_in_the_models_type(name: str, dtype: torch.dtype) -> None:
    result = as_data(SAME[name](), torch.zeros((), dtype=dtype))
    assert result.dtype == dtype
    assert result.tolist() == BITS.tolist()


def test_what_fits_is_not_copied(device: torch.device) -> None:
    x = torch.rand(2, 3, device=device, requires_grad=True)
    assert as_data(x, x) is x


class _Items(Dataset[Any]):
    """A data set of what a list holds."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize(
    "held",
    [
        lambda x: {"data": x.numpy(), "target": [1, 2]},
        lambda x: {"label": [1, 2], "image": x.tolist()},
        lambda x: TensorDataset(x),
        lambda x: TensorDataset(x, torch.arange(len(x))),
        lambda x: _Items([{"x": row.numpy(), "label": 3} for row in x]),
        lambda x: as_rows(x),
        lambda x: SubsetRows(as_rows(x.flip(0)), torch.arange(len(x)).flip(0)),
        lambda x: pd.DataFrame(x.numpy()),
        lambda x: as_rows(pd.DataFrame(x.numpy())),
    ],
)
def test_what_holds_data_is_taken(held: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    like = torch.zeros(1, dtype=torch.float32)
    assert torch.equal(as_data(held(x), like), x.float())


class _Sparse:
    __module__ = "scipy.sparse"


_TENSOR = torch.tensor(BITS).float()

# Name -> what cannot be data, and what the message must name.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "DataLoader": (lambda: DataLoader(TensorDataset(_TENSOR)), r"DataLoader\. .*torch\.cat"),
    "empty Dataset": (lambda: TensorDataset(_TENSOR[:0]), "got TensorDataset"),
    "dict of other keys": (lambda: {"a": _TENSOR, "b": 1}, "under data, x, .* with the keys a, b"),
    "pair": (lambda: (_TENSOR, torch.arange(4)), r"tuple\. Pass x and its labels as two"),
    "BinaryImages": (
        lambda: BinaryImages(torch.zeros(2, 3, 3, dtype=torch.uint8)),
        r"BinaryImages\. .*fixed\(seed=0\)",
    ),
    "scipy's": (_Sparse, r"_Sparse\. Pass x\.toarray\(\)"),
    "nothing": (lambda: None, "got NoneType"),
    "a name of a file": (lambda: "x.npy", "got str"),
    "ragged list": (lambda: [[1, 0], [1]], "list"),
    "text": (lambda: np.array([["a", "b"]]), "of <U1"),
    "column of text": (
        lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        r"of str.*pyro_dvae\.data\.as_rows",
    ),
    "dates": (lambda: np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
    "masked": (lambda: np.ma.masked_array(BITS, mask=BITS == 0), "without gaps"),
    "complex": (lambda: torch.zeros(2, dtype=torch.complex64), "complex64"),
    "sparse": (lambda: _TENSOR.to_sparse(), "sparse_coo"),
    "one number": (lambda: np.float64(1.0), "a single number"),
    "too large for float32": (
        lambda: torch.tensor([[2**24 + 1]]),
        "float32 can represent.* 16777217",
    ),
    "too large for int64": (lambda: np.array([[2**64 - 1]], dtype="u8"), "int64 can represent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_data_is_refused_in_one_line(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(ValueError, match=rf"^Expected .*{words}") as caught:
        as_data(build(), torch.zeros((), dtype=torch.float32))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0, 2], dtype=torch.int32), np.array([0, 2], dtype="u1"), pd.Series([0, 2])],
)
def test_labels_become_int64(labels: Any) -> None:
    result = as_labels(labels, torch.device("cpu"))
    assert result.dtype == torch.int64
    assert result.tolist() == [0, 2]


def test_labels_of_another_kind_are_left_to_the_prior() -> None:
    given: Tensor = torch.tensor([0.5, 1.0])
    assert as_labels(given, given.device) is given
