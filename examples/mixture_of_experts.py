"""A mixture-of-experts layer that samples one expert per row, trained by five gradients.

There is no VAE and no Pyro program here. `PathwiseELBO.draw` gives any network a draw with the
gradient of straight-through or of ReinMax. They are compared with REINFORCE, with REINFORCE and a
leave-one-out baseline (RLOO), and with the exact expectation over the experts, which all of them
estimate.

The task cannot be solved without the router: the inputs have 4 regions, and each region has a
linear classifier of its own.

    python examples/mixture_of_experts.py --epochs 50 --num-data 5000
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pyro_dvae import ReinMaxELBO, StraightThroughELBO
from pyro_dvae.codes import draw_codes
from pyro_dvae.elbos.pathwise import PathwiseELBO

NUM_INPUTS, NUM_CLASSES, NUM_EXPERTS = 8, 5, 4


class MixtureOfExperts(nn.Module):
    """Class logits f_e(x) of one expert e, drawn from Cat(softmax(router(x)))."""

    def __init__(self, num_experts: int = NUM_EXPERTS) -> None:
        super().__init__()
        self.router = nn.Linear(NUM_INPUTS, num_experts)
        self.experts = nn.Linear(NUM_INPUTS, num_experts * NUM_CLASSES)

    def route(self, x: Tensor) -> Tensor:
        """Return the log-probabilities (B, E) of the experts."""
        return self.router(x).log_softmax(-1)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Return the class logits (B, C) of the chosen experts.

        All experts are run, because straight-through and ReinMax need the derivative of the output
        in all of them. REINFORCE needs only the drawn one.

        Args:
            x: (B, 8) inputs.
            expert: (B, E) the chosen experts, one-hot, or a stand-in for that.
        """
        outputs = self.experts(x).unflatten(-1, (-1, NUM_CLASSES))  # (B, E, C)
        return (expert.unsqueeze(-1) * outputs).sum(-2)

    def expert_losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of every expert, (B, E) nats."""
        outputs = self.experts(x).unflatten(-1, (-1, NUM_CLASSES))
        losses = cross_entropy(
            outputs.flatten(0, 1), y.repeat_interleave(outputs.shape[1]), reduction="none"
        )
        return losses.view(outputs.shape[:2])


Loss = Callable[[MixtureOfExperts, Tensor, Tensor], Tensor]
"""A scalar whose gradient estimates that of E_e[cross-entropy], averaged over the batch."""


def exact(layer: MixtureOfExperts, x: Tensor, y: Tensor) -> Tensor:
    """sum_e pi_e loss_e, which needs no draws."""
    return (layer.route(x).exp() * layer.expert_losses(x, y)).sum(-1).mean()


def pathwise(elbo: PathwiseELBO) -> Loss:
    """The loss at a drawn expert, with a gradient that goes through the draw's stand-in."""

    def loss(layer: MixtureOfExperts, x: Tensor, y: Tensor) -> Tensor:
        _, expert = elbo.draw(layer.route(x))
        return cross_entropy(layer(x, expert), y)

    return loss


def score_function(num_draws: int) -> Loss:
    """(loss - b) grad log pi_e, where b is the mean loss of the other draws, 0 without others."""

    def loss(layer: MixtureOfExperts, x: Tensor, y: Tensor) -> Tensor:
        log_pi = layer.route(x)
        experts = draw_codes(log_pi.expand(num_draws, *log_pi.shape))  # (S, B, E)
        losses = (experts * layer.expert_losses(x, y)).sum(-1)  # (S, B)
        signal = losses.detach()
        if num_draws > 1:
            signal = (signal - signal.mean(0)) * num_draws / (num_draws - 1)
        score = signal * (experts * log_pi).sum(-1)
        return (losses + score - score.detach()).mean()

    return loss


ESTIMATORS: dict[str, Loss] = {
    "exact": exact,
    "reinforce": score_function(1),
    "rloo, 2 draws": score_function(2),
    # At temperature 1, straight-through is exact if the loss is linear in the draw, and ReinMax if
    # it is quadratic.
    "straight-through": pathwise(StraightThroughELBO(temperature=1.0)),
    "reinmax": pathwise(ReinMaxELBO(temperature=1.0)),
}


