"""`pdvae evaluate`: every figure of a run on a part of its data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import complain, note
from .errors import fail, user_errors
from .figures import datum_name, dead_parts, print_figures, progress_of
from .options import (
    Device,
    DeviceOption,
    JsonOption,
    KeyOption,
    PartName,
    PartOption,
    PosteriorOf,
    PosteriorOption,
    RunArgument,
    RunDataDirOption,
    RunSeedOption,
    TrustOption,
    run_data,
)
from .processes import is_first
from .rows import open_run, refuse_too_many_codes

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_dvae import Config, EpochRecord, Evaluation, Run
    from pyro_dvae.data import Splits


_COMPARED = 2**14
"""Largest K^D for which posteriors are compared, if the user does not say it: with more codes the
comparison takes longer than all other figures together."""

IwSamplesOption = Annotated[
    int,
    typer.Option(
        help="k, the number of codes drawn per datum for the importance-weighted bound. 0 "
        "leaves the bound out.",
        min=0,
    ),
]
ExactOption = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        help="Sum over all K^D codes, or draw some of them. If left out: sum if they are few "
        "enough.",
        show_default=False,
    ),
]
AisOption = Annotated[
    int,
    typer.Option(
        help="The number of sweeps of annealed importance sampling, for a bound on log p(x) that "
        "is tighter than the others where the codes are too many to sum over; try 50. Each sweep "
        "decodes D codes for each of 10 chains per datum. 0 leaves the bound out.",
        min=0,
    ),
]
AisDataOption = Annotated[
    int,
    typer.Option(
        help="The number of data, evenly spaced, for which the chains of --ais are run.", min=2
    ),
]
BatchSizeOption = Annotated[
    int,
    typer.Option(
        help="The number of data that are encoded at once. No figure depends on it.", min=1
    ),
]

DataOption = Annotated[str | None, run_data("the part that --split names")]
RefineFiguresOption = Annotated[
    int | None,
    typer.Option(
        "--refine",
        metavar="N",
        help="The number of sweeps of coordinate ascent after which the ELBO of the refined q(z|x) "
        "is shown beside that of the encoder's. With 0, the two are not compared. If left out: 5 "
        "sweeps where the figures are sums over at most 16,384 codes, and else 0.",
        min=0,
        show_default=False,
    ),
]


def evaluate(
    run: RunArgument = None,
    data: DataOption = None,
    split: PartOption = PartName.test,
    iw_samples: IwSamplesOption = 1000,
    exact: ExactOption = None,
    posterior: PosteriorOption = None,
    refine: RefineFiguresOption = None,
    ais: AisOption = 0,
    ais_data: AisDataOption = 100,
    batch_size: BatchSizeOption = 256,
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    seed: RunSeedOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Evaluate a run on a part of its data, or on a file: ELBO, bounds, log p(x).

    It also prints the differences of these figures: what a better encoder, or another family of
    q(z|x), could gain; and how much each latent tells about the data. The figures of a part are
    stored for pdvae compare, those of a file are not, nor those of another --posterior.

    Example: pdvae evaluate runs/mnist-d4k8-snapshot-1 --split test
    """
    with user_errors():
        import pyro_dvae
        from pyro_dvae.data import PARTS
        from pyro_dvae.runs import with_simple_models

        loaded, target = open_run(run, device, trust_code)
        config, part = loaded.config, _named(data, split)
        posterior = posterior or PosteriorOf.encoder
        _check(config, iw_samples, exact, posterior, refine)
        epochs = loaded.metrics
        batch, splits = _opened(loaded, part, data_dir, key, target)
        if not as_json:
            print(_heading(loaded, epochs), flush=True)
        scores = pyro_dvae.evaluate(
            loaded.vae,
            *batch,
            importance_samples=iw_samples or None,
            exact=exact,
            batch_size=batch_size,
            seed=config.seed if seed is None else seed,
            posterior=posterior.value,
            refine=_sweeps(loaded, exact, refine),
            ais=ais or None,
            ais_data=ais_data,
            together=True,
        )
        if not is_first():  # which prints and stores them
            return
        if splits is not None:
            known = _stored(loaded, part) if part in PARTS else None
            scores = with_simple_models(scores, loaded.vae, config, splits, batch, known)
    dead = _dead_parts(config, scores, epochs, loaded.epoch)
    if as_json:
        print(json.dumps(_content(loaded, part, scores, dead) | {"posterior": posterior.value}))
    else:
        print_figures(scores, part, config, datum_name(loaded.event_shape), posterior.value)
        for line in dead:
            if line is not None:
                print(line)
    if part in PARTS and posterior is PosteriorOf.encoder:
        _store(loaded, part, scores)


