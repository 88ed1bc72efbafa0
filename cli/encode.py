"""`pdvae encode`: the codes of data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import user_errors
from .figures import datum_name
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    KeyOption,
    PosteriorOption,
    RefineOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    TrustOption,
)
from .processes import is_first
from .rows import asked_posterior, by_posterior, failed_writes, file_for, open_run, weights_of


def encode(
    output: Annotated[Path, typer.Option("--output", "-o", help="The .csv or .npz file to write.")],
    run: RunArgument = None,
    data: RunDataOption = "test",
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="Write the probabilities q(z|x) of all categories, in place of the most probable "
            "code.",
        ),
    ] = False,
    posterior: PosteriorOption = None,
    refine: RefineOption = None,
    force: ForceOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Encode data into their most probable codes.

    A code has one category, from 0 to K-1, for each of the latents z1 to zD. Beside it stand the
    number of the row in the data of the run, from 0, and its name and its class if it has them.
    The encoder computes q(z|x), unless --refine or --posterior names a better one.

    Example: pdvae encode runs/mnist-d4k8-snapshot-1 --data test -o codes.csv
    """
    file_for(output, (".csv", ".npz"), force)
    with user_errors():
        from pyro_dvae.runs import beside, encode_blocks, posterior_labels
        from pyro_dvae.runs.tables import write_rows

        loaded, _ = open_run(run, device, trust_code)
        inference = asked_posterior(loaded.config, posterior, refine, loaded.config.seed)
        needs_labels = inference.posterior != "encoder"
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=needs_labels)
        known = posterior_labels(loaded.vae, loaded.config, rows, inference)
    name = "probabilities" if probabilities else "codes"
    options: Any = {"probabilities": probabilities, "inference": inference, "together": True}
    blocks = encode_blocks(loaded.vae, rows.x, known, **options)
    labels = loaded.data.label_values(rows.labels)
    with user_errors(), failed_writes():  # a file of data may have changed
        columns = beside(loaded.data, rows)
        if is_first():
            write_rows(output, name, blocks, len(rows.x), labels=labels, others=columns)
        else:
            for _ in blocks:  # of which this process computes its part
                pass
    config = loaded.config
    what = "probabilities of the categories" if probabilities else "most probable codes"
    print(
        f"{output}: {what} (D={config.num_latents}, K={config.num_categories}) of {len(rows.x)} "
        f"{datum_name(loaded.event_shape)}s of {rows.name}{by_posterior(inference)}; "
        f"{weights_of(loaded)}"
    )
