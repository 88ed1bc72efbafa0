"""Sharing: a run as the folder of files that a hub of models takes, uploaded and downloaded.

`hub.py` alone imports huggingface_hub. `docs/share.md` shows how to share a run.
"""

from pyro_dvae.sharing.hub import MissingHub, Pushed, push_run
from pyro_dvae.sharing.pulled import pull_run
from pyro_dvae.sharing.shared import FILES, describe_shared, share_run

__all__ = [
    "FILES",
    "MissingHub",
    "Pushed",
    "describe_shared",
    "pull_run",
    "push_run",
    "share_run",
]
