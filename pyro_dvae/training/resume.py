"""The state that a training needs to continue, from one `Trainer` to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from pyro_dvae.likelihoods.counts import is_unit
from pyro_dvae.processes import rank
from pyro_dvae.training.records import EpochRecord

if TYPE_CHECKING:
    from pyro_dvae.training.trainer import Trainer


class TrainingState(NamedTuple):
    """Everything that the next step depends on."""

    tensors: dict[str, Tensor]
    """Weights, their average, the best weights, and the states of optimizer, ELBO and streams."""
    progress: dict[str, Any]
    """Plain numbers and strings, which JSON can hold."""

    def __repr__(self) -> str:
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())
        epoch, step = self.progress.get("epoch"), self.progress.get("step")
        return (
            f"TrainingState after {epoch} epochs and {step} steps: {len(self.tensors)} tensors, "
            f"{size / 2**20:.1f} MiB"
        )


def pack(trainer: Trainer) -> TrainingState:
    """A copy of the state of a trainer after any step or epoch."""
    tensors = _groups(trainer)
    progress = {
        "epoch": trainer.epoch,
        "step": trainer.step,
        "num_seen": trainer.num_seen,
        "num_averaged": trainer.average.num_steps,
        "seconds": trainer.seconds,
        "best": None if trainer.best is None else dict(vars(trainer.best)),
        "device": trainer.device.type,
    }
    copies = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    return TrainingState(copies, progress)


def unpack(trainer: Trainer, state: TrainingState) -> None:
    """Load the state of a trainer with the same arguments; see `Trainer.load_state_dict`."""
    tensors, progress = state
    try:
        best = None if progress["best"] is None else _record(progress["best"])
        numbers = {name: int(progress[name]) for name in ("epoch", "step", "num_seen")}
        num_averaged, seconds = int(progress["num_averaged"]), float(progress["seconds"])
        same_device = progress["device"] == trainer.device.type
        tensors = _with_units(tensors, trainer, best is not None)
        _compare(tensors, trainer, best is not None, same_device)
        on_cpu = ["random.order", "random.draws.0"]
        on_cpu += ["random.noise"] if trainer.device.type == progress["device"] == "cpu" else []
        for name in on_cpu:
            torch.Generator().set_state(tensors[name].cpu())  # raises an error if it is damaged
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"Expected the state of this training; got another ({error}). "
            "Continue with the settings that the state was saved under."
        ) from error

    def group(name: str) -> dict[str, Tensor]:
        start = f"{name}."
        return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}

    trainer.vae.load_state_dict(group("vae"))
    if isinstance(trainer.elbo, nn.Module):
        trainer.elbo.load_state_dict(group("elbo"))
    trainer.average.load(group("average"), num_averaged)
    optimizer: dict[int, dict[str, Tensor]] = {}
    for name, value in group("optimizer").items():
        index, key = name.split(".")
        optimizer.setdefault(int(index), {})[key] = value.clone()
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": optimizer, "param_groups": groups})
    device = trainer.device
    trainer.best = best
    trainer.best_weights = {k: v.to(device, copy=True) for k, v in group("best").items()}
    trainer.total = tensors["total"].to(device, copy=True)
    trainer.epoch, trainer.step, trainer.num_seen = numbers.values()
    trainer.seconds = seconds
    trainer.shuffling.set_state(tensors["random.order"].cpu())
    trainer.order = trainer.shuffling.get_state()
    if same_device and rank() == 0:  # the state is that of process 0, as its streams are
        trainer.noise.set_state(tensors["random.noise"].cpu())
        trainer.draws.state = [value.cpu().clone() for value in group("random.draws").values()]
    else:
        trainer.restart_streams()


def _with_units(tensors: dict[str, Tensor], trainer: Trainer, with_best: bool) -> dict[str, Tensor]:
    """The tensors of a state, with units of counts of 1 in those of old versions."""
    units = {k: v for k, v in trainer.vae.state_dict().items() if is_unit(k)}
    groups = ["vae", "best"] if with_best else ["vae"]
    ones = {f"{group}.{k}": torch.ones_like(v) for group in groups for k, v in units.items()}
    return {**ones, **tensors}


def _groups(trainer: Trainer) -> dict[str, Tensor]:
    tensors = {
        "total": trainer.total,
        "random.order": trainer.order,
        "random.noise": trainer.noise.get_state(),
    }
    groups: dict[str, dict[Any, Tensor]] = {
        "random.draws": dict(enumerate(trainer.draws.state)),
        "vae": {**trainer.vae.state_dict(), **trainer.average.weights},
        "average": trainer.average.average,
        "best": trainer.best_weights,
        "elbo": trainer.elbo.state_dict() if isinstance(trainer.elbo, nn.Module) else {},
    }
    for index, state in trainer.optimizer.state_dict()["state"].items():
        groups[f"optimizer.{index}"] = state
    for group, values in groups.items():
        tensors |= {f"{group}.{name}": value for name, value in values.items()}
    return tensors


def _compare(tensors: dict[str, Tensor], trainer: Trainer, with_best: bool, random: bool) -> None:
    """Raise a ValueError that names the first tensor that this trainer cannot take."""
    required = {
        name: value
        for name, value in _groups(trainer).items()
        if name.split(".")[0] in ("vae", "average", "elbo", "total")
        or (name.startswith("random.") and (random or name == "random.order"))
    }
    if with_best:
        required |= {f"best.{k}": v for k, v in trainer.vae.state_dict().items()}
    optional: dict[str, Tensor] = {}
    weights = [w for group in trainer.optimizer.param_groups for w in group["params"]]
    for index, weight in enumerate(weights):
        moments = {
            "exp_avg": weight,
            "exp_avg_sq": weight,
            "step": torch.zeros((), dtype=torch.float32),
        }
        optional |= {f"optimizer.{index}.{name}": like for name, like in moments.items()}
    missing = sorted(required.keys() - tensors.keys())
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    for name, value in tensors.items():
        like = required.get(name, optional.get(name))
        if like is None and (random or not name.startswith("random.")):
            raise ValueError(f"{name} is unknown here")
        if like is not None and (value.shape, value.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"{name} is {value.dtype} {tuple(value.shape)}, not {like.dtype} "
                f"{tuple(like.shape)}"
            )


def _record(fields: dict[str, Any]) -> EpochRecord:
    record = EpochRecord(**fields)
    information = record.validation_information
    return EpochRecord(
        **{**fields, "validation_information": None if information is None else tuple(information)}
    )
