"""`serve`: the page of the explorer in a browser on this machine."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from pyro_dvae.explorer.explorer import Explorer
from pyro_dvae.explorer.guard import Guard, guard_of
from pyro_dvae.runs import Run

HOST, PORT = "127.0.0.1", 7860
_MOST_THREADS = 4
"""Questions that are answered at once; torch lets them take turns."""


class MissingGradio(ImportError):
    """Gradio is not installed."""


def serve(
    run: Run,
    *,
    host: str = HOST,
    port: int | None = None,
    browser: bool = False,
    data_dir: str | Path | None = None,
) -> Any:
    """Serve the page of a run, and return at once.

    The page is for people who trust one another: whoever reaches `host` can ask the model, and see
    the test part of its data. By default that is this machine alone. Nothing is sent elsewhere.

    Args:
        run: the run.
        host: the address to listen at; "0.0.0.0" for all of this machine's.
        port: the port; None for the first free one from 7860 on.
        browser: whether to open a browser.
        data_dir: the folder that the run's data lie in now, if that is another one.

    Returns:
        The `gradio.Blocks`, whose `local_url` is the address and whose `close()` ends it.

    Raises:
        MissingGradio: Gradio is not installed.
        OSError: the port is not free.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio as gr
        from starlette.middleware import Middleware
    except ImportError as error:
        raise MissingGradio(
            "Expected Gradio, which the explorer needs; got none. Run pip install "
            "'pyro-dvae[explore]'."
        ) from error
    from pyro_dvae.explorer.asking import text_of
    from pyro_dvae.explorer.page import page

    explorer = Explorer(run, data_dir)
    blocks = page(explorer)
    # Two digits per value of an image; the cells of a row have names of at most 200 characters.
    most = 2**16 + 64 * math.prod(run.event_shape)
    arguments = guard_of(most, host, blocks)
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        max_threads=_MOST_THREADS,
        allowed_paths=[],
        max_file_size=0,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        footer_links=[],
        theme=gr.themes.Default(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css=text_of("style.css"),
        js=text_of("names.js"),
        app_kwargs={"middleware": [Middleware(Guard, **arguments)]},
    )
    return blocks
