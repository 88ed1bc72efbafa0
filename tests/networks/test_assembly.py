"""Parts that do not fit one another are refused by name, before a number is given."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zoo import GUIDES, LIKELIHOODS, PRIORS, D, K, P, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import (
    AutoregressiveGuide,
    Bernoulli,
    DiscreteVAE,
    EnumeratedELBO,
    MLPDecoder,
    MLPEncoder,
    Normal,
    RlooELBO,
    Trainer,
    UniformPrior,
    datum_scores,
    evaluate,
    log_marginal,
)


def _vae(**parts: Any) -> Any:
    own = {
        "encoder": MLPEncoder((P,), D, K, (5,)),
        "decoder": MLPDecoder((P,), D, K, (5,)),
        "prior": UniformPrior(D, K),
        "likelihood": Bernoulli(),
    }
    return DiscreteVAE(**own | parts)


def _decoder(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Linear(D * K, P))


class _Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(P)


class _Mixing(nn.Module):
    """Parameters of a code that depend on the codes beside it, in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D * K, P)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x = self.linear(z.flatten(-2))
        return x - x.mean(1, keepdim=True) if x.dim() > 2 else x


# Name -> (model of data (P,), what the message must say). What needs no guide fits `log_marginal`.
MISFITS: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "decoder that flattens from dimension 1": (
        lambda: _vae(decoder=_decoder(nn.Flatten())),
        r"decoder Sequential to map codes .*\(2, 3, 2, 3\), .* to \(2, 3, 4\).* nn\.Flatten\(-2\)",
        False,
    ),
    "decoder that mixes codes": (
        lambda: _vae(decoder=_Mixing()),
        r"_Mixing to give each code what it gives it alone; got other .*\. Do not mix the codes",
        False,
    ),
    "decoder that draws": (
        lambda: _vae(decoder=nn.Sequential(nn.Flatten(-2), _Noisy(D * K, P))),
        "Sequential to give one result for the same codes in evaluation mode; got two",
        False,
    ),
    "decoder of another event": (
        lambda: _vae(decoder=MLPDecoder((P + 1,), D, K)),
        r"MLPDecoder to map codes \(2, 2, 3\), .* to \(2, 4\).*; got \(2, 5\)\. .*event_shape=\(4,",
        False,
    ),
    "decoder of fewer parameters": (
        lambda: _vae(likelihood=Normal((P,))),
        r"MLPDecoder to map .* to \(2, 4, 2\), .*num_params\); got \(2, 4\)\. .*Normal: .*params=2",
        False,
    ),
    "prior of another D": (
        lambda: _vae(prior=UniformPrior(4, K)),
        r"\(D, K\) .*got \(4, 3\) from the prior UniformPrior and \(2, 3\) from the encoder MLPEn",
        True,
    ),
    "prior of another K": (
        lambda: _vae(prior=UniformPrior(D, 5)),
        r"\(D, K\) .*got \(2, 5\) from the prior UniformPrior and \(2, 3\) from the encoder MLPEn",
        True,
    ),
    "prior and encoder of another D": (
        lambda: _vae(prior=UniformPrior(4, K), encoder=MLPEncoder((P,), 4, K)),
        r"decoder MLPDecoder to map codes \(2, 4, 3\), .*num_latents=4, num_categories=3",
        False,
    ),
    "guide that wants more of the encoder": (
        lambda: _vae(guide=AutoregressiveGuide(D, K, 5)),
        r"encoder MLPEncoder to map data .* to \(2, 2, 8\), .*; got \(2, 2, 3\).* Autoregressive",
        True,
    ),
    "guide of another D": (
        lambda: _vae(encoder=MLPEncoder((P,), D, K + 5), guide=AutoregressiveGuide(3, K, 5)),
        r"got \(2, 3\) from the prior UniformPrior and \(3, 3\) from .* guide AutoregressiveGuide",
        True,
    ),
    "guide that breaks": (
        lambda: _vae(guide=nn.Linear(7, 7)),
        r"guide Linear to take what the encoder MLPEncoder says of data, \(2, 2, 3\); got Runtime",
        True,
    ),
    "encoder that mixes rows": (
        lambda: _vae(
            encoder=nn.Sequential(
                nn.BatchNorm1d(P, track_running_stats=False),
                nn.Linear(P, D * K),
                nn.Unflatten(1, (D, K)),
            )
        ),
        r"encoder Sequential to (treat each row by itself|map data \(1, 4\))",
        True,
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused_in_one_line(name: str) -> None:
    build, words, needs_guide = MISFITS[name]
    uses: list[Callable[..., Any]] = [
        evaluate,
        datum_scores,
        lambda vae, x: Trainer(vae, RlooELBO(2), x),
        *([] if needs_guide else [log_marginal]),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=f"^Expected .*{words}") as caught:
            use(build(), tiny_data(9))
        assert "\n" not in str(caught.value)


def test_sums_over_codes_refuse_a_decoder_that_flattens_too() -> None:
    vae = _vae(decoder=_decoder(nn.Flatten()))
    with pytest.raises(ValueError, match=r"^Expected the decoder .*nn\.Flatten\(-2\) in place"):
        EnumeratedELBO().loss(vae.model, vae.guide, tiny_data(9))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("guide", GUIDES)
def test_parts_that_fit_are_tried_once_and_left_alone(prior: str, guide: str) -> None:
    vae = make_vae(prior, "mixed", guide)
    batch = make_batch(vae, "mixed")
    vae.decoder.train(False)
    calls: list[str] = []
    for part in ("encoder", "decoder"):
        getattr(vae, part).register_forward_hook(lambda *_, part=part: calls.append(part))
    stream, weights = torch.get_rng_state(), copy.deepcopy(vae.state_dict())
    evaluate(vae, *batch)
    first = len(calls)
    evaluate(vae, *batch)
    log_marginal(vae, *batch)
    assert len(calls) - first < first
    assert torch.equal(torch.get_rng_state(), stream)
    assert not vae.decoder.training
    assert vae.encoder.training
    assert all(weight.grad is None for weight in vae.parameters())
    for key, value in vae.state_dict().items():
        assert torch.equal(value, weights[key])
    log_marginal(pickle.loads(pickle.dumps(_without_hooks(vae))), *batch)


def _without_hooks(vae: Any) -> Any:
    for module in vae.modules():
        module._forward_hooks.clear()
    return vae


def test_what_was_exchanged_is_tried_anew() -> None:
    vae, x = _vae(decoder=_decoder(nn.Flatten(-2))), tiny_data(3)
    evaluate(vae, x)
    again = copy.deepcopy(vae)
    vae.decoder[0] = nn.Flatten()
    for use in (evaluate, log_marginal):
        with pytest.raises(ValueError, match=r"nn\.Flatten\(-2\)"):
            use(vae, x)
    evaluate(again, x)


def test_statistics_of_batches_and_weights_to_come_are_left_alone() -> None:
    layers = (nn.BatchNorm1d(P), nn.Linear(P, D * K), nn.Dropout(0.5), nn.Unflatten(1, (D, K)))
    vae, x = _vae(encoder=nn.Sequential(*layers)), tiny_data(5)
    evaluate(vae, x)
    assert layers[0].num_batches_tracked == 0
    lazy = _vae(decoder=nn.Sequential(nn.Flatten(-2), nn.LazyLinear(P)))
    torch.manual_seed(3)
    log_marginal(lazy, x)
    torch.manual_seed(3)
    assert torch.equal(lazy.decoder[1].weight, nn.Linear(D * K, P).weight)
    lazy.decoder[0] = nn.Flatten()
    with pytest.raises(ValueError, match=r"nn\.Flatten\(-2\)"):
        log_marginal(lazy, x)


def test_methods_of_ones_own_are_asked_for_what_they_give() -> None:
    class Shifted(DiscreteVAE):
        def decode(self, z: torch.Tensor) -> Any:
            return self.likelihood(self.decoder(z)[..., :P], 1)

    own = tiny_vae()
    parts = (own.encoder, MLPDecoder((2 * P,), D, K), own.prior, own.likelihood)
    x = tiny_data(3)
    assert log_marginal(Shifted(*parts), x).isfinite().all()
    with pytest.raises(ValueError, match=r"event shape \(3,\); got \(2, 3\) and \(4,\)"):
        log_marginal(Shifted(*parts), x[:, 1:])


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_passes_the_trial(likelihood: str) -> None:
    vae = make_vae(likelihood=likelihood)
    assert log_marginal(vae, *make_batch(vae, likelihood)).isfinite().all()
