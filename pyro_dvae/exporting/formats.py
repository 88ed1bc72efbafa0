"""The formats of a graph: PyTorch's own, and ONNX. Each is written, and read again to check it."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.exporting.graphs import Graph

METADATA = "metadata.json"


class MissingOnnx(ModuleNotFoundError):
    """The packages that write and check ONNX are not installed."""


class Format(NamedTuple):
    """How a graph is written and read."""

    suffix: str
    write: Callable[[Graph, Any, Path, Mapping[str, Any]], None]
    """Called with the graph, the exported program, the path and the metadata."""
    read: Callable[[Path], Callable[..., Tensor]]
    """The function of tensors that a file holds, with the inputs of the graph in order."""
    require: Callable[[], object]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the exporters warn of, log and print from the user. `export_run` checks it all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # Of a part that cannot be traced, torch prints the whole graph so far.
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def traced(graph: Graph) -> Any:
    """The graph as a `torch.export.ExportedProgram` for batches of any size."""
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in graph.inputs}
    return torch.export.export(graph.module, tuple(graph.inputs.values()), dynamic_shapes=shapes)


def _write_torch(graph: Graph, program: Any, path: Path, metadata: Mapping[str, Any]) -> None:
    torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata)})


def _read_torch(path: Path) -> Callable[..., Tensor]:
    return torch.export.load(path).module()


def _write_onnx(graph: Graph, program: Any, path: Path, metadata: Mapping[str, Any]) -> None:
    # The Einsum of ONNX does not broadcast what the ellipsis stands for.
    written = torch.onnx.export(
        program.run_decompositions(),
        dynamo=True,
        input_names=list(graph.inputs),
        output_names=[graph.output],
        external_data=False,
        verbose=False,
    )
    assert written is not None
    written.model.metadata_props.update(
        {name: json.dumps(value) for name, value in metadata.items()}
    )
    written.save(str(path), external_data=False)


def _read_onnx(path: Path) -> Callable[..., Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        arrays = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, arrays)[0])

    return run


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingOnnx(
            "Expected the packages onnx, onnxscript and onnxruntime for the ONNX format; got none "
            f"of the name {error.name}. Run pip install 'pyro-dvae[onnx]', or use format=\"torch\"."
        ) from error


FORMATS = {
    "onnx": Format(".onnx", _write_onnx, _read_onnx, _require_onnx),
    "torch": Format(".pt2", _write_torch, _read_torch, lambda: None),
}
"""Name of a format -> how it is written and read."""
