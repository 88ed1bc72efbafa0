"""Checks of the shapes of sites. A wrong shape could give a wrong loss without an error."""

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
    """Refuse a guide that draws a latent of the model in another shape, or in other plates.

    If Pyro's checks are on, it does so too, but not for plates that are nested in another order.

    Args:
        latents: the latent sites of the model.
        guide_sites: the sites of the guide.
        nesting: the largest number of plates around a site. Dimensions left of these plates hold
            several codes, and are not compared. Infinite if there are none.

    Raises:
        ValueError: shapes or plates differ. The message names the site, and what is different.
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

    If Pyro's checks are on, it does so too, but not for observations with dimensions left of the
    plates.

    Args:
        sites: traced sites, with their log-probabilities.
        nesting: the largest number of plates around a site. Dimensions left of these plates hold
            several codes, and are not checked. Infinite if there are none.

    Raises:
        ValueError: a shape does not fit. The message names the site, its shape and what to do.
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
                    f"of its plates alone; got {tuple(shape)}, where dimension {dim} is no plate. "
                    "Put the site into a plate there, or use .to_event."
                )


def _check_observation(site: Any, nesting: float) -> None:
    value = site["value"]
    if not isinstance(value, Tensor) or not value.numel():  # the value of a factor is empty
        return
    lead = value.shape[: max(0, value.dim() - site["fn"].event_dim)]
    if len(lead) > nesting and max(lead[: len(lead) - int(nesting)]) > 1:
        raise ValueError(
            f"Expected an observation at site '{site['name']}' with no dimension left of its "
            f"plates; got {tuple(value.shape)}. Reshape the data, for example with squeeze(-1), "
            "or use .to_event."
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
                f"at site '{name}'. Nest the plates in the same order, or give each its dim."
            )


def _dims(site: Any) -> dict[str, int]:
    """Name of each vectorised plate around a site -> its dimension."""
    return {frame.name: frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}


def _plated_shape(fn: Any, nesting: float) -> tuple[tuple[int, ...], int]:
    """The sizes of the plates, without ones on the left, and the number of event dimensions."""
    shape = list(fn.batch_shape)
    shape = shape[len(shape) - int(min(nesting, len(shape))) :]
    while shape and shape[0] == 1:
        shape.pop(0)
    return tuple(shape), fn.event_dim


def without_dims(
    sites: Sites, dims: Mapping[str, int], own: Mapping[str, torch.Size]
) -> Iterator[tuple[str, str]]:
    """Pairs of names, a site and an earlier code site, where the site may have mixed the codes.

    A program that runs at several codes at once must keep their dimension in all that depends on
    them. If a site lacks the dimension, either it does not depend on the code, or it has summed
    over the codes. It is taken not to depend on the code if it lies in all plates of the code,
    unless it is observed and lacks the dimensions of all codes.

    Args:
        sites: the sites of one trace, in order.
        dims: code site -> the dimension that holds its several codes, counted from the right (-1 is
            the last).
        own: site -> batch shape of its distribution, if it differs from that in the trace.
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
    """Refuse a program if the log-probability of a site depends on a code, against its shape.

    Args:
        suspects: pairs of names, a site and a code site, such as those of `without_dims`.
        rerun: maps code site -> other values to the sites of the program, run at these values.
        drawn: the latent sites, with the values that were drawn.

    Raises:
        ValueError: the site depends on the code. The message names both.
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
                f"'{code}', on which it depends, since several codes are run at once; got none of "
                "them. Sum over the dimension of one plate, such as by z.sum(-1, keepdim=True) for "
                "indices in a plate, or use ReinforceELBO with one particle."
            )


def _seeded(run: Callable[[Mapping[str, Tensor]], Sites], values: Mapping[str, Tensor]) -> Sites:
    torch.manual_seed(0)  # dropout and the like must be the same each time
    return run(values)


def _alternatives(site: Any) -> Iterator[Tensor]:
    """Values of a discrete site: the draw, the first and the last value, and random ones."""
    fn, value = site["fn"], site["value"]
    logits = code_logits(fn)
    yield value
    if logits is None:  # such as a Bernoulli
        yield from (torch.zeros_like(value), torch.ones_like(value), fn.sample(), fn.sample())
        return
    num = logits.shape[-1]
    lead = value.shape if value.dtype == torch.long else value.shape[:-1]
    full = torch.zeros(lead, dtype=torch.long, device=value.device)
    for index in (full, full + num - 1, *(torch.randint_like(full, num) for _ in range(3))):
        codes = one_hot(index, num, dtype=logits.dtype)
        yield code_value(fn, codes)
