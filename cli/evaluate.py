"""`pdvae evaluate`: every figure of a run on a part of its data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import complain
from .options import Device, DeviceOption, JsonOption, RunSeedOption, TrustOption, fail, user_errors
from .report import report, unit
from .rows import labels_for, load, refuse_too_many_codes
from .summary import History, read_history

if TYPE_CHECKING:
    from pyro_dvae import Evaluation


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Part of the run's data: train, validation or test.")
    ] = "test",
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
        from pyro_dvae.checks import one_of
        from pyro_dvae.data import PARTS
        from pyro_dvae.evaluation import ordering
        from pyro_dvae.runs.checkpoints import write_evaluation

        from .devices import pick_device
        from .inputs import run_splits

        one_of("--split", split, PARTS)
        target = pick_device(device)
        loaded = load(run, trust_code)
        folder, config, facts, epoch = loaded.folder, loaded.config, loaded.data, loaded.epoch
        if exact:
            refuse_too_many_codes(
                config, "--exact", "Use --no-exact, and --iw-samples for a tighter bound."
            )
        history = read_history(folder)
        part = run_splits(config, facts, data_dir).part(split)
        labels = labels_for(config, part.labels, f"the {split} part")
        if not as_json:
            print(
                f"{folder}: weights of epoch {epoch} ({history.status(config)}), "
                f"{facts.get('name')} from {facts.get('source')}",
                flush=True,
            )
        scores = pyro_dvae.evaluate(
            loaded.vae.to(target),
            part.x.to(target),
            None if labels is None else labels.to(target),
            importance_samples=iw_samples or None,
            exact=exact,
            batch_size=batch_size,
            seed=config.seed if seed is None else seed,
        )
    collapse = _collapse(scores, history, epoch)
    if as_json:
        about = {"run": str(folder), "part": split, "epoch": epoch, "version": loaded.version}
        words = {"ordering": ordering(scores), "collapse": collapse}
        settings = {"data": facts, "config": asdict(config)}
        print(json.dumps({**about, **settings, **asdict(scores), **words}))
    else:
        report(scores, split, config, unit(loaded.event_shape))
        if collapse is not None:
            print(collapse)
    try:
        write_evaluation(folder, split, {**asdict(scores), "epoch": epoch})
    except (OSError, ValueError) as error:
        complain(f"the figures were not stored: {error}")


def _collapse(scores: Evaluation, history: History, epoch: int) -> str | None:
    from pyro_dvae.evaluation.usage import describe_collapse

    # These figures stand for the weights' epoch, so that the words agree with the table above.
    before = history.information[: epoch - 1] if len(history.information) >= epoch > 0 else []
    return describe_collapse([*before, scores.information_per_latent])
