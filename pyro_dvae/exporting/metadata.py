"""What an exported model says of itself: its inputs, its code, its likelihood and its prior."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import torch

from pyro_dvae._version import __version__
from pyro_dvae.codes import code_logits
from pyro_dvae.data import Preparation
from pyro_dvae.exporting.graphs import Graph, has_prior_graph
from pyro_dvae.likelihoods import Likelihood, Masked, Mixed
from pyro_dvae.runs.config import preparation_of
from pyro_dvae.runs.run import Run
from pyro_dvae.vae import DiscreteVAE

_MOST_NUMBERS = 100_000
"""The most numbers of a constant of a likelihood, or of the logits of a prior, in the metadata."""
_PACKAGES = ("torch", "pyro-ppl", "numpy", "onnx", "onnxscript", "onnxruntime")


def metadata_of(
    run: Run, vae: DiscreteVAE, graphs: Sequence[Graph], format: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """The metadata of an export, as JSON takes them.

    Args:
        run: the run.
        vae: its model, on the CPU.
        graphs: what is exported.
        format: the name of the format.
        files: graph -> the name of its file.
    """
    data, config = run.data, run.config
    return {
        "run": {"name": run.folder.name, "epoch": run.epoch, "format": format},
        "graphs": {graph.name: _graph(graph, files[graph.name]) for graph in graphs},
        "data": {
            "name": data.name,
            "event_shape": list(run.event_shape),
            "columns": None if data.columns is None else list(data.columns),
            "levels": {name: list(levels) for name, levels in data.levels.items()},
            "label_names": None if data.label_names is None else list(data.label_names),
        },
        "x": _inputs(run),
        "code": {
            "num_latents": config.num_latents,
            "num_categories": config.num_categories,
            "order": "Entry [n, d, k] of a one-hot code is 1 where latent d of datum n has "
            "category "
            "k. Both count from 0.",
            "first_latent_is_the_class": vae.observes_labels,
        },
        "likelihood": _likelihood(config.likelihood, vae.likelihood),
        "prior": _prior(config.prior, vae),
        "versions": {"pyro-dvae": __version__, "run": run.version, **_versions()},
    }


def _graph(graph: Graph, file: str) -> dict[str, Any]:
    with torch.no_grad():
        output = graph.expected(*graph.inputs.values())
    ports = {**graph.inputs, graph.output: output}
    told = [
        {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": ["N", *tensor.shape[1:]],
        }
        for name, tensor in ports.items()
    ]
    return {"file": file, "inputs": told[:-1], "output": told[-1]}


def _inputs(run: Run) -> dict[str, Any]:
    """How stored values v become x, in words and in numbers."""
    config = run.config
    preparation = preparation_of(config, run.event_shape)
    values = preparation.values
    return {
        "kind": preparation.kind,
        "binarize": preparation.binarize if preparation.makes_bits else None,
        "range": None if config.range is None else list(config.range),
        "levels": values.levels,
        "missing": "NaN" if preparation.takes_missing else None,
        "how": _in_words(run, preparation),
    }


def _in_words(run: Run, preparation: Preparation) -> str:
    if preparation.makes_bits:
        text = "x is 0 or 1. "
        if preparation.binarize == "none":
            return text + "It is the stored value."
        low, high = run.config.range or (0, 255)
        text += f"A stored value v has the brightness b = (v - {low:g}) / {high - low:g}. "
        if preparation.binarize == "threshold":
            return text + "x is 1 where b >= 1/2."
        drawn = "each time that it is used" if preparation.binarize == "dynamic" else "once"
        return text + f"The training drew x = 1 with probability b, {drawn}."
    if preparation.kind == "columns":
        return (
            "x is a row of a table, its columns in the order of data.columns. A column of names "
            "holds the number of the level, counted from 0, in data.levels. All other values are "
            "as stored."
        )
    grey, other = (preparation.describe(dtype) for dtype in ("uint8", "float32"))
    return f"x: {other}." if grey == other else f"x: {grey} for uint8 values v; else {other}."


def _likelihood(name: str, likelihood: Likelihood) -> dict[str, Any]:
    """The likelihood, and the meaning and the order of its parameters."""
    if isinstance(likelihood, Masked):
        return _likelihood(name.removeprefix("masked:"), likelihood.likelihood)
    told: dict[str, Any] = {
        "name": name,
        "formula": (inspect.getdoc(type(likelihood)) or "").partition("\n")[0],
        "num_params": likelihood.num_params,
        "params": list(likelihood.param_meanings),
    }
    if isinstance(likelihood, Mixed):
        first = 0
        told["blocks"] = []
        for block, size in zip(likelihood.blocks, likelihood.sizes, strict=True):
            own = _likelihood(type(block).__name__, cast(Likelihood, block))
            told["blocks"].append({"columns": list(range(first, first + size)), **own})
            first += size
        return told
    constants = likelihood.state_dict()
    told["constants"] = {
        name: value.tolist() for name, value in constants.items() if value.numel() <= _MOST_NUMBERS
    }
    return told


def _prior(name: str, vae: DiscreteVAE) -> dict[str, Any]:
    """The prior, so that a user of the graphs can draw codes."""
    told: dict[str, Any] = {"name": name, "num_classes": vae.prior.num_classes, "logits": None}
    if has_prior_graph(vae):
        return told | {
            "kind": "graph",
            "how": "Begin with a code of zeros. For d = 0, ..., D - 1: run the graph prior on the "
            "code, draw the category of latent d from softmax(logits[:, d]), and set it in the "
            "code.",
        }
    logits = None
    if not vae.takes_labels:
        with torch.no_grad():
            logits = code_logits(vae.prior_codes())
    if logits is None or logits.numel() > _MOST_NUMBERS:
        how = "The files do not hold it. Draw codes with this library."
        return told | {"kind": "none", "how": how}
    how = "Draw the category of each latent d from softmax(logits[d])."
    return told | {"kind": "factorised", "how": how, "logits": logits.tolist()}


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
