"""Whether the parts of a model fit one another, tried once before the first figure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyro_dvae.codes import one_hot
from pyro_dvae.networks.trial import Subject, Trial, in_one_line
from pyro_dvae.streams import RandomStream
from pyro_dvae.tensors import has_values

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_TRIED = "_parts_tried"
"""The attribute of a model that remembers what was tried; copies and pickles have it too."""


@contextmanager
def in_eval_mode(vae: DiscreteVAE) -> Iterator[None]:
    """Evaluation mode, without gradients; afterwards every module is in its own mode again."""
    modes = [(module, module.training) for module in vae.modules()]
    vae.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_parts(
    vae: DiscreteVAE,
    x: Tensor,
    labels: Tensor | None = None,
    *,
    guided: bool = True,
    num_data: int | None = None,
) -> None:
    """Try encoder, guide, prior, decoder and likelihood on two rows, once per model.

    This is done in evaluation mode, without gradients, and in a random stream of its own: it
    changes neither weights nor later draws. It is done again if a module was exchanged, or if data
    have another shape. It is not done inside of torch.compile, vmap and Pyro's messengers, which
    would take the trial for a part of the model. A module that has no weights yet, such as
    `nn.LazyLinear`, is tried once it has them.

    Args:
        vae: the model.
        x: (N, *event) data of the model's dtype, N >= 1, of which the first two are used.
        labels: (N,) their labels, where the prior is conditional on them.
        guided: whether to try q(z|x) too, which log p(x) does not need.
        num_data: N, where x holds only the first of the data.

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


def _check_guide(vae: DiscreteVAE, rows: Tensor, code: tuple[int, ...], num_data: int) -> None:
    encoder = type(vae.encoder).__name__
    guide = type(vae.posterior_family).__name__
    if _is_ours(vae, "encode") and _is_ours(vae, "posterior"):
        outputs = vae.posterior_family.num_outputs
        settings = {"num_latents": code[0], "num_outputs": outputs or code[1]}
        size = f"Size it for the guide {guide}"
        subject = Subject("encoder", encoder, settings, "(rows, D, C)", size)
        # Of another guide than ours the context may have any shape.
        out = None if outputs is None else (code[0], outputs)
        if _is_table(vae, rows, num_data):
            context = vae.encode(rows)[: len(rows)]
        else:
            context = Trial(subject, vae.encode, "data", rows, rows.dim() - 1, out).run()
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


def _is_table(vae: DiscreteVAE, rows: Tensor, num_data: int) -> bool:
    """Whether the encoder has a row for each of these data, and gives them all whatever it gets."""
    try:
        return num_data > 1 and len(vae.encode(rows[:1])) == num_data
    except Exception:
        return False  # which the trial tells


def _check_decoder(vae: DiscreteVAE, rows: Tensor, code: tuple[int, ...]) -> None:
    index = torch.arange(6 * code[0], device=rows.device).reshape(2, 3, -1) % code[1]
    z, event = one_hot(index, code[1], dtype=rows.dtype), tuple(rows.shape[1:])
    is_ours = _is_ours(vae, "decode")
    if is_ours:
        _try_decoder(vae, z, event)
    if not is_ours or not type(vae.likelihood).__module__.startswith("pyro_dvae."):
        p = vae.decode(z)
        lead = torch.broadcast_shapes(p.batch_shape, (2, 3))
        if (tuple(lead), tuple(p.event_shape)) != ((2, 3), event):
            raise ValueError(
                f"Expected p(x|z) of codes {tuple(z.shape)} to have batch shape (2, 3) and event "
                f"shape {event}; got {tuple(p.batch_shape)} and {tuple(p.event_shape)} of the "
                f"likelihood {type(vae.likelihood).__name__}. Keep the leading dimensions of the "
                "codes, and make the others those of the event, by .to_event(event_dim)."
            )


def _try_decoder(vae: DiscreteVAE, z: Tensor, event: tuple[int, ...]) -> None:
    params = vae.likelihood.num_params
    settings = {"num_latents": z.shape[-2], "num_categories": z.shape[-1], "event_shape": event}
    extra = () if params == 1 else (params,)
    if extra:
        settings["num_params"] = params
    size = f"Size it for the prior, the data and the likelihood {type(vae.likelihood).__name__}"
    output = f"(..., *event_shape{', num_params' * len(extra)})"
    subject = Subject("decoder", type(vae.decoder).__name__, settings, output, size)
    alone, many = (
        Trial(subject, vae.decoder, what, codes, 2, event + extra).run()
        for what, codes in (("codes", z[:, 0]), ("codes with two leading dimensions", z))
    )
    if not torch.allclose(many[:, 0], alone, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"Expected {subject} to give each code what it gives it alone; got other parameters "
            f"for codes {tuple(z.shape)} than for {tuple(z[:, 0].shape)}. Do not mix the codes."
        )


def _is_ours(vae: DiscreteVAE, name: str) -> bool:
    """Whether a method is the library's: a method that a user wrote has parts of its own."""
    owner = next(cls for cls in type(vae).__mro__ if name in vars(cls))
    return name not in vars(vae) and vars(owner)[name].__module__.startswith("pyro_dvae.")