def _named(data: str | None, split: PartName) -> str:
    """The part or the file to evaluate."""
    if data is not None and split is not PartName.test:
        fail(f"Expected --data or --split; got both {data} and {split.value}. Leave one out.")
    return split.value if data is None else data


def _opened(
    run: Run, part: str, data_dir: Path | None, key: str | None, target: Any
) -> tuple[tuple[Tensor, Tensor | None], Splits | None]:
    """The data and their labels, on the model's device; and the run's data, if they are there."""
    from pyro_dvae.data import PARTS
    from pyro_dvae.runs import model_batch, model_labels

    if part in PARTS:
        if key is not None:
            fail(f"Expected --key with a .npz file; got it with {part}. Leave it out.")
        splits = run.data.moved_to(data_dir=data_dir).splits()
        return model_batch(run.config, splits, part, target), splits
    rows = run.rows(part, data_dir=data_dir, key=key, labelled=True)
    labels = model_labels(run.config, rows.labels, rows.name)
    batch = rows.x[: len(rows.x)].to(target), None if labels is None else labels.to(target)
    try:
        return batch, run.data.splits()
    except (ValueError, OSError) as error:  # the file may be on another machine than they
        note(f"The simple models are left out: {error}")
        return batch, None


def _check(
    config: Config,
    iw_samples: int,
    exact: bool | None,
    posterior: PosteriorOf,
    refine: int | None,
) -> None:
    if iw_samples == 1:
        fail("Expected --iw-samples of at least 2, or 0; got 1. Raise it.")
    if exact:
        refuse_too_many_codes(config, "--exact", "Use --no-exact, and raise --iw-samples.")
    if posterior is PosteriorOf.exact:
        refuse_too_many_codes(config, "--posterior exact", "Use --posterior refined.")
    if refine == 0 and posterior is PosteriorOf.refined:
        fail("Expected --refine of at least 1 with --posterior refined; got 0. Raise it.")


def _sweeps(run: Run, exact: bool | None, refine: int | None) -> int | None:
    """The sweeps after which posteriors are compared; None for no comparison."""
    from pyro_dvae.evaluation import SWEEPS, num_codes, sums_cheaply

    if refine is not None:
        return refine or None
    code = (run.config.num_latents, run.config.num_categories)
    is_sum = sums_cheaply(run.vae, code, run.event_shape) if exact is None else exact
    return SWEEPS if is_sum and num_codes(*code) <= _COMPARED else None


def _heading(run: Run, epochs: list[EpochRecord]) -> str:
    how_far = progress_of(run.config, epochs)
    data = f"{run.data.name} from {run.data.source}"
    return f"{run.folder}: weights of epoch {run.epoch} ({how_far}), {data}"


def _dead_parts(
    config: Config, scores: Evaluation, epochs: list[EpochRecord], epoch: int
) -> tuple[str | None, str | None]:
    """Which latents have collapsed, and since when, and which categories are unused.

    These figures take the place of those that the training wrote for the weights' epoch.
    """
    rows = [record.validation_information for record in epochs]
    known = [row for row in rows if row is not None]
    before = known[: epoch - 1] if len(known) == len(rows) >= epoch > 0 else []
    return dead_parts([*before, scores.information_per_latent], scores, config)


def _content(
    run: Run, part: str, scores: Evaluation, dead: tuple[str | None, str | None]
) -> dict[str, Any]:
    from pyro_dvae.evaluation import ordering
    from pyro_dvae.runs import data_to_json

    return {
        "run": str(run.folder),
        "part": part,
        "epoch": run.epoch,
        "version": run.version,
        "data": data_to_json(run.data),
        "config": asdict(run.config),
        **scores.to_dict(),
        "ordering": ordering(scores),
        "collapse": dead[0],
        "unused": dead[1],
    }


def _stored(run: Run, part: str) -> Evaluation | None:
    """The figures that an earlier evaluation of the part stored; None where there are none."""
    from pyro_dvae.runs import stored_evaluation

    try:
        stored = stored_evaluation(run.folder, part)
    except (OSError, ValueError):  # which is told when the figures are to be stored
        return None
    return None if stored is None else stored.evaluation


def _store(run: Run, part: str, scores: Evaluation) -> None:
    from pyro_dvae.runs import write_evaluation

    try:
        write_evaluation(run.folder, part, scores, run.epoch)
    except (OSError, ValueError) as error:
        complain(f"the figures were not stored: {error}")
