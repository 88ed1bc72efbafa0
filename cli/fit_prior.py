"""`pdvae fit-prior`: fit a prior to a trained run's codes, as a new run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    CommandError,
    Device,
    DeviceOption,
    RunSeedOption,
    TrustOption,
    parts_that_do_not_fit,
    user_errors,
)
from .rows import DataDirOption, RunArgument

if TYPE_CHECKING:
    from pyro_dvae import Config, DiscreteVAE, EpochRecord, PriorTrainer
    from pyro_dvae.data import Splits


def fit_prior(
    run: RunArgument = None,
    run_dir: Annotated[
        Path | None,
        typer.Argument(help="New folder for the run; <run>-<prior>-<n> beside it if left out."),
    ] = None,
    prior: Annotated[
        str, typer.Option(help="autoregressive, mixture:20, vamp, rbm, ...; the README lists all.")
    ] = "autoregressive",
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = 50,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better validation ELBO before stopping; 0: never.")
    ] = 10,
    batch_size: Annotated[int, typer.Option(help="Data a step.")] = 100,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    data_dir: DataDirOption = None,
    seed: RunSeedOption = None,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Fit a prior to the codes of a trained run, all else as it is; the run itself stays too.

    Example: pdvae fit-prior runs/mnist-d4k8-rloo-1 --prior autoregressive
    """
    with user_errors():
        from pyro_dvae import PriorTrainer, with_prior
        from pyro_dvae.data import fingerprint, only_seen
        from pyro_dvae.runs.checkpoints import create_run, read_evaluation
        from pyro_dvae.runs.config import build_prior
        from pyro_dvae.runs.sizes import refuse_too_large
        from pyro_dvae.streams import RandomStream

        from .inputs import names_of, placed, run_source, run_splits
        from .rows import open_run
        from .settle import count_classes, stem
        from .train import validation_of

        loaded, target = open_run(run, device, trust_code)
        facts = placed(loaded.data, None, data_dir)
        source = run_source(facts)
        if prior.partition(":")[0] == "conditional":
            source = only_seen(source)
            facts |= {**names_of(source), "fingerprint": fingerprint(source)}
        config = replace(
            loaded.config,
            prior=prior,
            num_classes=count_classes(prior, source),
            epochs=epochs,
            patience=(patience or None) if loaded.config.validation else None,
            batch_size=batch_size,
            learning_rate=lr,
        )
        splits = run_splits(config, facts, source=source)
        seed = config.seed if seed is None else seed
        refuse_too_large(config, loaded.event_shape, len(splits.train), target)
        with RandomStream(seed):
            fresh = build_prior(config, loaded.event_shape)
        with parts_that_do_not_fit():
            trainer = PriorTrainer(
                with_prior(loaded.vae, fresh.to(target)),
                splits.train.to(target),
                validation_of(config, splits, target),
                batch_size=batch_size,
                learning_rate=lr,
                averaging=config.averaging,
                seed=seed,
            )
        its_own = loaded.folder if loaded.folder.name else loaded.folder.resolve()
        folder = create_run(run_dir, f"{its_own.name}-{stem(prior)}", its_own.parent)
    stage = {"run": str(loaded.folder.resolve()), "epoch": loaded.epoch, "seed": seed}
    facts = {**facts, "second_stage": stage}
    before = _test_elbo(loaded.vae, loaded.config, splits)
    print(
        f"{folder}: prior {prior} for the codes of {loaded.folder}, whose prior is "
        f"{loaded.config.prior}, {len(splits.train)} training and "
        f"{0 if splits.validation is None else len(splits.validation)} validation data, {target}"
    )
    _train(folder, config, splits, facts, trainer)
    if before is not None:
        after = read_evaluation(folder)["test"]["elbo"]
        print(f"test ELBO {before:.2f} with prior {loaded.config.prior}, {after:.2f} with {prior}")


def _train(
    folder: Path, config: Config, splits: Splits, facts: dict[str, Any], trainer: PriorTrainer
) -> None:
    from pyro_dvae.data import DataError
    from pyro_dvae.runs.checkpoints import write_config, write_weights
    from pyro_dvae.runs.storage import only_writer

    from .train import finish, warnings_in_lines

    kept = f"What was saved before stays in {folder}."
    with ExitStack() as held, warnings_in_lines():
        with user_errors():
            held.enter_context(only_writer(folder))
        try:
            write_weights(folder, trainer.vae.state_dict(), epoch=0)
            write_config(folder, config, tuple(splits.train.event_shape), facts)
            records = _run(folder, config, trainer)
            finish(folder, config, splits, trainer, records, facts)
        except (OSError, DataError, FloatingPointError) as error:
            raise CommandError(f"{str(error).rstrip('.')}. {kept}", 1) from error
        except KeyboardInterrupt:
            raise CommandError(f"interrupted at once. {kept}", 130) from None


def _run(folder: Path, config: Config, trainer: PriorTrainer) -> list[EpochRecord]:
    from pyro_dvae.runs.checkpoints import append_metrics, write_weights

    from .progress import Progress
    from .report import unit
    from .signals import Signals, StopRequest

    records: list[EpochRecord] = []
    datum = unit(trainer.data.event_shape)  # type: ignore[attr-defined]
    with Signals() as signals, Progress(config.epochs, 0, "ELBO", datum) as progress:

        def on_step(step: int, steps: int) -> None:
            progress.step(step, steps)
            signals.check()

        try:
            for record in trainer.run(config.epochs, patience=config.patience, on_step=on_step):
                records.append(record)
                append_metrics(folder, vars(record))
                if record.is_best:
                    write_weights(folder, trainer.best_weights, record.epoch)
                progress.epoch(record)
                signals.check()
        except StopRequest as stop:
            raise CommandError(
                f"stopped in epoch {trainer.epoch + 1}; the best prior so far is in {folder}",
                stop.status,
            ) from None
    if trainer.epoch < config.epochs:
        print(f"stopped: no better validation ELBO for {config.patience} epochs")
    return records


def _test_elbo(vae: DiscreteVAE, config: Config, splits: Splits) -> float | None:
    """The ELBO of the test data, where there are some."""
    from pyro_dvae import evaluate

    from .rows import labels_for

    if splits.test is None:
        return None
    device = next(vae.parameters()).device
    labels = labels_for(config, splits.stored["test"].labels, "the test part")
    labels = None if labels is None else labels.to(device)
    return evaluate(vae, splits.test.to(device), labels, seed=config.seed).elbo
