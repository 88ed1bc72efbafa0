"""What commands share that work on a trained run: how it is loaded, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import complain
from .errors import fail, new_output
from .figures import datum_name
from .options import Device, PosteriorOf
from .processes import join, world_size

if TYPE_CHECKING:
    from pyro_dvae import Config, Run
    from pyro_dvae.evaluation import Inference
    from pyro_dvae.runs import PreparedRows


def file_for(path: Path, suffixes: tuple[str, ...], force: bool) -> None:
    """Refuse an output that has another suffix, that exists already, or whose folder is missing."""
    if not os.path.isdir(path) and path.suffix.lower() not in suffixes:
        fail(f"Expected an output {' or '.join(suffixes)}; got {path}. Change its suffix.")
    new_output(path, force)


def check_probabilities(output: Path, means: bool = True) -> None:
    """Refuse --probabilities for another output than rows of means."""
    if output.suffix.lower() != ".csv":
        fail(f"Expected a .csv file with --probabilities; got {output}. Change its suffix.")
    if not means:
        fail("Expected --means with --probabilities; got --draws. Leave one out.")


def open_run(folder: Path | None, device: Device, trust_code: bool) -> tuple[Run, Any]:
    """The run in a folder with its model on the device, and the device. None is the newest run.

    Of several processes that torchrun has started, each joins the others here.
    """
    from .devices import pick_device

    target = pick_device(device)
    if world_size() > 1:
        target = join(target)
    run = load(folder, trust_code)
    run.vae.to(target)
    return run, target


def load(folder: Path | None, trust_code: bool) -> Run:
    """The run in a folder; None is the newest run. If code is trusted, a line says which."""
    from pyro_dvae.runs import load_run, newest_run

    folder = folder or newest_run()
    if trust_code:
        say_what_is_trusted(folder)
    return load_run(folder, trust_code=trust_code)


def say_what_is_trusted(folder: Path) -> None:
    """Name the code of a run that is imported because the user passed --trust-code."""
    from pyro_dvae.runs import own_code, read_config

    own = own_code(read_config(folder).config)
    if own:
        complain(f"importing {' and '.join(own)}, which {folder} names")


def weights_of(run: Run) -> str:
    """A text that says which weights were used."""
    return f"{run.folder}, weights of epoch {run.epoch}"


def only_images(run: Run) -> None:
    """Refuse to draw where the data are not images."""
    if datum_name(run.event_shape) != "image":
        fail(
            f"Expected a run of images (H, W) to draw; got data of shape {run.event_shape} in "
            f"{run.folder}. Use pdvae decode -o images.npz, or pdvae sample -o rows.csv."
        )


def refuse_too_many_codes(config: Config, option: str, mend: str) -> None:
    """Refuse an option that sums over all K^D codes where these are too many."""
    from pyro_dvae.evaluation import MAX_CODES, describe_codes, num_codes

    code = (config.num_latents, config.num_categories)
    if num_codes(*code) > MAX_CODES:
        fail(
            f"Expected at most {MAX_CODES} codes for {option}; got K^D = {describe_codes(*code)}. "
            f"{mend}"
        )


def asked_posterior(
    config: Config, posterior: PosteriorOf | None, refine: int | None, seed: int = 0
) -> Inference:
    """How q(z|x) is found, by the options --posterior and --refine.

    Args:
        config: the run's settings.
        posterior: the value of --posterior, or None.
        refine: the value of --refine, or None.
        seed: of the draws.

    Raises:
        ValueError: --refine is given with another posterior than the refined one.
    """
    from pyro_dvae.evaluation import inference_of

    if posterior is PosteriorOf.exact:
        refuse_too_many_codes(config, "--posterior exact", "Use --posterior refined.")
    return inference_of(None if posterior is None else posterior.value, refine, seed)


def by_posterior(inference: Inference | None) -> str:
    """For a line of output: " by the refined q(z|x) (5 sweeps)"; nothing for the encoder's."""
    if inference is None or inference.posterior == "encoder":
        return ""
    sweeps = f" ({inference.sweeps} sweep{'s' * (inference.sweeps != 1)})"
    many = sweeps if inference.posterior == "refined" else ""
    return f" by the {inference.posterior} q(z|x){many}"


def codes_of(run: Run, rows: PreparedRows, some: slice, inference: Inference) -> Any:
    """The most probable codes of some rows, (N, D, K) one-hot on the model's device.

    Args:
        run: the run.
        rows: of `run.rows(..., labelled=True)`, if the posterior is not the guide's.
        some: which of them.
        inference: how q(z|x) is found.
    """
    import torch
    from torch.nn.functional import one_hot

    from pyro_dvae.runs import encode_blocks, posterior_labels

    labels = posterior_labels(run.vae, run.config, rows, inference)
    known = None if labels is None else labels[some]
    blocks = encode_blocks(run.vae, rows.x[some], known, inference=inference)
    codes = one_hot(torch.cat(list(blocks)), run.config.num_categories)
    return codes.to(next(run.vae.parameters()))


@contextmanager
def failed_writes() -> Iterator[None]:
    """Report a failed write in one line, with exit status 1."""
    try:
        yield
    except OSError as error:
        fail(str(error), 1)
