"""The page of the explorer, in Gradio: four tabs, each a few components and one or two questions.

Only `server.serve` imports this file, because Gradio is not installed with the library.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import escape

from pyro_dvae.explorer import markup
from pyro_dvae.explorer.asking import ASKED, asked
from pyro_dvae.explorer.encode import encode
from pyro_dvae.explorer.explorer import MOST_SAMPLES, Explorer

_PIXELS, _SMALL = 240, 96
"""Widths of pictures, in CSS pixels."""
_MOST_RADIOS = 256
"""The largest number of categories of all latents together that each have a button."""


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
            code, to_start, to_end, to_choose = encode(explorer)
        with gr.Tab("Walk"):
            start, end, walk = _walk(explorer)
        with gr.Tab("Sample"):
            _sample(explorer)
        for button, box in ((to_start, start), (to_end, end)):
            button.click(_same, code, box, api_visibility="private", **ASKED).then(
                walk[0], [start, end], walk[1], api_visibility="private", **ASKED
            )
        taken = asked(lambda text: _categories(explorer, text), len(controls))
        to_choose.click(
            taken, code, [look[1][0], *controls], api_visibility="private", **ASKED
        ).then(look[0], [draw_seed, *controls], look[1], api_visibility="private", **ASKED)
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


# --- Choose a code ---


def _choose(explorer: Explorer) -> tuple[list[Any], Any, Any]:
    first = [0] * explorer.num_latents
    if explorer.num_data:
        first = explorer.infer(explorer.datum(0)).code

    def decoded(seed: Any, *code: Any) -> list[Any]:
        mean, draw = explorer.decode(list(code), seed)
        named = [("mean of p(x|z)", mean), (f"a draw from p(x|z), seed {seed}", draw)]
        return [markup.views(explorer, named, _PIXELS)]

    seen = ["seen"] * explorer.is_image  # stays in sight while a person scrolls
    with gr.Row():
        with gr.Column(min_width=280, elem_classes=seen):
            told = gr.HTML(elem_classes="alert")
            shown = gr.HTML(decoded(0, *first)[0])
        with gr.Column(min_width=280, elem_classes="latents"):
            seed = gr.Number(0, label="Seed of the draw", precision=0, minimum=0)
            controls = [_control(explorer, d, k) for d, k in enumerate(first, 1)]
    ask, outputs = asked(decoded, 1), [told, shown]
    gr.on(
        [each.input for each in (seed, *controls)],
        ask,
        [seed, *controls],
        outputs,
        api_name="decode",
        **ASKED,
    )
    return controls, (ask, outputs), seed


def _control(explorer: Explorer, d: int, k: int) -> Any:
    number = explorer.num_categories
    names = explorer.class_categories if d == 1 else []
    label = f"z{d}, the class" if names else f"z{d}"
    if number * explorer.num_latents <= _MOST_RADIOS:
        choices = [(names[i] if i < len(names) else str(i), i) for i in range(number)]
        return gr.Radio(choices, value=k, label=label)
    return gr.Slider(0, number - 1, value=k, step=1, label=label, elem_classes="narrow")


def _categories(explorer: Explorer, text: Any) -> list[int]:
    return explorer.walk(text, text)[0].code


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
    ask, outputs = asked(walked, 1), [told, shown]
    gr.on(
        [box.input for box in boxes] + [box.blur for box in boxes],  # `input` misses a paste
        ask,
        boxes,
        outputs,
        api_name="walk",
        **ASKED,
    )
    coded = asked(lambda n: [markup.code_text(explorer.infer(explorer.datum(n)).code)], 1)
    for number, box in zip(numbers, boxes, strict=True):
        number.input(coded, number, [told, box], api_visibility="private", **ASKED).then(
            ask, boxes, outputs, api_visibility="private", **ASKED
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
        named = [
            (f"{i}" + f": class {name}" * bool(name), view) for i, (view, name) in enumerate(found)
        ]
        return [markup.views(explorer, named, _SMALL)]

    told = gr.HTML(elem_classes="alert")
    shown = gr.HTML(sampled(16, 0, "", "all")[0])
    gr.on(
        [button.click, label.select, kind.input],
        asked(sampled, 1),
        [number, seed, kind, label],
        [told, shown],
        api_name="sample",
        **ASKED,
    )
