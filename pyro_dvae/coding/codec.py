"""`compress` and `decompress`: data as few bits, by a model, without loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.checks import at_least, one_of
from pyro_dvae.coding.arithmetic import model_hash, reference_arithmetic, reference_model
from pyro_dvae.coding.container import Header, Way, unpack
from pyro_dvae.coding.elements import MOST_WINDOW
from pyro_dvae.coding.encoder import Compressed, Encoder
from pyro_dvae.coding.stack import Stack, require_constriction
from pyro_dvae.coding.values import ArrayValues, Values, restored
from pyro_dvae.coding.ways import BlockCoder

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


def compress(
    vae: DiscreteVAE, values: Any, *, way: Way | None = None, refine: int | None = None
) -> Compressed:
    """About sum_n -log2 p(x_n) bits for data x, which `decompress` makes the same data of.

    There are three ways to code a datum x with a code z:

    - "code": z is the most probable code, coded by p(z); then x is coded by p(x|z). It takes
      -log2 p(x, z) bits.
    - "bits-back": z is drawn from the guide's q(z|x), by bits of the data before, which the decoder
      gets back. It takes -ELBO / log 2 bits (Townsend, Bird & Barber 2019, arXiv:1901.04866).
    - "exact": the same with p(z|x), which needs sums over all K^D codes. It takes -log2 p(x) bits.

    The networks run in double precision with one thread, whatever the user has set.

    Args:
        vae: the model.
        values: (N, *event_shape), an array or a tensor of bits, levels or counts, of any dtype of
            numbers. It is what the likelihood takes.
        way: how codes are coded; None for "exact" where the sums are cheap, else for that of the
            two others which takes fewer bits for the first data.
        refine: sweeps of coordinate ascent that look for a more probable code, where there are too
            many codes to compare them all; None for none. It goes with way="code".

    Raises:
        ValueError: the likelihood gives densities, the prior is conditional on labels, or the
            values are none that the likelihood takes, or not the same after a round trip.
        MissingConstriction: the package constriction is not installed.
    """
    return compress_values(vae, ArrayValues(values), way=way, refine=refine)


def compress_values(
    vae: DiscreteVAE,
    values: Values,
    *,
    way: Way | None = None,
    refine: int | None = None,
) -> Compressed:
    """The same of data that need not be in memory at once.

    Args:
        vae: the model.
        values: the data.
        way: as of `compress`.
        refine: as of `compress`.
    """
    require_constriction()
    if way is not None:
        one_of("way", way, get_args(Way))
    if refine is not None:
        at_least("sweeps", refine, 1)
        if way != "code":
            raise ValueError(
                f"Expected refine={refine} with way='code'; got {way!r}. Leave it out."
            )
    with reference_arithmetic():
        model = reference_model(vae)
        encoder = Encoder(vae, model, values, refine)
        chosen = encoder.choose() if way is None else way
        return encoder.compress(chosen)


def decompress(vae: DiscreteVAE, content: bytes, what: str = "the content") -> NDArray[Any]:
    """The data that `compress` was given, (N, *event_shape), of the same dtype.

    Args:
        vae: the model that compressed them.
        content: of `Compressed`.
        what: what the content is called in messages.

    Raises:
        ValueError: the content is damaged, is that of another model, or this machine computes other
            probabilities than that which compressed it.
        MissingConstriction: the package constriction is not installed.
    """
    require_constriction()
    header, checksums, words = unpack(content, what)
    with reference_arithmetic():
        model = reference_model(vae)
        if model_hash(model) != header.model:
            raise ValueError(
                f"Expected the model that compressed {what}; got another one. Name the run that "
                "it was compressed with."
            )
        coder = BlockCoder(model, header.way, header.window)
        _check(header, coder, what)
        return _decompress(header, checksums, words, coder, what)


def _check(header: Header, coder: BlockCoder, what: str) -> None:
    """Refuse a header that does not fit the model, before anything is made of it."""
    takes_counts = any(part.escapes for part in coder.elements.parts)
    fits = (
        tuple(header.shape[1:]) == coder.event_shape
        and header.block == coder.size
        and takes_counts == (header.window > 0)
        and header.window <= MOST_WINDOW
    )
    if not fits:
        raise ValueError(
            f"Expected data of shape (N, {', '.join(map(str, coder.event_shape))}) in blocks of "
            f"{coder.size} in {what}; got shape {header.shape} in blocks of {header.block}. "
            "Restore the file."
        )


def _decompress(
    header: Header,
    checksums: list[int],
    words: NDArray[np.uint32],
    coder: BlockCoder,
    what: str,
) -> NDArray[Any]:
    stack, dtype = Stack(words), np.dtype(header.dtype)
    blocks: list[NDArray[Any]] = []
    sizes = header.sizes
    for number in reversed(range(len(sizes))):
        back = header.way != "code" and number > 0
        try:
            found, x = coder.pop(stack, sizes[number], gives_back=back)
        except ValueError:  # of what is read as data, and is none
            found = None
        if found != checksums[number]:
            raise ValueError(
                f"Expected the probabilities that {what} was compressed by; got others in block "
                f"{number}, since this machine or its torch rounds otherwise. Decompress it where "
                "it was compressed."
            )
        blocks.append(restored(x.numpy().astype(np.int64), dtype, header.values))
    if not stack.is_empty:
        raise ValueError(
            f"Expected all of {what} to be read; got words that are left over. Restore the file."
        )
    return np.concatenate(blocks[::-1]).astype(dtype, copy=False)  # the byte order is lost there
