"""`pdvae encode`: the codes of data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, DeviceOption, ForceOption, TrustOption, user_errors
from .report import unit
from .rows import (
    BLOCK,
    DataDirOption,
    DataOption,
    KeyOption,
    RunArgument,
    failed_writes,
    file_for,
    label_values,
    open_run,
    read_rows,
    weights_of,
)

if TYPE_CHECKING:
    from torch import Tensor


def encode(
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv or .npz to write.")],
    run: RunArgument = None,
    data: DataOption = "test",
    data_dir: DataDirOption = None,
    key: KeyOption = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="All of q(z|x), not its most probable code.")
    ] = False,
    force: ForceOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Encode data into category indices 0 to K-1, or probabilities, of z1 to zD.

    Example: pdvae encode runs/mnist-d4k8-rloo-1 --data test -o codes.csv
    """
    file_for(output, (".csv", ".npz"), force)
    with user_errors():
        from pyro_dvae.runs.tables import write_rows

        loaded, target = open_run(run, device, trust_code)
        rows = read_rows(loaded, data, data_dir, key)
    name = "probabilities" if probabilities else "codes"
    blocks = _blocks(loaded.vae, rows.x, target, probabilities)
    with failed_writes():
        labels = label_values(rows.labels, loaded.data)
        write_rows(output, name, blocks, len(rows.x), labels=labels)
    config = loaded.config
    what = "probabilities of the categories" if probabilities else "most probable codes"
    print(
        f"{output}: {what} (D={config.num_latents}, K={config.num_categories}) of {len(rows.x)} "
        f"{unit(loaded.event_shape)}s of {rows.name}; {weights_of(loaded)}"
    )


def _blocks(vae: Any, x: Any, device: Any, probabilities: bool) -> Iterator[Tensor]:
    import torch

    from pyro_dvae.codes import MAX_CODES, num_codes
    from pyro_dvae.posteriors import posterior_of

    for start in range(0, len(x), BLOCK):
        with user_errors():  # a file may have changed
            rows = x[start : start + BLOCK].to(device)
        with torch.no_grad():
            q = vae.posterior(rows)
            posterior = posterior_of(q, tabulate=num_codes(*q.event_shape) <= MAX_CODES)
            yield (posterior.marginals().exp().float() if probabilities else posterior.mode()).cpu()
