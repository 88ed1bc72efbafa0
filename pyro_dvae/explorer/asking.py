"""How the page asks: what its tabs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib.resources import files
from typing import Any

import gradio as gr

from pyro_dvae.explorer import markup

_STATIC = files("pyro_dvae.explorer") / "static"
ASKED: dict[str, Any] = {
    "queue": False,
    "preprocess": False,
    "show_progress": "hidden",
    "trigger_mode": "always_last",
}
"""How questions are asked: one request and its answer, of which the server remembers nothing."""


def text_of(name: str) -> str:
    """A file beside this one."""
    return (_STATIC / name).read_text(encoding="utf-8")


def asked(question: Callable[..., Sequence[Any]], number: int) -> Callable[..., list[Any]]:
    """A question whose answer begins with a message: empty, or what is wrong with the input.

    Args:
        question: returns `number` values.
        number: the number of components beside the message.
    """

    @wraps(question)
    def ask(*values: Any) -> list[Any]:
        try:
            return ["", *question(*values)]
        except ValueError as error:
            return [markup.message(" ".join(str(error).split())[:1000]), *[gr.skip()] * number]

    return ask
