"""The epochs in which the guide alone is trained, after those of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_dvae import Config, DiscreteVAE, EpochRecord, MarginalELBO, RlooELBO, build_vae, fit
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.training.guide_epochs import GuideEpochs
from pyro_dvae.training.trainer import Trainer

OPTIONS: dict[str, Any] = {"epochs": 30, "batch_size": 20, "learning_rate": 0.02}


def data() -> Tensor:
    """Zeros or ones, of which some are flipped."""
    cluster = (torch.arange(80) % 2).unsqueeze(-1).expand(80, 6).float()
    flips = torch.full((80, 6), 0.1)
    return (cluster + torch.bernoulli(flips, generator=torch.Generator().manual_seed(1))) % 2


def model() -> DiscreteVAE:
    torch.manual_seed(0)
    return build_vae(Config(num_latents=2, num_categories=3, hidden=(8,), prior="learned"), (6,))


def exact(vae: DiscreteVAE, x: Tensor) -> tuple[float, float]:
    """The mean ELBO and the mean log p(x), summed over all codes."""
    codes = enumerate_codes(2, 3)  # (9, 2, 3)
    vae.eval()
    with torch.no_grad():
        log_q = vae.posterior(x).log_prob(codes[:, None]).double()  # (9, N)
        log_p = vae.decode(codes[:, None]).log_prob(x).double()
        log_p = log_p + vae.prior_codes().log_prob(codes)[:, None].double()
    elbo = (log_q.exp() * (log_p - log_q)).sum(0).mean()
    return elbo.item(), log_p.logsumexp(0).mean().item()


def trained(**options: Any) -> tuple[DiscreteVAE, list[EpochRecord]]:
    vae = model()
    return vae, list(fit(vae, MarginalELBO(), data(), 20, **{**OPTIONS, **options}))


def test_the_elbo_rises_to_log_p_which_stays() -> None:
    """Against sums over all codes, of training and validation data together."""
    first, before = trained(guide_epochs=0)
    vae, records = trained(guide_epochs=30)
    number = len(before)
    assert [record.of_guide for record in records] == [False] * number + [True] * 30
    assert [record.epoch for record in records] == [*range(1, number + 31)]
    assert records[-1].seconds > records[number - 1].seconds > 0  # both are counted
    (low, log_p), (high, same) = exact(first, data()), exact(vae, data())
    assert same == pytest.approx(log_p, rel=1e-12)
    assert log_p - high < (log_p - low) / 3
    ours, theirs = vae.state_dict(), first.state_dict()
    moved = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert moved
    assert all(name.startswith("encoder.") for name in moved)


def test_a_fifth_of_the_epochs_by_default_and_none_for_other_objectives() -> None:
    assert [record.of_guide for record in trained(epochs=5)[1]] == [False] * 5 + [True]
    assert not any(
        r.of_guide for r in fit(model(), RlooELBO(2), data(), 20, **{**OPTIONS, "epochs": 3})
    )


def test_worse_epochs_change_nothing_and_end_by_the_patience() -> None:
    """With large steps the validation ELBO falls, so that the best weights stay the model's."""
    vae = model()
    first = Trainer(vae, MarginalELBO(), data()[:60], data()[60:], batch_size=20, learning_rate=0.1)
    list(first.run(8))
    first.optimizer.param_groups[0]["lr"] = 50.0
    guide = GuideEpochs(first)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    records = list(guide.run(8 + 30, patience=3))
    assert [record.epoch for record in records] == [9, 10, 11]
    assert not any(record.is_best for record in records)
    guide.keep_best()
    assert guide.best == first.best
    assert all(torch.equal(vae.state_dict()[name], before[name]) for name in before)


@pytest.mark.filterwarnings("ignore:.*was not registered in the param store")
def test_a_model_whose_guide_cannot_be_trained() -> None:
    vae = model()
    vae.encoder.requires_grad_(False)
    assert not any(r.of_guide for r in fit(vae, MarginalELBO(), data(), None, epochs=2))
    with pytest.raises(ValueError, match=r"Expected an encoder .* whose weights are all frozen"):
        next(fit(vae, MarginalELBO(), data(), None, epochs=2, guide_epochs=1))
    with pytest.raises(ValueError, match="guide_epochs=0 for a model with classes"):
        Config(alpha=1.0, guide_epochs=1)
