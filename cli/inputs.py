"""The data that commands work on: those of a run, found again and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyro_dvae import Config, Images
    from pyro_dvae.data import Splits


def data_facts(splits: Splits, config: Config) -> dict[str, Any]:
    """What a run remembers of its data."""
    from pyro_dvae.data import fingerprint

    return {
        "name": splits.images.name,
        "source": splits.images.source,
        "fingerprint": fingerprint(splits.images),
        "binarize": config.binarize,
        "num_train": len(splits.train),
        "num_validation": len(splits.validation),
        "num_test": len(splits.test),
    }


def run_images(
    name: str | None, data_dir: Path | None, facts: dict[str, Any] | None = None
) -> Images:
    """Load a data set; where `facts` tell of a run's, that one.

    Raises:
        ValueError: it is not there, or not the run's.
    """
    from pyro_dvae import load_images
    from pyro_dvae.data import fingerprint

    if facts is None:
        return load_images(name, data_dir)
    its_name, source = facts.get("name"), str(facts.get("source"))
    if data_dir is None and its_name == "mnist" and Path(source).is_dir():
        data_dir = Path(source)
    images = load_images(name or its_name, data_dir)
    found = fingerprint(images)
    its_own = facts.get("fingerprint", found)  # which runs of format 1 do not know
    if found != its_own:
        raise ValueError(
            f"Expected the run's data, {its_name} from {source} (fingerprint {its_own}); got "
            f"{images.name} from {images.source} ({found}). Name the run's with --data and "
            "--data-dir."
        )
    return images


def run_splits(config: Config, facts: dict[str, Any], data_dir: Path | None = None) -> Splits:
    """The parts that a run trained, validated and tested on.

    Raises:
        ValueError: its data are not there, or have changed.
    """
    from pyro_dvae.data import make_splits

    return make_splits(
        run_images(None, data_dir, facts),
        binarize=config.binarize,
        validation=config.validation,
        seed=config.seed,
    )
