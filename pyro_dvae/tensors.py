"""Converts arrays, tables and tensors of any type to tensors of the model's dtype and device."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

_NUMBERS = (bool, int, float, np.number, np.bool_)

DATA_KEYS = ("data", "x", "image", "images", "img", "pixel_values")
"""The keys under which the dicts of other libraries hold data: scikit-learn's, Hugging Face's."""
LABEL_KEYS = ("label", "labels", "y", "target", "fine_label")
"""Those under which they hold labels."""


@runtime_checkable
class _Rows(Protocol):
    """What `pyro_dvae.data` gives: rows that are read by their numbers."""

    @property
    def event_shape(self) -> tuple[int, ...]: ...

    def read(self, index: Tensor) -> Tensor: ...

    def __len__(self) -> int: ...


def as_data(x: Any, like: Tensor) -> Tensor:
    """Data as a tensor of the dtype and on the device of `like`.

    A tensor of that dtype on that device is returned as it is. No values are rescaled. The
    likelihood checks them.

    Args:
        x: (N, *event): a tensor, or an object that NumPy converts to an array (an array, a
            DataFrame of numbers, lists); rows of `pyro_dvae.data`; a dict that holds one of these
            under one of `DATA_KEYS`, such as scikit-learn's Bunch; or a map-style data set of
            torch, whose items are data, or pairs of data and labels.
        like: a weight of the model.

    Returns:
        (N, *event).

    Raises:
        ValueError: x cannot be converted, has elements that are no real numbers, has no dimension
            of rows, or has whole numbers that the dtype of `like` cannot represent. The message
            says what to pass.
    """
    x = _held(x)
    given = x if isinstance(x, Tensor) else _shared(_array(x))
    if given.dtype.is_complex or given.layout != torch.strided:
        kind = given.dtype if given.layout == torch.strided else given.layout
        raise ValueError(
            f"Expected data as dense, real numbers; got a tensor of {kind}. Pass x.to_dense() of a "
            "sparse tensor, or the real part."
        )
    if given.dim() == 0:
        raise ValueError("Expected data (N, *event); got a single number. Pass x.reshape(1).")
    result = given.to(like.device, like.dtype)
    if not given.dtype.is_floating_point:
        _refuse_rounded(given, result)
    return result


def as_labels(labels: Any, device: torch.device) -> Tensor:
    """Labels as a tensor on the device; integers of any size become int64.

    NaN, among numbers that are whole, stands for a label that is not known. It becomes -1.

    Args:
        labels: (N,): a tensor, or an object that NumPy converts to an array.
        device: the model's device.

    Raises:
        ValueError: the labels cannot be converted. The prior checks their values.
    """
    given = labels if isinstance(labels, Tensor) else _shared(_array(labels))
    if given.dtype.is_floating_point:
        missing = given.isnan()
        if missing.any() and (given[~missing] == given[~missing].round()).all():
            return given.masked_fill(missing, -1).to(device, torch.int64)
    whole = not (given.dtype.is_floating_point or given.dtype.is_complex)
    return given.to(device, torch.int64 if whole and given.dtype != torch.bool else given.dtype)


def as_arguments(vae: nn.Module, x: Any, labels: Any = None) -> tuple[Tensor, Tensor | None]:
    """Data and labels as tensors for a model, by `as_data` and `as_labels`.

    Args:
        vae: a model; the first of its weights says dtype and device.
        x: (N, *event).
        labels: (N,), or None.
    """
    like = next((w for w in vae.parameters() if w.is_floating_point()), torch.empty(0))
    return as_data(x, like), None if labels is None else as_labels(labels, like.device)


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read: not while a graph is compiled, nor under vmap."""
    return not (torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(tensor))


