"""`pdvae compress` and `pdvae decompress`: data as few bits, without loss."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import fail, user_errors
from .figures import datum_name
from .options import (
    Device,
    ForceOption,
    JsonOption,
    KeyOption,
    RunDataDirOption,
    TrustOption,
    your_data,
)
from .rows import failed_writes, file_for, open_run, weights_of
from .tables import aligned, indented

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.coding import CodecReport


class WayName(str, Enum):
    """How the code of a datum is coded."""

    exact = "exact"
    bits_back = "bits-back"
    code = "code"


_WORDS = {
    "exact": "codes drawn from p(z|x), bits back",
    "bits-back": "codes drawn from q(z|x), bits back",
    "code": "the most probable codes",
}
_PROMISES = {"exact": "-log2 p(x)", "bits-back": "-ELBO / log 2", "code": "-log2 p(x, z)"}


def compress(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] DATA",
            help="The folder of the run; and train, validation or test, which are the parts of its "
            "data, or a file, which is read as the run's data were. If the folder is left out: the "
            "newest run below runs/.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .pdv file to write.")],
    way: Annotated[
        WayName | None,
        typer.Option(
            help="How the code of a datum is coded: drawn from p(z|x), with bits that the decoder "
            "gets back, -log2 p(x) bits; drawn from q(z|x), -ELBO / log 2 bits; or the most "
            "probable one, without bits back. If left out: the shortest one that is cheap.",
            show_default=False,
        ),
    ] = None,
    refine: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --way code, look for more probable codes by N sweeps of coordinate ascent, "
            "where there are too many codes to compare them all.",
            min=1,
            show_default=False,
        ),
    ] = None,
    as_bits: Annotated[
        bool,
        your_data(
            "--as-bits",
            help="Compress the zeros and ones that the run makes of grey values, in place of the "
            "grey values, which cannot be made of them again.",
        ),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Compare the size with what each way promises, and with gzip, bz2, xz, zstd, PNG "
            "and WebP of the same values.",
        ),
    ] = False,
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    trust_code: TrustOption = False,
) -> None:
    """Compress discrete data without loss, by a trained model.

    The data are bits, levels, counts, or tables of these. The probable ones take few bits. The
    same run decompresses them. It needs constriction: pip install 'pyro-dvae[codec]'.

    Example: pdvae compress runs/mnist-d4k8-snapshot-1 test --as-bits -o t.pdv
    """
    folder, data = _run_and(inputs, "data")
    file_for(output, (".pdv",), force)
    with user_errors():
        from pyro_dvae.coding import MissingConstriction, codec_report, compress_rows

        loaded, _ = open_run(folder, Device.cpu, trust_code)
        name = None if way is None else way.value
        what = str(data)
        how: dict[str, Any] = {"way": name, "refine": refine, "data_dir": data_dir, "key": key}
        try:
            found, rows = compress_rows(loaded, what, as_bits=as_bits, **how)
        except MissingConstriction as error:
            fail(str(error))
        report = None
        if stats:
            is_image = datum_name(loaded.event_shape) == "image"
            report = codec_report(loaded.vae, found, rows.x, is_image=is_image, refine=refine)
    with failed_writes():
        found.write(output)
    if as_json:
        print(json.dumps(_content(loaded, output, found) | (report.to_dict() if report else {})))
        return
    size, number = len(found.content), found.header.shape[0]
    print(
        f"{output}: {number} {datum_name(loaded.event_shape)}s of {rows.name} in {size:,} bytes, "
        f"{found.bits_per_dimension:.4f} bits per dimension, by {_WORDS[found.header.way]} "
        f"(--way {found.header.way}); {weights_of(loaded)}"
    )
    if report is not None:
        print(_table(report))


def decompress(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] FILE",
            help="The folder of the run that compressed the data, and the .pdv file. If the folder "
            "is left out: the newest run below runs/.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The .npy file to write; a .npz file, whose array is called data; or, for rows, a "
            ".csv file with the names of the run's columns.",
        ),
    ],
    force: ForceOption = False,
    trust_code: TrustOption = False,
) -> None:
    """Make the data again that pdvae compress has compressed.

    The values, their type and their shape are the same. A damaged file, another model, or a machine
    that computes other probabilities is told in one line, and nothing is written.

    Example: pdvae decompress runs/mnist-d4k8-snapshot-1 t.pdv -o t.npy
    """
    folder, path = _run_and(inputs, ".pdv file")
    file_for(output, (".npy", ".npz", ".csv"), force)
    with user_errors():
        from pyro_dvae.coding import MissingConstriction, decompress_file, write_values

        loaded, _ = open_run(folder, Device.cpu, trust_code)
        if output.suffix.lower() == ".csv" and len(loaded.event_shape) != 1:
            fail(f"Expected a .npy or .npz file for images; got {output}. Change its suffix.")
        try:
            values = decompress_file(loaded, path)
        except MissingConstriction as error:
            fail(str(error))
    with failed_writes():
        write_values(loaded, values, output)
    print(
        f"{output}: {len(values)} {datum_name(loaded.event_shape)}s of {path}, {values.dtype}, "
        f"shape {values.shape}; {weights_of(loaded)}"
    )


def _run_and(inputs: list[Path], what: str) -> tuple[Path | None, Path]:
    """The folder of the run, or None, and the last of the names."""
    if len(inputs) > 2:
        fail(f"Expected a run and a {what}; got {len(inputs)} names. Leave out the rest.")
    return (inputs[0] if len(inputs) == 2 else None), inputs[-1]


def _content(run: Run, output: Path, found: Any) -> dict[str, Any]:
    """What --json prints without --stats."""
    return {
        "run": str(run.folder),
        "epoch": run.epoch,
        "file": str(output),
        "way": found.header.way,
        "shape": list(found.header.shape),
        "dtype": found.header.dtype,
        "size": len(found.content),
        "bits_per_dimension": found.bits_per_dimension,
    }


def _table(report: CodecReport) -> str:
    """The sizes, a line each: the file, what each way promises, and other compressors."""
    rows: list[tuple[str, float | None, str]] = [
        ("this file", report.size, _excess(report)),
        ("its header and checksums", report.header, ""),
    ]
    for way, promise in report.promised.items():
        rows.append((f"promise of --way {way}", promise, f"= {_PROMISES[way]}"))
    rows += [(name, size, "") for name, size in report.others.items()]
    cells = [("", "bytes", "bits per dimension", "")]
    for name, size, note in rows:
        per_dimension = "" if size is None else f"{report.bits_per_dimension(size):.4f}"
        cells.append((name, _bytes(name, size), per_dimension, note))
    return indented(aligned(cells, "<>><"))


def _excess(report: CodecReport) -> str:
    excess = report.excess
    return "" if excess is None else f"{100 * excess:+.2f} % of what --way {report.way} promises"


def _bytes(name: str, size: float | None) -> str:
    if size is not None:
        return f"{size:,.0f}"
    return "too many codes" if name.startswith("promise") else "not available"
