"""Settings in messages: the library's `num_latents=8` becomes the command line's `--latents 8`."""

from __future__ import annotations

import re
import shlex

_RENAMED = {
    "num_latents": "latents",
    "num_categories": "categories",
    "num_particles": "particles",
    "learning_rate": "lr",
    "validation": "val",
    "compiled": "compile",
    "importance_samples": "iw-samples",
    "num_draws": "draws",
    "replace": "force",
}
_SAME = """
    ais ais_data alpha annealing as_bits averaging baseline batch_size beta bfloat16
    binarize channels columns compile cooldown
    data data_dir dates decoder decoder_particles device drop drop_copies dropout
    encoder epochs estimator exact format
    free_bits group group_copies guide guide_epochs header hidden ids initial_beta key label
    labelled_share labels license likelihood log_every network nominal other patience posterior
    prior probabilities range refine reinmax_steps resume seed size split split_seed start
    temperature test time trust_code warmup
"""
OPTIONS = {name: name.replace("_", "-") for name in _SAME.split()} | _RENAMED
"""Setting, as Python names it -> option, without its dashes."""

_SHELL = ' "$&;|<>'
"""Characters that mean something to a shell. No name of a part has one."""
_SETTING = re.compile(
    rf"\b({'|'.join(OPTIONS)})="
    r"""("[^"]*"|'[^']*'|\([^()]*\)|\[[^][]*\]|\.\.\.|[\w+:-]+(?:\.\w+)*)"""
)


def with_options(message: str) -> str:
    """Name settings as the command line does.

    `range=(0, 255)` becomes `--range 0,255`, `header=False` becomes `--no-header`, `binarize=None`
    becomes `no --binarize`, and `data_dir=...` becomes `--data-dir`. All else stays as it is.

    Args:
        message: a text of the library.
    """
    return _SETTING.sub(lambda found: _option(found[1], found[2]), message)


def _option(setting: str, value: str) -> str:
    option = f"--{OPTIONS[setting]}"
    if value in ("...", "True"):
        return option
    if value in ("None", "False"):
        return f"no {option}" if value == "None" else f"--no-{OPTIONS[setting]}"
    if value[0] in "([":
        items = [item.strip().strip("\"'") for item in value[1:-1].split(",")]
        text = ("x" if setting == "size" else ",").join(item for item in items if item)
    else:
        text = value.strip("\"'")
    if any(character in _SHELL for character in text):
        text = shlex.quote(text)
    return f"{option} {text}"
