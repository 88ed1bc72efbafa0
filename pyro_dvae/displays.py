"""Text for the reprs of the library. It reads no values of tensors."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.parameter import is_lazy


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
    inside = module.extra_repr() or ("..." if any(True for _ in module.children()) else "")
    has_weights = any(True for _ in module.parameters())
    weights = f", {num_parameters(module)}" if has_weights else ""
    return f"{type(module).__name__}({inside}){weights}"
