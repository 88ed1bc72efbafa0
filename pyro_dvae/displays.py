"""How objects of the library are shown: as text, and as tables in a notebook.

The texts read no values of tensors.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from html import escape
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_MOST_VALUES = 20
"""Largest number of values that a cell of a table shows."""


def named(**values: object) -> str:
    """Arguments as in the source of a call: "num_latents=4, num_categories=8"."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def shape_of(tensor: Tensor | None) -> str:
    """The shape and the dtype of a tensor: "(5000, 28, 28) uint8"; or "none"."""
    if tensor is None:
        return "none"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def num_parameters(module: nn.Module) -> str:
    """The number of weights of a module: "434,712 parameters"."""
    weights = list(module.parameters())
    known = sum(weight.numel() for weight in weights if not is_lazy(weight))
    unknown = " and more at the first data" if any(map(is_lazy, weights)) else ""
    return f"{known:,} parameter{'' if known == 1 else 's'}{unknown}"


def one_line(module: nn.Module) -> str:
    """A module without its children: "MLPDecoder(output_shape=(28, 28)), 219,784 parameters"."""
    return ", ".join(filter(None, _call_and_weights(module)))


def html_modules(model: nn.Module) -> str:
    """The parts of a model, by their names, as an HTML table."""
    rows = [[name, *_call_and_weights(module)] for name, module in model.named_children()]
    caption = f"{type(model).__name__}, {num_parameters(model)}"
    return html_table(["part", "module", "weights"], rows, numbers=(2,), caption=caption)


def _call_and_weights(module: nn.Module) -> tuple[str, str]:
    """How a module was made, and the number of its weights, or nothing."""
    inside = module.extra_repr() or ("..." if any(True for _ in module.children()) else "")
    has_weights = any(True for _ in module.parameters())
    weights = num_parameters(module) if has_weights else ""
    return f"{type(module).__name__}({inside})", weights


def number(value: float) -> str:
    """A figure: "-123.457", or with four digits where it is less than 1."""
    return f"{value + 0.0:.4g}" if abs(value) < 1 else f"{value:.3f}"


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    caption: str = "",
) -> str:
    """An HTML table for a notebook. Every text is escaped.

    Args:
        heads: the heads of the columns.
        rows: the cells of each row.
        numbers: indices of the columns that are aligned at the right.
        caption: what stands above the table.
    """

    def line(tag: str, texts: Sequence[str]) -> str:
        sides = ["right" if i in numbers else "left" for i in range(len(texts))]
        cells = (
            f'<{tag} style="text-align:{side};padding:0 0.5em">{escape(text)}</{tag}>'
            for side, text in zip(sides, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    style = "text-align:left;padding:0.5em"
    about = f'<caption style="{style}">{escape(caption)}</caption>' if caption else ""
    body = "".join(line("td", row) for row in rows)
    return f"<table>{about}<thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def html_images(images: Tensor, alt: str) -> str:
    """Images side by side, as one HTML picture.

    Args:
        images: (N, H, W) uint8.
        alt: what the picture shows, for those who do not see it.
    """
    from PIL import Image

    file = BytesIO()
    pixels = torch.cat(list(images.cpu()), -1)
    Image.fromarray(pixels.numpy()).save(file, format="png")
    source = f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
    return f'<img src="{source}" alt="{escape(alt)}" style="height:3em">'


def html_fields(thing: Any, caption: str, units: Mapping[str, str] | None = None) -> str:
    """The fields of a dataclass or of a named tuple as an HTML table, those that are not None.

    Args:
        thing: the object.
        caption: what stands above the table.
        units: name of a field -> its unit; the table has no column of units without any.
    """
    values = vars(thing) if is_dataclass(thing) else thing._asdict()
    rows = [
        [name.replace("_", " "), shown(value), *([units.get(name, "")] if units else [])]
        for name, value in values.items()
        if value is not None
    ]
    heads = ["", "value", *(["unit"] if units else [])]
    return html_table(heads, rows, numbers=(1,) if units else (), caption=caption)


def shown(value: Any) -> str:
    """A value in a cell of a table: a figure, the shape of a tensor, or its text."""
    if isinstance(value, Tensor):
        return shape_of(value)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        more = ["..."] if len(value) > _MOST_VALUES else []
        return ", ".join([*map(shown, value[:_MOST_VALUES]), *more])
    return str(value)
