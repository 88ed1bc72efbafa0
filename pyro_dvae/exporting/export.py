"""`export_run`: the graphs of a run in a folder, checked against the run."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pyro import validation_enabled
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.exporting.formats import FORMATS, METADATA, Format, quiet, traced
from pyro_dvae.exporting.graphs import SIZES, Graph, graphs_of
from pyro_dvae.exporting.metadata import metadata_of
from pyro_dvae.runs.run import Run

TOLERANCE = 1e-5
"""The largest |a - b| / max(1, |b|) of a number a of an exported graph and b of the run."""


class Export(NamedTuple):
    """What `export_run` wrote."""

    folder: Path
    files: tuple[str, ...]
    """The names of all files in the folder, `metadata.json` the last."""
    differences: dict[str, float]
    """Graph -> the largest |a - b| / max(1, |b|) of a number a of it and b of the run."""


def export_run(
    run: Run, folder: str | Path, *, format: str = "onnx", replace: bool = False
) -> Export:
    """Write the encoder and the decoder of a run as graphs that run without this library.

        run = load_run("runs/mnist-d4k8-snapshot-1")
        export_run(run, "exported")

    The encoder takes x (N, *event) and gives log q(z|x), (N, D, K). If each latent of the guide
    depends on those before it, the encoder takes a one-hot code (N, D, K) too, and latent d sees
    z_1 ... z_{d-1}. The decoder takes one-hot codes (N, D, K) and gives the parameters of the
    likelihood, (N, *event), or (N, *event, num_params). N may be any number. Nothing is drawn
    inside a graph. If the latents of p(z) depend on each other, a third graph gives the logits of
    the prior in the same way, given the labels if it is p(z|y).

    `metadata.json` in the folder, and the metadata inside each file, say how stored values become
    x, what the parameters mean, and what the prior is.

    Each file is read again, and its output for batches of 1, 2 and 7 is compared with that of the
    run, before the folder is there. The data of this check are drawn from the model.

    Args:
        run: the trained run.
        folder: a new folder.
        format: "onnx", which takes `pip install 'pyro-dvae[onnx]'`, or "torch", a program of
            `torch.export`.
        replace: whether the folder may hold an export already, which is replaced.

    Raises:
        ValueError: there is no such format, the folder exists, a part of the model cannot be
            exported, or a graph differs from the run by more than `TOLERANCE`. No folder is left
            then.
        ModuleNotFoundError: the packages of the ONNX format are not installed.
        OSError: a file cannot be written.
    """
    one_of("format", format, FORMATS)
    form = FORMATS[format]
    form.require()
    folder = Path(folder)
    _refuse(folder, replace)
    vae = copy.deepcopy(run.vae).cpu().eval()
    with validation_enabled(False):
        graphs = graphs_of(vae)
        names = {graph.name: graph.name + form.suffix for graph in graphs}
        metadata = metadata_of(run, vae, graphs, format, names)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
        try:
            differences = {
                graph.name: _write(graph, form, beside / names[graph.name], metadata, run)
                for graph in graphs
            }
            text = json.dumps(metadata, indent=2) + "\n"
            (beside / METADATA).write_text(text, encoding="utf-8")
            os.chmod(beside, 0o777 & ~_umask())
            if folder.exists():
                shutil.rmtree(folder)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return Export(folder, (*names.values(), METADATA), differences)


def _refuse(folder: Path, replace: bool) -> None:
    """Refuse a folder that exists, unless it holds an export that may be replaced."""
    if not folder.absolute().parent.is_dir():
        raise ValueError(
            f"Expected a folder to write into; got {folder.parent}, which is not there. Make it."
        )
    if not (folder.exists() or folder.is_symlink()):
        return
    if not replace:
        raise ValueError(
            f"Expected a new folder; got {folder}, which exists. Name another, or use replace=True."
        )
    known = {METADATA} | {
        name + form.suffix for name in ("encoder", "decoder", "prior") for form in FORMATS.values()
    }
    if (
        folder.is_symlink()
        or not folder.is_dir()
        or {path.name for path in folder.iterdir()} - known
    ):
        raise ValueError(
            f"Expected a folder that holds an export and nothing else; got {folder}. Name another."
        )


def _write(graph: Graph, form: Format, path: Path, metadata: Mapping[str, Any], run: Run) -> float:
    """Write a graph, read it again, and compare it with the run."""
    with quiet(), torch.no_grad():
        try:
            program = traced(graph)
        except Exception as error:
            raise ValueError(
                f"Expected the {graph.name} of {run.folder}, {_parts(graph)}, to be one that "
                f"torch.export can trace; got {_line(error)}. Leave out of it what depends on the "
                "values of tensors."
            ) from error
        try:
            form.write(graph, program, path, metadata)
            found = max(_difference(graph, form.read(path), size) for size in SIZES)
        except OSError:
            raise
        except Exception as error:
            raise ValueError(
                f"Expected the {graph.name} of {run.folder}, {_parts(graph)}, as a {form.suffix} "
                f"file that can be read; got {_line(error)}. Install newer packages of the format, "
                "or use another one."
            ) from error
    if not found <= TOLERANCE:
        raise ValueError(
            f"Expected the exported {graph.name} of {run.folder} to agree with the run to "
            f"{TOLERANCE:g}; got a difference of {found:.2g}. Nothing was written."
        )
    return found


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")


def _parts(graph: Graph) -> str:
    return " with ".join(type(part).__name__ for part in graph.module.children())


def _difference(graph: Graph, loaded: Any, size: int) -> float:
    some = [x[:size] for x in graph.inputs.values()]
    expected, got = graph.expected(*some), loaded(*some)
    if got.shape != expected.shape:
        raise ValueError(f"shape {tuple(got.shape)} in place of {tuple(expected.shape)}")
    return _largest(got, expected)


def _largest(got: Tensor, expected: Tensor) -> float:
    same = (got == expected) | (got.isnan() & expected.isnan())
    gap = (got - expected).abs() / expected.abs().clamp(min=1)
    return torch.where(same, 0, gap).nan_to_num(torch.inf).max().item()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
