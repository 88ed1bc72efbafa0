"""The page of the explorer, in Gradio: four tabs, each a few components and one or two questions.

Only `server.serve` imports this file, because Gradio is not installed with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib.resources import files
from typing import Any

import gradio as gr
from markupsafe import escape

from pyro_dvae.explorer import markup
from pyro_dvae.explorer.explorer import MOST_SAMPLES, Datum, Explorer, Inferred

_PIXELS, _SMALL = 240, 96
"""Widths of pictures, in CSS pixels."""
_MOST_RADIOS = 256
"""The largest number of categories of all latents together that each have a button."""
_MOST_CELLS = 200
"""The largest number of columns that a row is written with."""
_STATIC = files("pyro_dvae.explorer") / "static"
_ASKED: dict[str, Any] = {
    "queue": False,
    "preprocess": False,
    "show_progress": "hidden",
    "trigger_mode": "always_last",
}
"""How questions are asked: one request and its answer, of which the server remembers nothing."""


def text_of(name: str) -> str:
    """A file beside this one."""
    return (_STATIC / name).read_text(encoding="utf-8")


def page(explorer: Explorer) -> gr.Blocks:
    """All of the page.

    Args:
        explorer: of the run.
    """
    run = explorer.run
    with gr.Blocks(analytics_enabled=False, title=f"Explore {run.folder.name}") as blocks:
        gr.HTML(f"<h1>{escape(run.folder.name)}</h1>{_summary(explorer)}")
        with gr.Tab("Choose"):
            controls, look, draw_seed = _choose(explorer)
        with gr.Tab("Encode"):
            code, to_start, to_end, to_choose = _encode(explorer)
        with gr.Tab("Walk"):
            start, end, walk = _walk(explorer)
        with gr.Tab("Sample"):
            _sample(explorer)
        for button, box in ((to_start, start), (to_end, end)):
            button.click(_same, code, box, api_visibility="private", **_ASKED).then(
                walk[0], [start, end], walk[1], api_visibility="private", **_ASKED
            )
        taken = _asked(lambda text: _categories(explorer, text), len(controls))
        to_choose.click(
            taken, code, [look[1][0], *controls], api_visibility="private", **_ASKED
        ).then(look[0], [draw_seed, *controls], look[1], api_visibility="private", **_ASKED)
    return blocks


def _summary(explorer: Explorer) -> str:
    config = explorer.run.config
    datum = "an image" if explorer.is_image else "a row"
    text = (
        f"A code of {config.num_latents} latents z1 to z{config.num_latents}, with "
        f"{config.num_categories} categories each, stands for {datum} of {explorer.run.data.name}. "
        f"Prior: {config.prior}. Likelihood: {config.likelihood}."
    )
    return markup.note(text)


def _same(text: Any) -> Any:
    return text


def _asked(question: Callable[..., Sequence[Any]], number: int) -> Callable[..., list[Any]]:
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


# --- Choose a code ---


def _choose(explorer: Explorer) -> tuple[list[Any], Any, Any]:
    first = [0] * explorer.num_latents
    if explorer.num_data:
        first = explorer.infer(explorer.datum(0)).code

    def decoded(seed: Any, *code: Any) -> list[Any]:
        mean, draw = explorer.decode(list(code), seed)
        named = [("mean of p(x|z)", mean), (f"a draw from p(x|z), seed {seed}", draw)]
        return [markup.views(explorer, named, _PIXELS)]

    with gr.Row():
        with gr.Column(min_width=280):
            told = gr.HTML(elem_classes="alert")
            shown = gr.HTML(decoded(0, *first)[0])
            seed = gr.Number(0, label="Seed of the draw", precision=0, minimum=0)
        with gr.Column(min_width=280, elem_classes="latents"):
            controls = [_control(explorer, d, k) for d, k in enumerate(first, 1)]
    ask, outputs = _asked(decoded, 1), [told, shown]
    gr.on(
        [each.input for each in (seed, *controls)],
        ask,
        [seed, *controls],
        outputs,
        api_name="decode",
        **_ASKED,
    )
    return controls, (ask, outputs), seed


def _control(explorer: Explorer, d: int, k: int) -> Any:
    number = explorer.num_categories
    if number * explorer.num_latents <= _MOST_RADIOS:
        return gr.Radio(list(range(number)), value=k, label=f"z{d}")
    return gr.Slider(0, number - 1, value=k, step=1, label=f"z{d}")


def _categories(explorer: Explorer, text: Any) -> list[int]:
    return explorer.walk(text, text)[0].code


# --- Encode ---


def _encode(explorer: Explorer) -> tuple[Any, Any, Any, Any]:
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
                take = gr.Button("Take the datum", visible=most > 0)
            if not explorer.num_data:
                gr.HTML(markup.note(f"The data of the run are not here: {explorer.missing}"))
            label = gr.Dropdown(
                ["of the datum", *explorer.classes],
                value="of the datum",
                label="Class y of p(z|y)",
                visible=bool(explorer.classes),
            )
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
        return _inferred(explorer.infer(datum, _label(explorer, y), s), explorer)

    def known(n: Any, y: Any, s: Any) -> list[Any]:
        datum = explorer.datum(n)
        found = explorer.infer(datum, _label(explorer, y), s)
        return [_value(explorer, datum), *_inferred(found, explorer)]

    pad.input(_asked(own, 4), [pad, label, seed], [told, *outputs], api_name="encode", **_ASKED)
    gr.on(
        [take.click, number.submit],
        _asked(known, 5),
        [number, label, seed],
        [told, pad, *outputs],
        api_name="encode_datum",
        **_ASKED,
    )
    return code, to_start, to_end, to_choose


def _label(explorer: Explorer, value: Any) -> Any:
    return value if explorer.classes and value != "of the datum" else None


def _value(explorer: Explorer, datum: Datum) -> Any:
    """A datum as the pad or the form shows it."""
    if explorer.is_image:
        return explorer.digits(datum)
    return [cell if isinstance(cell, str) else f"{cell:.6g}" for cell in datum.view.cells]


def _inferred(found: Inferred, explorer: Explorer) -> list[Any]:
    named = [("as the model takes it", found.taken), ("mean of p(x|z) at its code", found.mean)]
    return [
        markup.code_text(found.code),
        markup.views(explorer, named, _PIXELS // 2),
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


# --- Walk and sample ---


def _walk(explorer: Explorer) -> tuple[Any, Any, Any]:
    codes = [" ".join(["0"] * explorer.num_latents)] * 2
    if explorer.num_data > 1:
        codes = [markup.code_text(explorer.infer(explorer.datum(n)).code) for n in (0, 1)]

    def walked(one: Any, other: Any) -> list[Any]:
        return [markup.steps(explorer, explorer.walk(one, other), _SMALL)]

    boxes = []
    numbers = []
    with gr.Row():
        for i, name in enumerate(("Start", "End")):
            with gr.Column(min_width=280):
                boxes.append(gr.Textbox(codes[i], label=f"{name}: a code", max_length=64 * 16))
                most = max(0, explorer.num_data - 1)
                numbers.append(
                    gr.Number(
                        min(i, most),
                        label=f"{name}: take the code of a datum, 0 to {most}",
                        precision=0,
                        visible=most > 0,
                    )
                )
    told = gr.HTML(elem_classes="alert")
    shown = gr.HTML(walked(*codes)[0])
    ask, outputs = _asked(walked, 1), [told, shown]
    gr.on(
        [box.input for box in boxes] + [box.blur for box in boxes],  # `input` misses a paste
        ask,
        boxes,
        outputs,
        api_name="walk",
        **_ASKED,
    )
    coded = _asked(lambda n: [markup.code_text(explorer.infer(explorer.datum(n)).code)], 1)
    for number, box in zip(numbers, boxes, strict=True):
        number.input(coded, number, [told, box], api_visibility="private", **_ASKED).then(
            ask, boxes, outputs, api_visibility="private", **_ASKED
        )
    return boxes[0], boxes[1], (ask, outputs)


def _sample(explorer: Explorer) -> None:
    with gr.Row():
        number = gr.Slider(1, MOST_SAMPLES, value=16, step=1, label="Number of samples")
        seed = gr.Number(0, label="Seed", precision=0, minimum=0)
        kind = gr.Radio(
            ["means of p(x|z)", "draws from p(x|z)"], value="means of p(x|z)", label="What is shown"
        )
        label = gr.Dropdown(
            ["all", *explorer.classes],
            value="all",
            label="Class y of p(z|y)",
            visible=bool(explorer.classes),
        )
    button = gr.Button("Sample", variant="primary")

    def sampled(num: Any, s: Any, which: Any, y: Any) -> list[Any]:
        one = None if y == "all" else y
        found = explorer.sample(num, one, s, which != "draws from p(x|z)")
        named = [(f"{i}" + f", {name}" * bool(name), view) for i, (view, name) in enumerate(found)]
        return [markup.views(explorer, named, _SMALL)]

    told = gr.HTML(elem_classes="alert")
    shown = gr.HTML(sampled(16, 0, "", "all")[0])
    gr.on(
        [button.click, label.input, kind.input],
        _asked(sampled, 1),
        [number, seed, kind, label],
        [told, shown],
        api_name="sample",
        **_ASKED,
    )
