"""The weights of a run folder, and the model that they fit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pyro_dvae.likelihoods.counts import is_unit
from pyro_dvae.runs.checkpoints import WEIGHTS
from pyro_dvae.runs.config import Config, build_vae, model_code
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.settings import CONFIG, ConfigFile
from pyro_dvae.runs.storage import read_tensors
from pyro_dvae.vae import DiscreteVAE


def refuse_sizes_beyond(path: Path, config: Config) -> None:
    """Raise a ValueError where settings name a model that a file of tensors is too small for.

    A decoder has at least one number for each category of each latent, and a Boltzmann machine for
    each pair of latents that it couples: what a damaged file claims is not built to find out.
    """
    if model_code(config) or not path.is_file():
        return
    least = 0 if config.network.startswith("conv-grid") else config.num_latents
    if config.prior.partition(":")[0] in ("boltzmann", "rbm"):
        least = max(least, config.num_latents**2 // 4)
    size = path.stat().st_size
    if least * config.num_categories > size:
        raise ValueError(
            f"Expected the run's weights in {path}; got {size:,} bytes, too few for "
            f"{config.num_latents} latents of {config.num_categories} categories. Restore the "
            f"file, or {CONFIG}."
        )


def without_numbers(folder: Path, file: ConfigFile, name: str = WEIGHTS) -> DiscreteVAE:
    """The model's shapes alone, whatever sizes a damaged file may claim.

    Args:
        folder: the run's.
        file: its settings.
        name: of the file of weights.
    """
    refuse_sizes_beyond(folder / name, file.config)
    with torch.device("meta"):
        return built(folder, file)


def built(folder: Path, file: ConfigFile) -> DiscreteVAE:
    """The model that the settings name, with weights at random."""
    try:
        return build_vae(file.config, file.event_shape)
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
        raise ValueError(
            f"Expected a model that can be built in {folder / CONFIG}; got: "
            f"{(str(error) or type(error).__name__).splitlines()[0]}. Restore the file."
        ) from error


def read_weights(
    folder: Path, file: ConfigFile, vae: DiscreteVAE | None, name: str = WEIGHTS
) -> tuple[dict[str, Tensor], int]:
    """The weights, of the shapes of a model where one is given, and their epoch.

    Args:
        folder: the run's.
        file: its settings.
        vae: a model of these settings, whose own weights are not used; None to take any shapes.
        name: of the file of weights.
    """
    own = model_code(file.config)
    shapes = None
    if vae is not None:
        shapes = {its: value.shape for its, value in vae.state_dict().items()}
    # Old versions had no units of counts.
    units = [its for its in shapes or () if is_unit(its)]
    what = "the run's weights" + (f" to fit {' and '.join(own)} as they are now" if own else "")
    weights, metadata = read_tensors(folder / name, what, shapes, units)
    try:
        check_fields(metadata, {"epoch": int})
    except ValueError as error:
        raise ValueError(
            f"Expected {what} in {folder / name}; got: {str(error).rstrip('.')}. Restore the file."
        ) from error
    return weights, metadata.get("epoch", 0)
