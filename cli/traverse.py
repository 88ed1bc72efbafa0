"""`pdvae traverse`: what each latent does, and what its categories mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import fail, new_output, user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    KeyOption,
    PosteriorOf,
    PosteriorOption,
    RefineOption,
    RunArgument,
    RunDataDirOption,
    TrustOption,
    run_data,
)
from .pictures import own_settings
from .rows import (
    asked_posterior,
    by_posterior,
    codes_of,
    failed_writes,
    file_for,
    only_images,
    open_run,
    weights_of,
)

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.evaluation import Inference
    from pyro_dvae.runs import PreparedRows

IndexOption = Annotated[
    int | None,
    typer.Option(
        help="The number of the image in the test part, or in the file. The first one is 0, which "
        "is taken if this is left out.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="The .png file to write. For a table, a .csv file of the same name is written too.",
    ),
]
DataOption = Annotated[
    str | None,
    run_data("the test part for images, the training part for a table"),
]


def traverse(
    run: RunArgument = None,
    index: IndexOption = None,
    data: DataOption = None,
    key: KeyOption = None,
    output: OutputOption = Path("traverse.png"),
    posterior: PosteriorOption = None,
    refine: RefineOption = None,
    data_dir: RunDataDirOption = None,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Show what each latent does to an image, or to the rows of a table.

    For an image, each row of the picture varies one latent of its code over all K categories, while
    the others stay as they are. The images are the means of p(x|z). For a table, the columns that
    set the rows of each category most apart are printed; the picture and the .csv file show all of
    them: the mean of each column, or the frequency of each of its levels. A row of a table counts
    for a category by the exact p(z|x), where that is cheap, or by the q(z|x) of --posterior.

    Example: pdvae traverse runs/mnist-d4k8-snapshot-1 --index 3 -o traverse.png
    """
    file_for(output, (".png", ".csv"), force)
    with user_errors():
        from pyro_dvae.runs import profile_posterior

        loaded, _ = open_run(run, device, trust_code)
        is_table = len(loaded.event_shape) == 1
        if is_table:
            for path in (output.with_suffix(".png"), output.with_suffix(".csv")):
                new_output(path, force)
                _spare_data(path, loaded.data.path, data)
            if index is not None:
                fail(f"Expected no --index for a table; got {index}. Leave it out.")
        else:
            only_images(loaded)
            file_for(output, (".png",), force)
        part = "train" if is_table else "test"
        if is_table and posterior is None and refine is None:
            shape = loaded.event_shape
            posterior = PosteriorOf(profile_posterior(loaded.vae, loaded.config, shape))
        inference = asked_posterior(loaded.config, posterior, refine, loaded.config.seed)
        rows = loaded.rows(
            part if data is None else data,
            data_dir=data_dir,
            key=key,
            labelled=inference.posterior != "encoder",
        )
    if is_table:
        _tell(loaded, rows, output, inference)
    else:
        _draw(loaded, rows, index or 0, output, inference)


def _spare_data(path: Path, *data: str | None) -> None:
    """Refuse to replace a file of data, which --force may not have meant: -o names one of two."""
    if any(name is not None and path.resolve() == Path(name).resolve() for name in data):
        fail(f"Expected another file than that of the data; got {path}. Use another -o.")


def _draw(run: Run, rows: PreparedRows, index: int, output: Path, inference: Inference) -> None:
    """Draw an image with each latent of its code varied."""
    with user_errors():
        if not 0 <= index < len(rows.x):
            fail(f"Expected --index from 0 to {len(rows.x) - 1}; got {index}. Change it.")
        x = rows.x[index : index + 1][0].to(next(run.vae.parameters()))
        code = codes_of(run, rows, slice(index, index + 1), inference)[0]
    with failed_writes(), own_settings():
        from pyro_dvae.runs import shade_of
        from pyro_dvae.runs.plots import latents_figure, save_figure

        save_figure(latents_figure(run.vae, x, shade_of(run), code), output)
    config = run.config
    print(
        f"{output}: means of p(x|z), D={config.num_latents} latents varied over K="
        f"{config.num_categories} categories around the code of image {index} of {rows.name}"
        f"{by_posterior(inference)}; {weights_of(run)}"
    )


def _tell(run: Run, rows: PreparedRows, output: Path, inference: Inference) -> None:
    """Write, draw and print what the categories mean in the rows of a table."""
    from pyro_dvae.evaluation import PROFILE_HEADER
    from pyro_dvae.runs import profile_rows
    from pyro_dvae.runs.tables import write_csv

    picture, table = output.with_suffix(".png"), output.with_suffix(".csv")
    with user_errors():
        refine = inference.sweeps if inference.posterior == "refined" else None
        found = profile_rows(run.vae, run.data, rows, posterior=inference.posterior, refine=refine)
    with failed_writes():
        lines = (["" if x is None else x for x in line.values()] for line in found.lines())
        write_csv(table, PROFILE_HEADER, lines)
        with own_settings():
            from pyro_dvae.runs.plots import profile_figure, save_figure

            save_figure(profile_figure(found), picture)
    print(
        f"{table}, {picture}: what the categories mean in {rows.name}"
        f"{by_posterior(inference)}; {weights_of(run)}\n{found}"
    )
