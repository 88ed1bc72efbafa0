"""Shapes of sites that would give a number without a meaning are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from pyro.util import check_site_shape
from torch import Tensor

from pyro_dvae.codes import code_logits, code_value, one_hot

Sites = Mapping[str, Any]


def check_match(latents: Sites, guide_sites: Sites, nesting: float = math.inf) -> None:
    """Refuse a guide that draws a latent of the model in another shape, or other plates.

    Pyro does so too where its checks are on, but not for plates nested in another order.

    Args:
        latents: of the model.
        guide_sites: of the guide.
        nesting: the most plates around a site; dimensions left of them hold alternative codes.

    Raises:
        ValueError: the message names the site and both shapes.
    """
    for name in guide_sites.keys() & latents.keys():
        in_model, in_guide = latents[name], guide_sites[name]
        _check_plates(name, in_model, in_guide)
        (plates, event), (guide_plates, guide_event) = (
            _plated_shape(site["fn"], nesting) for site in (in_model, in_guide)
        )
        if (plates, event) != (guide_plates, guide_event):
            raise ValueError(
                f"Expected one shape of site '{name}' in model and guide; got plates of sizes "
                f"{plates} and {event} event dimensions in the model, {guide_plates} and "
                f"{guide_event} in the guide. Draw it in the same plates and the same .to_event."
            )


def check_shapes(sites: Iterable[Any], nesting: float = math.inf) -> None:
    """Refuse sites whose values or log-probabilities do not fit their plates.

    Pyro checks as much where its checks are on, but for observations left of the plates.

    Args:
        sites: with their log-probabilities.
        nesting: as in `check_match`.

    Raises:
        ValueError: the message names the site, the shapes and what to do.
    """
    for site in sites:
        if site["is_observed"]:
            _check_observation(site, nesting)
        check_site_shape(site, nesting)  # type: ignore[arg-type]  # infinite is allowed
        shape, plates = site["log_prob"].shape, _dims(site).values()
        for dim in range(-int(min(len(shape), nesting)), 0):
            if shape[dim] != 1 and dim not in plates:  # Pyro lets these pass between plates
                raise ValueError(
                    f"Expected the log-probability of site '{site['name']}' to have the dimensions "
                    f"of its plates alone; got {tuple(shape)}, dimension {dim} being of no plate. "
                    "Put the site into a plate there, or use .to_event."
                )


def _check_observation(site: Any, nesting: float) -> None:
    value = site["value"]
    if not isinstance(value, Tensor) or not value.numel():  # that of a factor is empty
        return
    lead = value.shape[: max(0, value.dim() - site["fn"].event_dim)]
    if len(lead) > nesting and max(lead[: len(lead) - int(nesting)]) > 1:
        raise ValueError(
            f"Expected an observation at site '{site['name']}' with no dimension left of its "
            f"plates; got {tuple(value.shape)}. Reshape the data, as by squeeze(-1), or use "
            ".to_event."
        )


def _check_plates(name: str, model_site: Any, guide_site: Any) -> None:
    in_model, in_guide = (
        {f.name: (f.dim, f.full_size or f.size) for f in site["cond_indep_stack"]}
        for site in (model_site, guide_site)
    )
    for plate in sorted(in_model.keys() & in_guide.keys()):
        if in_model[plate] != in_guide[plate]:
            (dim, size), (guide_dim, guide_size) = in_model[plate], in_guide[plate]
            raise ValueError(
                f"Expected plate '{plate}' with one dimension and size in model and guide; got "
                f"dim={dim} and {size} in the model, dim={guide_dim} and {guide_size} in the guide "
                f"at site '{name}'. Nest the plates in one order, or give each its dim."
            )


def _dims(site: Any) -> dict[str, int]:
    """The vectorised plates around a site, by name."""
    return {frame.name: frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}


def _plated_shape(fn: Any, nesting: float) -> tuple[tuple[int, ...], int]:
    """Sizes in the dimensions of plates, without ones to the left, and the event dimensions."""
    shape = list(fn.batch_shape)
    shape = shape[len(shape) - int(min(nesting, len(shape))) :]
    while shape and shape[0] == 1:
        shape.pop(0)
    return tuple(shape), fn.event_dim


def without_dims(
    sites: Sites, dims: Mapping[str, int], own: Mapping[str, torch.Size]
) -> Iterator[tuple[str, str]]:
    """Pairs of a site and a code drawn before it, whose alternatives the site may have mixed.

    A program that runs at several codes at once must keep their dimension in all that depends on
    them. A site without the dimension either does not depend on the code or has summed over its
    alternatives. Plates promise the former, as long as the site lies in all plates of the code and
    other codes account for its value.

    Args:
        sites: of one trace, in order.
        dims: code site -> the dimension, counted from the right, of its alternatives.
        own: batch shapes of distributions, where they are not those of the trace.
    """
    seen: dict[str, set[str]] = {}
    for name, site in sites.items():
        shape = own.get(name, site["fn"].batch_shape)
        lacks = {code for code in seen if not _has(shape, dims[code])}
        alone = site["is_observed"] and len(lacks) == len(seen)
        plates = _dims(site).keys()
        for code in sorted(lacks):
            if alone or seen[code] - plates:
                yield name, code
        if name in dims:
            seen[name] = set(_dims(site))


def _has(shape: torch.Size, dim: int) -> bool:
    return len(shape) >= -dim and shape[dim] > 1


def refuse_mixed(
    suspects: Iterable[tuple[str, str]],
    rerun: Callable[[Mapping[str, Tensor]], Sites],
    drawn: Sites,
) -> None:
    """Refuse the first suspect whose log-probability changes with the code.

    Args:
        suspects: pairs of a site and a code.
        rerun: gives the sites of the suspects' program, run at other values of codes.
        drawn: the latent sites at the first values.

    Raises:
        ValueError: the message names the site and the code.
    """
    devices = range(torch.cuda.device_count())
    for name, code in suspects:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            first, *others = (
                _seeded(rerun, {code: value})[name]["log_prob"]
                for value in list(_alternatives(drawn[code]))
            )
        if any(not torch.allclose(first, other, 1e-5, 0, equal_nan=True) for other in others):
            raise ValueError(
                f"Expected site '{name}' to keep the dimensions left of the plates of code "
                f"'{code}', on which it depends, for several codes run at once; got none of them. "
                "Sum over the dimension of a plate alone, as z.sum(-1, keepdim=True) does for "
                "indices in a plate, or use ReinforceELBO with one particle."
            )


def _seeded(run: Callable[[Mapping[str, Tensor]], Sites], values: Mapping[str, Tensor]) -> Sites:
    torch.manual_seed(0)  # layers that draw must draw the same each time
    return run(values)


def _alternatives(site: Any) -> Iterator[Tensor]:
    """Values of a discrete site: as drawn, the ends of its support, and some at random."""
    fn, value = site["fn"], site["value"]
    logits = code_logits(fn)
    yield value
    if logits is None:  # Bernoulli and the like
        yield from (torch.zeros_like(value), torch.ones_like(value), fn.sample(), fn.sample())
        return
    num = logits.shape[-1]
    lead = value.shape if value.dtype == torch.long else value.shape[:-1]
    full = torch.zeros(lead, dtype=torch.long, device=value.device)
    for index in (full, full + num - 1, *(torch.randint_like(full, num) for _ in range(3))):
        codes = one_hot(index, num, dtype=logits.dtype)
        yield code_value(fn, codes)
