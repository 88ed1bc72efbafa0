"""The text of every public object says what it is, in a few lines, without its numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import nn
from zoo import ELBOS, GUIDES, LIKELIHOODS, NETWORKS, PRIORS, D, K, P, make_vae, tiny_data, tiny_vae

import pyro_dvae
from pyro_dvae import (
    BinaryImages,
    Config,
    ConvDecoder,
    DiscreteVAE,
    EpochRecord,
    GuideTrainer,
    Images,
    MarginalELBO,
    MLPBaseline,
    MLPControl,
    PriorTrainer,
    RefinedGuide,
    ReinforceELBO,
    RelaxELBO,
    RepeatedLabels,
    RlooELBO,
    Run,
    SemiSupervisedVAE,
    Trainer,
    UniformPrior,
    evaluate,
    profile,
    refine,
)
from pyro_dvae.data import (
    BlockData,
    Part,
    Preparation,
    PreparedData,
    ServedRows,
    Source,
    Splits,
    TensorRows,
    extent,
)
from pyro_dvae.evaluation import datum_terms
from pyro_dvae.runs.record import DataRecord


def _grey(num_data: int = 3) -> torch.Tensor:
    return torch.zeros(num_data, P, dtype=torch.uint8)


def _trainer() -> Trainer:
    trainer = Trainer(tiny_vae(), RlooELBO(2), tiny_data(6), tiny_data(3), batch_size=3)
    next(iter(trainer.run(1)))
    return trainer


def _splits() -> Splits:
    index = torch.arange(3)
    train = PreparedData(_grey(), Preparation())
    return Splits(train, tiny_data(2), None, index, index, {"train": TensorRows(_grey())}, 0)


def _semi_supervised() -> SemiSupervisedVAE:
    vae = tiny_vae()
    return SemiSupervisedVAE(vae.encoder, vae.decoder, vae.prior, vae.likelihood)


def _run() -> Run:
    data = DataRecord(Config(num_latents=D), "mine", num_train=3)
    return Run(Path("runs/1"), (P,), data, "0.1", 7, 120, tiny_vae())


def _terms() -> Any:
    vae = tiny_vae()
    return RlooELBO(2).terms(vae.model, vae.guide, (tiny_data(3),), {})


# Every kind of object -> (how to build it, what its text must say).
OBJECTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    **{f"prior {name}": (build, ()) for name, build in PRIORS.items()},
    **{
        f"likelihood {name}": (lambda row=row: row.build((P,)), ())
        for name, row in LIKELIHOODS.items()
    },
    **{f"guide {name}": (row[0], ()) for name, row in GUIDES.items()},
    **{f"elbo {name}": (build, ()) for name, build in ELBOS.items()},
    **{
        f"encoder {name}": (
            lambda row=row: row[0]((8, 8), 64, K),
            ("event_shape=(8, 8)", "num_latents=64"),
        )
        for name, row in NETWORKS.items()
    },
    **{
        f"decoder {name}": (
            lambda row=row: row[1]((8, 8), 64, K),
            (f"num_latents=64, num_categories={K}", "(8, 8)"),
        )
        for name, row in NETWORKS.items()
    },
    "uniform prior": (lambda: UniformPrior(D, K), (f"num_latents={D}, num_categories={K}",)),
    "codes": (lambda: make_vae("autoregressive").prior_codes(), ("batch_shape=()", f"({D}, {K})")),
    "mixture codes": (lambda: make_vae("mixture").prior_codes(), ("MixtureCodes", f"({D}, {K})")),
    "MarginalELBO": (MarginalELBO, ("max_codes=65536",)),
    "NVIL": (
        lambda: ReinforceELBO(baseline=MLPBaseline((P,))),
        ("baseline=a network", "MLPBaseline"),
    ),
    "RELAX": (lambda: RelaxELBO(network=MLPControl((P,), D, K)), ("MLPControl", "eta")),
    "model": (
        lambda: tiny_vae(event=(2, 2)),
        ("DiscreteVAE, 120 parameters", "(2, 2)", f"num_latents={D}"),
    ),
    "semi-supervised model": (
        _semi_supervised,
        ("SemiSupervisedVAE, ", f"num_latents={D}"),
    ),
    "Terms": (_terms, ("log_likelihood(2, 3)", "scale=1")),
    "DatumTerms": (lambda: datum_terms(tiny_vae(), tiny_data(3)), ("3 data", "log_marginal")),
    "Evaluation": (
        lambda: evaluate(tiny_vae(), tiny_data(3)),
        ("3 data", "nats per datum", "ELBO"),
    ),
    "Refined": (lambda: refine(tiny_vae(), tiny_data(3)), ("3 data", "encoder", "log p(x)")),
    "RefinedGuide": (lambda: RefinedGuide(tiny_vae(), 2), ("DiscreteVAE", "sweeps=2")),
    "Profile": (
        lambda: profile(make_vae(), tiny_data(3)),
        ("3 rows", "; z2 0.00 nats and"),
    ),
    "Trainer": (
        _trainer,
        (
            "after 1 epochs",
            "RlooELBO(num_particles=2",
            "(3, 4)",
            "batch_size=3",
            "best: epoch 1, validation ELBO -",
        ),
    ),
    "PriorTrainer": (
        lambda: PriorTrainer(make_vae("learned"), tiny_data(3)),
        ("PriorTrainer", "best: none yet"),
    ),
    "GuideTrainer": (lambda: GuideTrainer(make_vae(), tiny_data(3)), ("GuideTrainer", "none yet")),
    "TrainingState": (lambda: _trainer().state_dict(), ("after 1 epochs", "tensors")),
    "Images": (
        lambda: Images("mine", _grey(), _grey(2), torch.zeros(3), torch.zeros(2), "here", None),
        ("Images 'mine'", f"train (3, {P}) uint8", f"test (2, {P}) uint8"),
    ),
    "RepeatedLabels": (
        lambda: RepeatedLabels((torch.zeros(4, 2), torch.tensor([0, -1, -1, -1])), 0.5),
        ("RepeatedLabels: 3 data without a label, 3 with one",),
    ),
    "BinaryImages": (
        lambda: BinaryImages(_grey()),
        ("BinaryImages of 3 data of shape (4,)", "dynamic"),
    ),
    "PreparedData": (
        lambda: PreparedData(_grey(), Preparation(), labels=torch.zeros(3)),
        ("3 data", "with labels"),
    ),
    "BlockData": (
        lambda: BlockData(TensorRows(_grey()), Preparation()),
        ("3 data", "in blocks of"),
    ),
    "ServedRows": (
        lambda: ServedRows(TensorRows(_grey()), Preparation(), 0, extent(TensorRows(_grey()))),
        ("3 rows of shape (4,) uint8",),
    ),
    "Source": (
        lambda: Source("mine", "here", TensorRows(_grey()), None, None),
        ("'mine'", "3 rows", "no test data"),
    ),
    "Part": (
        lambda: Part(tiny_data(3), _grey(), None),
        ("x=(3, 4)", "values=(3, 4) uint8", "labels=none"),
    ),
    "Run": (_run, ("'runs/1': epoch 7, 120 parameters", f"num_latents={D}", "3 train")),
    "Splits": (_splits, ("train: PreparedData of 3 data", "validation: (2, 4)", "test: none")),
}

# Public classes whose text is made by Python or torch, or that are no more than a base.
PLAIN = {
    "CausalNetwork": "a part of priors and guides, shown there",
    "Config": "a dataclass of settings",
    "DiscreteELBO": "the base of the ELBOs",
    "EpochRecord": "a dataclass of numbers",
    "GradientStatistics": "a dataclass of numbers",
    "Guide": "the base of the guides",
    "Likelihood": "the base of the likelihoods",
    "Prediction": "a tuple of tensors",
    "Prior": "the base of the priors",
    "ScoreFunctionELBO": "the base of two ELBOs",
    "SequentialCodes": "the base of codes",
}


@pytest.mark.parametrize("name", OBJECTS)
def test_text_says_what_an_object_is_in_a_few_lines(name: str) -> None:
    build, words = OBJECTS[name]
    thing = build()
    text = repr(thing)
    assert text.startswith(type(thing).__name__)
    assert "tensor(" not in text
    assert " object at 0x" not in text
    assert len(text.splitlines()) <= 30
    for word in words:
        assert word in text


def test_every_public_class_has_a_text() -> None:
    classes = {name for name in pyro_dvae.__all__ if inspect.isclass(getattr(pyro_dvae, name))}
    shown: set[str] = set()
    for build, _ in OBJECTS.values():
        thing = build()
        inside = thing.modules() if isinstance(thing, nn.Module) else [thing]
        shown |= {type(part).__name__ for part in inside}
    assert classes - shown == PLAIN.keys() - {"CausalNetwork"}


def test_texts_read_no_values() -> None:
    with torch.device("meta"):
        vae = make_vae("hierarchical", "mixed", "autoregressive")
        text = repr([vae, *vae.modules(), ReinforceELBO(baseline="running_mean"), RelaxELBO()])
    assert "HierarchicalPrior(num_latents=2, num_categories=3, upper=(2, 2)), 61 parameters" in text


def test_a_module_without_weights_yet_has_a_text() -> None:
    lazy = nn.Sequential(nn.LazyLinear(D * K), nn.Unflatten(-1, (D, K)))
    own = tiny_vae()
    text = repr(DiscreteVAE(lazy, own.decoder, own.prior, own.likelihood))
    assert "(encoder): Sequential(...), 0 parameters and more at the first data" in text
    assert repr(ConvDecoder((8, 8), 2, 3).to("meta"))


def test_records_make_a_frame() -> None:
    trainer = Trainer(tiny_vae(), RlooELBO(2), tiny_data(6), tiny_data(3), batch_size=3)
    frame = pandas.DataFrame(list(trainer.run(2)))
    assert list(frame.columns) == list(EpochRecord.__dataclass_fields__)
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["validation_elbo"].max() < 0
