"""`pdvae push` and `pdvae pull`: runs that people share, by a hub or as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import fail, user_errors
from .naming import with_options
from .options import RunArgument, RunDataDirOption, TrustOption
from .pictures import own_settings
from .report import command_of
from .rows import load, say_what_is_trusted, weights_of

ToOption = Annotated[
    str | None,
    typer.Option(metavar="OWNER/NAME", help="Where to upload the run on the hub."),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The folder to write, in place of an upload. It has the same files.",
    ),
]
LicenseOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What others may do with the model, as the hub calls it: apache-2.0, mit, cc-by-4.0, "
        "other. unknown means that you have not chosen.",
    ),
]
PublicOption = Annotated[
    bool,
    typer.Option(
        "--public/--private", help="Whether everybody may see a model that the hub did not have."
    ),
]
SourceArgument = Annotated[
    str,
    typer.Argument(metavar="FOLDER|OWNER/NAME", help="The shared folder; or a name on the hub."),
]
NewRunOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="A new folder for the run. If left out: a numbered one below runs/.",
        show_default=False,
    ),
]
_USAGE = """pip install 'pyro-dvae[hub]'
pdvae pull {name} -o run
pdvae info run
pdvae sample run"""


def push(
    run: RunArgument = None,
    to: ToOption = None,
    output: FolderOption = None,
    license: LicenseOption = "unknown",
    public: PublicOption = False,
    data_dir: RunDataDirOption = None,
    trust_code: TrustOption = False,
) -> None:
    """Share a run: upload it to a hub of models, or write the folder that a hub takes.

    The folder has README.md, a card of the model with its data, its figures, the command that
    repeats the run and its limits; config.json, model.safetensors, the learning curve and the
    stored figures. No data and no paths of this machine are in it, but the names of columns,
    levels, classes and files are: a line says which. An upload needs pip install 'pyro-dvae[hub]',
    and hf auth login.

    Example: pdvae push runs/mnist-d4k8-snapshot-1 -o shared --license mit
    """
    if (to is None) == (output is None):
        fail("Expected --to OWNER/NAME or -o FOLDER; got both or neither. Name one of them.")
    with user_errors():
        from pyro_dvae.reports import Words
        from pyro_dvae.sharing import MissingHub, describe_shared, push_run, share_run

        loaded = load(run, trust_code)
        words, usage = Words(with_options, command_of), _USAGE.format(name=to or "OWNER/NAME")
        with own_settings():
            if output is not None:
                files = share_run(
                    loaded,
                    output,
                    license=license,
                    data_dir=data_dir,
                    words=words,
                    usage=usage,
                )
                where, sizes = str(output), {path.name: path.stat().st_size for path in files}
            else:
                try:
                    where, sizes = push_run(
                        loaded,
                        str(to),
                        private=not public,
                        license=license,
                        data_dir=data_dir,
                        words=words,
                        usage=usage,
                    )
                except MissingHub as error:
                    fail(str(error))
    print(f"{where}: {', '.join(sizes)} ({sum(sizes.values()) / 1e6:.1f} MB)")
    print(describe_shared(loaded))


def pull(
    source: SourceArgument,
    output: NewRunOption = None,
    trust_code: TrustOption = False,
) -> None:
    """Make a run of a shared folder, or of a model on the hub, for all other commands.

    Nothing of it is executed: only JSON, text and safetensors are read. The data are not shared:
    if they are files, name their folder by --data-dir where a command needs them. A download needs
    pip install 'pyro-dvae[hub]'.

    Example: pdvae pull shared -o runs/pulled
    """
    with user_errors():
        from pyro_dvae.sharing import MissingHub, pull_run

        try:
            run = pull_run(source, output, trust_code=trust_code)
        except MissingHub as error:
            fail(str(error))
    if trust_code:
        say_what_is_trusted(run.folder)
    print(weights_of(run))