def task(num_data: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw inputs (N, 8) and classes (N,), and compute the entropy (N,) of the class in nats."""
    rule = torch.Generator().manual_seed(0)  # the same for training and test data
    regions = torch.randn(NUM_INPUTS, NUM_EXPERTS, generator=rule)
    classifiers = 2 * torch.randn(NUM_EXPERTS, NUM_INPUTS, NUM_CLASSES, generator=rule)
    x = torch.randn(num_data, NUM_INPUTS, generator=generator)
    log_p = torch.einsum("np,npc->nc", x, classifiers[(x @ regions).argmax(-1)]).log_softmax(-1)
    y = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
    return x, y, -(log_p.exp() * log_p).sum(-1)


def train(layer: MixtureOfExperts, loss: Loss, x: Tensor, y: Tensor, epochs: int) -> None:
    """Train by Adam on batches of 100."""
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            loss(layer, x[index], y[index]).backward()
            optimizer.step()


class GradientReport(NamedTuple):
    """The draws g of a router's gradient against the exact gradient e.

    Each figure but the last is a pair: its value and its standard error.
    """

    cosine: tuple[float, float]
    """The mean over draws of g.e / |g||e|."""
    slope: tuple[float, float]
    """The mean over draws of g.e / |e|^2; 1 if there is no bias."""
    squared_bias: tuple[float, float]
    """|E g - e|^2 / |e|^2. The estimate is unbiased, so it can be negative."""
    noise: float
    """sqrt(E|g - E g|^2) / |e|."""


def report(
    layer: MixtureOfExperts, loss: Loss, x: Tensor, y: Tensor, num_draws: int
) -> GradientReport:
    """Measure an estimator of the router's gradient on one batch, in double precision."""

    def gradient(of: Loss) -> Tensor:
        grads = torch.autograd.grad(of(layer, x, y), list(layer.router.parameters()))
        return torch.cat([grad.flatten() for grad in grads]).double()

    e = gradient(exact)
    g = torch.stack([gradient(loss) for _ in range(num_draws)])  # (R, P)
    deviation = (g - e) / e.norm()
    total, squares = deviation.sum(0), deviation.square().sum(-1)
    n = num_draws
    squared_bias = (total.square().sum() - squares.sum()) / (n * (n - 1))
    without = (total - deviation).square().sum(-1) - (squares.sum() - squares)  # jackknife
    spread = (without / ((n - 1) * (n - 2))).var(correction=0) * (n - 1)
    return GradientReport(
        _mean(torch.cosine_similarity(g, e, dim=-1)),
        _mean(g @ e / e.square().sum()),
        (squared_bias.item(), spread.sqrt().item()),
        (g.var(0).sum().sqrt() / e.norm()).item(),
    )


def _mean(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


def main() -> None:
    """Train the layer by each gradient; then compare the gradients at one set of weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--num-data", type=int, default=1000)
    parser.add_argument("--num-draws", type=int, default=200, help="gradients per estimator")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    x, y, _ = task(args.num_data, generator)
    test_x, test_y, entropy = task(2000, generator)

    print(
        "Test cross-entropy of a drawn expert, E_e[-log p(y|x, e)], nats per row, and its standard"
    )
    print("error over rows; the entropy of the router in nats; the number of experts in use, which")
    print(f"is exp of the entropy of the mean router, 1 to {NUM_EXPERTS}.")
    value, error = _mean(entropy)
    print(f"{'the true classifiers':20} {value:6.3f} +- {error:.3f}")
    layers = {}
    for name, loss in {"one expert": exact, **ESTIMATORS}.items():
        torch.manual_seed(args.seed)
        layers[name] = layer = MixtureOfExperts(1 if name == "one expert" else NUM_EXPERTS)
        train(layer, loss, x, y, args.epochs)
        with torch.no_grad():
            pi = layer.route(test_x).exp()
            value, error = _mean((pi * layer.expert_losses(test_x, test_y)).sum(-1))
            entropies = [torch.special.entr(p).sum(-1).mean().item() for p in (pi, pi.mean(0))]
        print(
            f"{name:20} {value:6.3f} +- {error:.3f}  router entropy {entropies[0]:.3f}  "
            f"in use {math.exp(entropies[1]):.2f}"
        )

    print(
        "\nThe gradient g of the router on 100 rows against the exact e, at weights that the exact"
    )
    print(f"gradient reached; means over {args.num_draws} draws with standard errors.")
    print(f"{'':17} cosine of g and e    g.e/|e|^2            |E g - e|^2/|e|^2    noise/|e|")
    for name, loss in list(ESTIMATORS.items())[1:]:
        r = report(layers["exact"], loss, x[:100], y[:100], args.num_draws)
        columns = "  ".join(f"{v:8.4f} +- {s:.4f}" for v, s in (r.cosine, r.slope, r.squared_bias))
        print(f"{name:17} {columns}  {r.noise:8.2f}")


if __name__ == "__main__":
    main()
