"""Many runs: each combination of settings with several seeds, or a search among settings."""

from pyro_dvae.sweeps.result import Sweep
from pyro_dvae.sweeps.space import Range, Vary
from pyro_dvae.sweeps.sweep import sweep

__all__ = ["Range", "Sweep", "Vary", "sweep"]
