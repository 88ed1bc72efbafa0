"""Runs: settings, the parts that they name, and the folder that a training leaves behind."""

from pyro_dvae.runs.checkpoints import Run, load_run
from pyro_dvae.runs.config import Config, build_elbo, build_vae

__all__ = ["Config", "Run", "build_elbo", "build_vae", "load_run"]
