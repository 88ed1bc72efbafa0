"""`pdvae evaluate`: every figure of a run on a part of its data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import complain
from .options import (
    Device,
    DeviceOption,
    JsonOption,
    Part,
    RunSeedOption,
    TrustOption,
    fail,
    user_errors,
)
from .report import progress_of, report, unit
from .rows import open_run, refuse_too_many_codes

if TYPE_CHECKING:
    from pyro_dvae import EpochRecord, Evaluation, Run


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
    ] = None,
    split: Annotated[Part, typer.Option(help="Part of the run's data.")] = Part.test,
    iw_samples: Annotated[
        int, typer.Option(help="k of the importance-weighted bound; 0 leaves it out.")
    ] = 1000,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--no-exact",
            help="Sum over all K^D codes, or draw; summed where that is possible if left out.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Images encoded at once; no figure depends on it.")
    ] = 256,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the IDX files; where the run's lay if left out.")
    ] = None,
    seed: RunSeedOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Evaluate a run's best weights: ELBO, bounds, log p(x), the gaps, and what latents carry.

    Example: pdvae evaluate runs/mnist-d4k8-rloo-1 --split test
    """
    if iw_samples != 0 and iw_samples < 2:
        fail(f"Expected --iw-samples of at least 2, or 0; got {iw_samples}. Raise it.")
    if batch_size < 1:
        fail(f"Expected --batch-size of at least 1; got {batch_size}. Raise it.")
    with user_errors():
        import pyro_dvae
        from pyro_dvae.runs import model_batch

        loaded, target = open_run(run, device, trust_code)
        config, part = loaded.config, split.value
        if exact:
            refuse_too_many_codes(
                config, "--exact", "Use --no-exact, and --iw-samples for a tighter bound."
            )
        epochs = loaded.metrics
        splits = loaded.data.moved_to(data_dir=data_dir).splits()
        x, labels = model_batch(config, splits, part, target)
        if not as_json:
            print(
                f"{loaded.folder}: weights of epoch {loaded.epoch} "
                f"({progress_of(config, epochs)}), {loaded.data.name} from {loaded.data.source}",
                flush=True,
            )
        scores = pyro_dvae.evaluate(
            loaded.vae,
            x,
            labels,
            importance_samples=iw_samples or None,
            exact=exact,
            batch_size=batch_size,
            seed=config.seed if seed is None else seed,
        )
    collapse = _collapse(scores, epochs, loaded.epoch)
    if as_json:
        print(json.dumps(_content(loaded, part, scores, collapse)))
    else:
        report(scores, part, config, unit(loaded.event_shape))
        if collapse is not None:
            print(collapse)
    _store(loaded, part, scores)


def _collapse(scores: Evaluation, epochs: list[EpochRecord], epoch: int) -> str | None:
    """What has collapsed, and since when, with these figures for those of the weights' epoch."""
    from pyro_dvae.evaluation import describe_collapse

    rows = [record.validation_information for record in epochs]
    known = [row for row in rows if row is not None]
    before = known[: epoch - 1] if len(known) == len(rows) >= epoch > 0 else []
    return describe_collapse([*before, scores.information_per_latent])


def _content(run: Run, part: str, scores: Evaluation, collapse: str | None) -> dict[str, Any]:
    from pyro_dvae.evaluation import ordering
    from pyro_dvae.runs import data_to_json

    return {
        "run": str(run.folder),
        "part": part,
        "epoch": run.epoch,
        "version": run.version,
        "data": data_to_json(run.data),
        "config": asdict(run.config),
        **asdict(scores),
        "ordering": ordering(scores),
        "collapse": collapse,
    }


def _store(run: Run, part: str, scores: Evaluation) -> None:
    from pyro_dvae.runs import write_evaluation

    try:
        write_evaluation(run.folder, part, scores, run.epoch)
    except (OSError, ValueError) as error:
        complain(f"the figures were not stored: {error}")