def first_key(held: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first of some keys that a dict has; None if it has none."""
    return next((key for key in keys if key in held), None)


def _held(x: Any) -> Any:
    """The data that rows, a dict or a data set of torch hold; other objects as they are."""
    if isinstance(x, Mapping):
        key = first_key(x, DATA_KEYS)
        if key is None:
            raise ValueError(
                f"Expected a dict with data under {', '.join(DATA_KEYS)}; got one with the keys "
                f"{', '.join(map(str, list(x)[:8]))}. Pass the array alone."
            )
        return x[key]
    if isinstance(x, _Rows):
        return x.read(torch.arange(len(x), device="cpu"))
    if isinstance(x, torch.utils.data.Dataset) and isinstance(x, Sized) and len(x) > 0:
        items = [x[i] for i in range(len(x))]
        data = [_held(i) if isinstance(i, Mapping) else i for i in items]
        data = [i[0] if isinstance(i, (tuple, list)) else i for i in data]
        same = all(isinstance(row, Tensor) for row in data)
        return torch.stack(data) if same else np.stack([np.asarray(row) for row in data])
    return x


def _array(x: Any) -> np.ndarray[Any, Any]:
    """An array of real numbers or bools."""
    name, module = type(x).__name__, type(x).__module__.partition(".")[0]
    advice = "Pass one tensor or array of all rows, (N, *event)."
    if hasattr(x, "fixed"):  # `PreparedData`, which draws bits anew for each batch
        advice = "Pass one draw of it: data.fixed(seed=0)."
    elif isinstance(x, tuple):
        advice = "Pass x and its labels as two arguments."
    elif module == "scipy":
        advice = "Pass x.toarray()."
    elif hasattr(x, "dataset"):
        advice = "Pass one tensor of all rows: torch.cat([batch[0] for batch in loader])."
    if not (isinstance(x, list) or hasattr(x, "__array__")):
        raise ValueError(f"Expected data as a tensor, an array or a table; got {name}. {advice}")
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise ValueError(
            "Expected data without gaps; got a masked array. Fill in the masked elements, or leave "
            "their rows out."
        )
    try:
        array = np.asarray(x)
        if array.dtype == object and all(isinstance(value, _NUMBERS) for value in array.flat):
            array = array.astype(np.float64)  # a table of columns of several types
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"Expected data as a tensor, an array or a table; got {name}, which NumPy cannot "
            f"convert to an array ({error}). {advice}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected data of numbers; got {name} of {_element(array)}. Pass only the numeric "
            "columns, or replace all other values by numbers, as pyro_dvae.data.as_rows does with "
            "the names in a table."
        )
    return array


def _element(array: np.ndarray[Any, Any]) -> str:
    """The type of elements that are no numbers: the dtype, or the type of the first of them."""
    if array.dtype != object:
        return str(array.dtype)
    odd = next((value for value in array.flat if not isinstance(value, _NUMBERS)), None)
    return type(odd).__name__


def _shared(array: np.ndarray[Any, Any]) -> Tensor:
    """The array as a tensor, which shares its memory if torch can.

    Torch cannot use other byte orders, negative strides, read-only memory, or some of the dtypes.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if (kind == "u" and size > 1) or (kind == "f" and size > 8):
        dtype = np.dtype(np.int64 if kind == "u" else np.float64)
    else:
        dtype = array.dtype.newbyteorder("=")
    tensor = torch.from_numpy(np.require(array, dtype=dtype, requirements=["C", "W"]))
    if kind == "u" and (tensor < 0).any():
        _refuse_size(array.max(), "int64")
    return tensor


def _refuse_rounded(given: Tensor, result: Tensor) -> None:
    """Raise a ValueError if the model's dtype cannot represent a whole number exactly."""
    changed = result.to(given.dtype) != given
    if changed.any():
        name = str(result.dtype).removeprefix("torch.")
        _refuse_size(given[changed].flatten()[0].item(), name)


def _refuse_size(value: Any, name: str) -> NoReturn:
    raise ValueError(
        f"Expected whole numbers that {name} can represent exactly; got {value}. Use smaller "
        "units, or a model in double precision (vae.double())."
    )
