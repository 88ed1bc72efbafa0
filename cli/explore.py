"""`pdvae explore`: a run in the browser, to play with."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from .errors import fail, user_errors
from .options import Device, DeviceOption, RunArgument, RunDataDirOption, TrustOption
from .rows import open_run

HostOption = Annotated[
    str,
    typer.Option(
        help="The address to listen at. Everybody who reaches it can ask the model, and see the "
        "test part of its data. 127.0.0.1 is this machine alone, 0.0.0.0 all of its networks."
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        help="The port. If left out: the first one that is free, from 7860 on.",
        min=1,
        max=65_535,
        show_default=False,
    ),
]
BrowserOption = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
]


def explore(
    run: RunArgument = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    browser: BrowserOption = True,
    data_dir: RunDataDirOption = None,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Play with a trained model in the browser.

    Choose the category of each latent and see what the decoder makes of the code; draw an image or
    write a row, and see its code, q(z|x) and the parts of its ELBO; walk from one code to another;
    draw samples. It needs Gradio: pip install 'pyro-dvae[explore]'. Ctrl-C ends it.

    Example: pdvae explore runs/mnist-d4k8-snapshot-1
    """
    with user_errors():
        from pyro_dvae.explorer import MissingGradio, serve

        loaded, _ = open_run(run, device, trust_code)
        try:
            page = serve(loaded, host=host, port=port, browser=browser, data_dir=data_dir)
        except MissingGradio as error:
            fail(str(error))
    try:
        print(f"{page.local_url}: {loaded.folder}. Press Ctrl-C to end.", flush=True)
        threading.Event().wait()
    finally:
        page.close(verbose=False)
