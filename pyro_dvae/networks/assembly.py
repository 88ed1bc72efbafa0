"""Whether the parts of a model fit one another: tried once, before the first figure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyro_dvae.codes import one_hot
from pyro_dvae.networks.trial import Part, in_one_line, try_rows
from pyro_dvae.streams import RandomStream
from pyro_dvae.tensors import has_values

_TRIED = "_parts_tried"
"""The attribute of a model that keeps what was tried: a copy or a pickle of it knows it too."""


@contextmanager
def in_eval_mode(vae: Any) -> Iterator[None]:
    """In eval mode and without gradients; every module's own mode comes back."""
    modes = [(module, module.training) for module in vae.modules()]
    vae.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_parts(
    vae: Any,
    x: Tensor,
    labels: Tensor | None = None,
    *,
    guided: bool = True,
    num_data: int | None = None,
) -> None:
    """Try encoder, guide, prior, decoder and likelihood on two rows, once per model.

    In eval mode, without gradients, and in a random stream of its own, so that nothing moves. It
    is done anew where a module was exchanged or data have another shape, and left out where it
    would be part of something else: in a graph that torch.compile makes, under vmap, and under
    Pyro's messengers. A module without weights yet, such as `nn.LazyLinear`, is tried once it has
    them.

    Args:
        vae: a `DiscreteVAE`.
        x: (N, *event) of the model's dtype, N >= 1, of which two are looked at.
        labels: (N,), where the prior is conditional on them.
        guided: whether q(z|x) is tried too, which log p(x) does without.
        num_data: N, where x are only the first of the data.

    Raises:
        ValueError: the parts do not fit; names the parts and both sizes.
    """
    weights = [*vae.parameters()]
    if am_i_wrapped() or any(map(is_lazy, weights)) or not all(map(has_values, [x, *weights])):
        return
    known = (*list(vae.modules())[1:], tuple(x.shape[1:]), x.dtype)
    tried: dict[bool, Any] = vars(vae).get(_TRIED, {})
    if known in (tried.get(guided), tried.get(True)):
        return
    rows = x[:2].detach()
    with RandomStream(0, x.device), in_eval_mode(vae):
        p = vae.prior_codes(*(() if labels is None else (labels[:2],)))
        code = tuple(p.event_shape)
        if guided:
            _check_guide(vae, rows, code, num_data or len(x))
        _check_decoder(vae, rows, code)
    object.__setattr__(vae, _TRIED, {**tried, guided: known})


def _check_guide(vae: Any, rows: Tensor, code: tuple[int, ...], num_data: int) -> None:
    encoder = type(vae.encoder).__name__
    guide = type(vae.posterior_family).__name__
    if _is_ours(vae, "encode") and _is_ours(vae, "posterior"):
        outputs = vae.posterior_family.num_outputs
        settings = {"num_latents": code[0], "num_outputs": outputs or code[1]}
        part = Part("encoder", encoder, settings, "(rows, D, C)", f"Size it for the guide {guide}")
        # Of another guide than ours the context may have any shape.
        out = None if outputs is None else (code[0], outputs)
        if _is_table(vae, rows, num_data):
            context = vae.encode(rows)[: len(rows)]
        else:
            context = try_rows(part, vae.encode, "data", rows, rows.dim() - 1, out)
        try:
            q = vae.posterior_family(context)
        except Exception as error:
            raise ValueError(
                f"Expected the guide {guide} to take what the encoder {encoder} says of data, "
                f"{tuple(context.shape)}; got {in_one_line(error)}. Build both for one shape."
            ) from error
    else:
        q = vae.posterior(rows)
    if tuple(q.event_shape) != code:
        raise ValueError(
            f"Expected codes of one shape (D, K) in all parts; got {code} from the prior "
            f"{type(vae.prior).__name__} and {tuple(q.event_shape)} from the encoder {encoder} "
            f"with the guide {guide}. Build them for the same latents and categories."
        )
    if tuple(q.batch_shape) != (len(rows),):
        raise ValueError(
            f"Expected q(z|x) with a batch shape of one code per datum, ({len(rows)},); got "
            f"{tuple(q.batch_shape)} from the encoder {encoder} with the guide {guide}. Keep the "
            "rows of the data as the first dimension."
        )


def _is_table(vae: Any, rows: Tensor, num_data: int) -> bool:
    """Whether the encoder has a row for each of these data, and gives them all whatever it gets."""
    try:
        return num_data > 1 and len(vae.encode(rows[:1])) == num_data
    except Exception:
        return False  # which the trial tells


def _check_decoder(vae: Any, rows: Tensor, code: tuple[int, ...]) -> None:
    event, params = tuple(rows.shape[1:]), int(vae.likelihood.num_params)
    index = torch.arange(6 * code[0], device=rows.device).reshape(2, 3, -1) % code[1]
    z = one_hot(index, code[1], dtype=rows.dtype)
    if not _is_ours(vae, "decode"):
        p = vae.decode(z)
        if (tuple(p.batch_shape), tuple(p.event_shape)) != ((2, 3), event):
            raise ValueError(
                f"Expected p(x|z) of codes {tuple(z.shape)} to have batch shape (2, 3) and event "
                f"shape {event}; got {tuple(p.batch_shape)} and {tuple(p.event_shape)}. Keep the "
                "leading dimensions of the codes."
            )
        return
    settings = {"num_latents": code[0], "num_categories": code[1], "event_shape": event}
    extra = () if params == 1 else (params,)
    if extra:
        settings["num_params"] = params
    size = f"Size it for the prior, the data and the likelihood {type(vae.likelihood).__name__}"
    output = f"(..., *event_shape{', num_params' * len(extra)})"
    part = Part("decoder", type(vae.decoder).__name__, settings, output, size)
    alone = try_rows(part, vae.decoder, "codes", z[:, 0], 2, event + extra)
    many = try_rows(part, vae.decoder, "codes with two leading dimensions", z, 2, event + extra)
    if not torch.allclose(many[:, 0], alone, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"Expected {part} to give each code what it gives it alone; got other parameters for "
            f"codes {tuple(z.shape)} than for {tuple(z[:, 0].shape)}. Do not mix the codes."
        )


def _is_ours(vae: Any, name: str) -> bool:
    """Whether a method is the library's: what somebody has put in its place has its own parts."""
    method = getattr(type(vae), name)
    return name not in vars(vae) and method.__module__.startswith("pyro_dvae.")
