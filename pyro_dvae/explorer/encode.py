"""The tab of the page that encodes a datum: one that is drawn, written or taken from the data."""

from __future__ import annotations

from typing import Any

import gradio as gr

from pyro_dvae.explorer import markup
from pyro_dvae.explorer.answers import Datum, Inferred
from pyro_dvae.explorer.asking import ASKED, asked, text_of
from pyro_dvae.explorer.explorer import Explorer

_PIXELS = 120
"""The width of pictures, in CSS pixels."""
_KNOWN = "of the datum"
"""What the choice of a class begins with."""
_MOST_CELLS = 200
"""The largest number of columns that a row is written with."""


def encode(explorer: Explorer) -> tuple[Any, Any, Any, Any]:
    """The components of the tab, and their questions.

    Args:
        explorer: of the run.

    Returns:
        The text box of the code, and the buttons that start a walk at it, end a walk at it, and
        vary it.
    """
    first = [""] * 4
    if explorer.num_data:
        datum = explorer.datum(0)
        first = _inferred(explorer.infer(datum), explorer)
    with gr.Row():
        with gr.Column(min_width=280):
            pad = _pad(explorer) if explorer.is_image else _form(explorer)
            with gr.Row():
                most = max(0, explorer.num_data - 1)
                number = gr.Number(
                    0, label=f"Number of a datum, 0 to {most}", precision=0, visible=most > 0
                )
                take = gr.Button(
                    "Take the datum", size="md", visible=most > 0, elem_classes="beside"
                )
            if not explorer.num_data:
                gr.HTML(markup.note(f"The data of the run are not here: {explorer.missing}"))
            label = gr.Dropdown(
                [_KNOWN, *explorer.classes],
                value=_KNOWN,
                label="Class y of p(z|y)",
                info="Where the class of a datum is not known, it is the first one.",
                visible=bool(explorer.classes),
            )
            # The page remembers what the pad shows: the number of a datum, or -1 for a drawing.
            taken = gr.Number(0 if explorer.num_data else -1, visible=False, precision=0)
            seed = gr.Number(0, label="Seed of draws", precision=0, minimum=0)
        with gr.Column(min_width=280):
            told = gr.HTML(elem_classes="alert")
            code = gr.Textbox(first[0], label="The most probable code", max_length=64 * 16)
            with gr.Row():
                to_choose = gr.Button("Vary this code", size="sm")
                to_start = gr.Button("Start a walk here", size="sm")
                to_end = gr.Button("End a walk here", size="sm")
            shown, figures = gr.HTML(first[1]), gr.HTML(first[2])
    posterior = gr.HTML(first[3])
    outputs = [code, shown, figures, posterior]

    def own(value: Any, y: Any, s: Any) -> list[Any]:
        datum = explorer.drawn(value, s) if explorer.is_image else explorer.row(value)
        return [-1, *_inferred(explorer.infer(datum, _label(explorer, y), s), explorer)]

    def known(n: Any, y: Any, s: Any) -> list[Any]:
        datum = explorer.datum(n)
        found = explorer.infer(datum, _label(explorer, y), s)
        return [_value(explorer, datum), n, *_inferred(found, explorer)]

    def again(n: Any, value: Any, y: Any, s: Any) -> list[Any]:
        return own(value, y, s) if n == -1 else known(n, y, s)[1:]

    pad.input(
        asked(own, 5), [pad, label, seed], [told, taken, *outputs], api_name="encode", **ASKED
    )
    gr.on(
        [take.click, number.submit],
        asked(known, 6),
        [number, label, seed],
        [told, pad, taken, *outputs],
        api_name="encode_datum",
        **ASKED,
    )
    gr.on(
        [label.select, seed.input],
        asked(again, 5),
        [taken, pad, label, seed],
        [told, taken, *outputs],
        api_visibility="private",
        **ASKED,
    )
    return code, to_start, to_end, to_choose


def _label(explorer: Explorer, value: Any) -> Any:
    return value if explorer.classes and value != _KNOWN else None


def _value(explorer: Explorer, datum: Datum) -> Any:
    """A datum as the pad or the form shows it."""
    if explorer.is_image:
        return explorer.digits(datum)
    return [cell if isinstance(cell, str) else f"{cell:.6g}" for cell in datum.view.cells]


def _inferred(found: Inferred, explorer: Explorer) -> list[Any]:
    named = [("as the model takes it", found.taken), ("mean of p(x|z) at its code", found.mean)]
    return [
        markup.code_text(found.code),
        markup.views(explorer, named, _PIXELS),
        markup.figures_table(found),
        markup.posterior_table(found),
    ]


def _pad(explorer: Explorer) -> Any:
    planes, height, width = explorer.image_shape
    colour = '<label>Colour <input type="color" name="colour" value="#ffffff"></label>'
    thin, thick = max(1.0, width / 28), max(2.0, width / 5)
    template = f"""
<canvas class="pad" width="{width}" height="{height}" data-planes="{planes}" role="img"
  aria-label="The image to encode: draw with the pointer, or choose an image"></canvas>
<div class="pad-tools">
  <label>Pen <input type="range" name="pen" min="{thin:.2f}" max="{thick:.2f}" step="any"
    value="{max(1.0, width / 14):.2f}"></label>
  {colour if planes == 3 else ""}
  <button type="button" name="clear">Clear</button>
  <button type="button" name="invert">Invert</button>
  <label class="file"><input type="file" accept="image/*"><span>Choose an image</span></label>
  <span role="status"></span>
</div>"""
    first = explorer.digits(explorer.datum(0)) if explorer.num_data else ""
    return gr.HTML(first, html_template=template, js_on_load=text_of("pad.js"), elem_id="pad")


def _form(explorer: Explorer) -> Any:
    columns = explorer.columns
    if len(columns) > _MOST_CELLS:
        text = f"A row of {len(columns)} columns is too long to write. Take one of the data."
        return gr.HTML(text, elem_id="form")
    first = _value(explorer, explorer.datum(0)) if explorer.num_data else [""] * len(columns)
    return gr.HTML(
        first,
        html_template='<form class="row-form" onsubmit="return false"></form>',
        js_on_load=text_of("row.js"),
        elem_id="form",
        columns=columns,
        levels=[list(explorer.levels.get(name, ())) for name in columns],
    )
