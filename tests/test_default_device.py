"""Under `torch.set_default_device` a model elsewhere gives the same numbers.

The default here is "meta", whose tensors hold none: what is made without its device, and used,
fails on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor
from zoo import ELBOS, GUIDES, LIKELIHOODS, PRIORS, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import (
    BinaryImages,
    LearnedPrior,
    MarginalELBO,
    MLPBaseline,
    PriorTrainer,
    ReinforceELBO,
    RlooELBO,
    Trainer,
    datum_scores,
    evaluate,
    fit,
    gradient_statistics,
    log_marginal,
    reference_gradient,
    split,
    with_prior,
)
from pyro_dvae.data import (
    BlockData,
    Preparation,
    PreparedData,
    TensorRows,
    binary_inputs,
    extent,
    fingerprint,
    make_splits,
    open_source,
    scan,
)


@pytest.fixture(autouse=True)
def _no_tensors_are_left_on_the_default_device() -> None:
    assert torch.empty(0).device.type == "cpu"


def numbers(result: Any) -> Any:
    """Of everything in a result; tensors are where the model is."""
    if isinstance(result, Tensor):
        assert result.device.type == "cpu"
        return result.tolist()
    if isinstance(result, (list, tuple)):
        return [numbers(value) for value in result]
    if hasattr(result, "__dataclass_fields__"):
        return numbers([v for k, v in vars(result).items() if k not in ("seconds", "milliseconds")])
    return result


def train(vae: Any, elbo: Any, **options: Any) -> Any:
    batch = make_batch(vae, num_data=5)
    data = batch if len(batch) > 1 else batch[0]

    def run() -> Any:
        records = list(fit(vae, elbo, data, data, epochs=1, batch_size=3, **options))
        return records, [*vae.parameters()]

    return run


def _scored(vae: Any) -> Any:
    batch = make_batch(vae, num_data=4)
    drawn = {"exact": False, "importance_samples": 3, "num_samples": 2}
    return lambda: (
        evaluate(vae, *batch),
        evaluate(vae, *batch, **drawn),
        datum_scores(vae, *batch),
        log_marginal(vae, *batch).detach(),
        vae.reconstruct(batch[0]),
        vae.mode(batch[0]),
        vae.sample(3, labels=batch[1][:3] if len(batch) > 1 else None),
    )


def _likelihood(name: str) -> Any:
    vae = make_vae(likelihood=name)
    (x,) = make_batch(vae, name, 4)
    return lambda: (evaluate(vae, x), vae.sample(2), vae.sample(2, means=True))


def _resumed() -> Any:
    x = tiny_data(7)
    first, second = (Trainer(tiny_vae(), RlooELBO(2), x, batch_size=4) for _ in range(2))

    def run() -> Any:
        list(first.run(1))
        second.load_state_dict(first.state_dict())
        return list(second.run(2)), [*second.vae.parameters()]

    return run


def _prior() -> Any:
    vae, x = with_prior(tiny_vae(), LearnedPrior(2, 3)), tiny_data(7)
    trainer = PriorTrainer(vae, x, x, batch_size=4)
    return lambda: (list(trainer.run(2)), [*vae.prior.parameters()])


def _laboratory() -> Any:
    vae, x = tiny_vae(), tiny_data(4)

    def run() -> Any:
        reference = reference_gradient(vae, x)
        elbos = {"rloo": RlooELBO(2)}
        return reference, list(gradient_statistics(vae, x, elbos, reference[0], num_draws=20))

    return run


_GREY = torch.randint(256, (9, 2, 2), dtype=torch.uint8)


def _served(policy: str) -> Any:
    generator = torch.Generator()

    def run() -> Any:
        found = []
        preparation = Preparation(policy)
        block = BlockData(TensorRows(_GREY), preparation, block_bytes=8, window=2)
        for data in (PreparedData(_GREY, preparation), BinaryImages(_GREY, policy), block):
            generator.manual_seed(0)
            found += [data.batch(torch.tensor([2, 1], device="cpu"), generator), data.fixed(1)]
        order = block.order(generator)
        return (
            *found,
            order,
            block.batch(order[:5], generator),
            block.subset(order[:3].sort()[0]).fixed(0),
        )

    return run


def _rows(tmp_path: Path) -> Any:
    np.save(tmp_path / "x.npy", _GREY.numpy())
    np.savez(tmp_path / "x.npz", x=_GREY.numpy(), y=np.arange(9) % 2)
    (tmp_path / "x.csv").write_text("a,b\n" + "0,1.5\n1,2\n" * 9)

    def run() -> Any:
        found: list[Any] = []
        for name in ("x.npy", "x.npz", "x.csv"):
            source = open_source(str(tmp_path / name))
            rows = source.train
            found += [rows.read(torch.arange(3, device="cpu")), extent(rows), rows.labels]
            found.append(fingerprint(source))
            scan(rows)
        splits = make_splits(
            open_source(str(tmp_path / "x.npz"), labels="y"),
            binarize="dynamic",
            validation=0.2,
            seed=0,
            test=0.2,
            num_classes=2,
        )
        parts = [splits.part(name) for name in splits.stored]
        return found, parts, split(9, 0.3, 0), binary_inputs(_GREY, (2, 2), "dynamic", 0)

    return run


CASES: dict[str, Callable[[], Any]] = {
    **{f"fit, {n}": lambda n=n: train(tiny_vae(), ELBOS[n]()) for n in ELBOS},
    **{f"fit, {n} prior": lambda n=n: train(make_vae(n), RlooELBO(2)) for n in PRIORS},
    **{f"fit, {n} guide": lambda n=n: train(make_vae(guide=n), RlooELBO(2)) for n in GUIDES},
    "fit, trace": lambda: train(tiny_vae(), Trace_ELBO()),
    "fit, marginal": lambda: train(tiny_vae(), MarginalELBO()),
    "fit, network baseline": lambda: train(tiny_vae(), ReinforceELBO(baseline=MLPBaseline((4,)))),
    "fit, averaged, annealed": lambda: train(
        tiny_vae(), RlooELBO(2), averaging=0.9, annealing=2, initial_beta=2.0
    ),
    **{f"scores, {n} prior": lambda n=n: _scored(make_vae(n)) for n in PRIORS},
    **{f"scores, {n} guide": lambda n=n: _scored(make_vae(guide=n)) for n in GUIDES},
    **{f"scores, {n}": lambda n=n: _likelihood(n) for n in LIKELIHOODS},
    "resumed": _resumed,
    "second stage": _prior,
    "laboratory": _laboratory,
    **{f"served, {p}": lambda p=p: _served(p) for p in ("dynamic", "static", "threshold")},
}


def same(make: Callable[[], Any]) -> None:
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        call = make()
        torch.manual_seed(1)
        with torch.device(device):
            found.append(numbers(call()))
    assert str(found[0]) == str(found[1])


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_the_same(name: str) -> None:
    same(CASES[name])


def test_rows_of_files_are_the_same(tmp_path: Path) -> None:
    same(lambda: _rows(tmp_path))
