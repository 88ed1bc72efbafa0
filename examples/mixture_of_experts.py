"""A mixture-of-experts layer that samples one expert a row, by five gradients for its router.

No VAE and no Pyro program: `PathwiseELBO.draw` is straight-through's or ReinMax's draw for any
network. Beside them REINFORCE, its leave-one-out baseline (RLOO), and the exact expectation over
the experts, which is what all of them estimate.

The task needs the router: 4 regions of the inputs, each with a linear classifier of its own.

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
    """Logits of the classes from one expert f_e(x), e ~ Cat(softmax(router(x)))."""

    def __init__(self, num_experts: int = NUM_EXPERTS) -> None:
        super().__init__()
        self.router = nn.Linear(NUM_INPUTS, num_experts)
        self.experts = nn.Linear(NUM_INPUTS, num_experts * NUM_CLASSES)

    def route(self, x: Tensor) -> Tensor:
        """Log-probabilities of the experts, (B, E)."""
        return self.router(x).log_softmax(-1)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Class logits (B, C) of the experts chosen, (B, E) one-hot or a stand-in for it.

        All experts are run: df/d(expert), which straight-through and ReinMax take back to the
        router, is of all of them. REINFORCE could do with the one drawn.
        """
        outputs = self.experts(x).unflatten(-1, (-1, NUM_CLASSES))  # (B, E, C)
        return (expert.unsqueeze(-1) * outputs).sum(-2)

    def expert_losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of every expert, (B, E) nats."""
        outputs = self.experts(x).unflatten(-1, (-1, NUM_CLASSES))
        losses = cross_entropy(
            outputs.flatten(0, 1), y.repeat_interleave(outputs.shape[1]), reduction="none"
        )
        return losses.view(outputs.shape[:2])


Loss = Callable[[MixtureOfExperts, Tensor, Tensor], Tensor]
"""A scalar whose gradient estimates that of E_e[cross-entropy], the mean over the batch."""


def exact(layer: MixtureOfExperts, x: Tensor, y: Tensor) -> Tensor:
    """sum_e pi_e loss_e, no draws."""
    return (layer.route(x).exp() * layer.expert_losses(x, y)).sum(-1).mean()


def pathwise(elbo: PathwiseELBO) -> Loss:
    """The loss at the draw, whose gradient goes through the draw's stand-in."""

    def loss(layer: MixtureOfExperts, x: Tensor, y: Tensor) -> Tensor:
        _, expert = elbo.draw(layer.route(x))
        return cross_entropy(layer(x, expert), y)

    return loss


def score_function(num_draws: int) -> Loss:
    """(loss - b) grad log pi_e, b the mean loss of the other draws, or 0 where there is one."""

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
    # At temperature 1 they are exact for losses linear and quadratic in the draw.
    "straight-through": pathwise(StraightThroughELBO(temperature=1.0)),
    "reinmax": pathwise(ReinMaxELBO(temperature=1.0)),
}


def task(num_data: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (N, 8), classes (N,), and the entropy of the class given the input, (N,) nats."""
    rule = torch.Generator().manual_seed(0)  # the same for training and test data
    regions = torch.randn(NUM_INPUTS, NUM_EXPERTS, generator=rule)
    classifiers = 2 * torch.randn(NUM_EXPERTS, NUM_INPUTS, NUM_CLASSES, generator=rule)
    x = torch.randn(num_data, NUM_INPUTS, generator=generator)
    log_p = torch.einsum("np,npc->nc", x, classifiers[(x @ regions).argmax(-1)]).log_softmax(-1)
    y = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
    return x, y, -(log_p.exp() * log_p).sum(-1)


def train(layer: MixtureOfExperts, loss: Loss, x: Tensor, y: Tensor, epochs: int) -> None:
    """Adam on batches of 100."""
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            loss(layer, x[index], y[index]).backward()
            optimizer.step()


class GradientReport(NamedTuple):
    """A router's gradient g over draws against the exact one e; (value, standard error) each."""

    cosine: tuple[float, float]
    """Mean over draws of g.e / |g||e|."""
    slope: tuple[float, float]
    """Mean of g.e / |e|^2, 1 without bias."""
    squared_bias: tuple[float, float]
    """|E g - e|^2 / |e|^2, estimated without bias and so negative at times."""
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
    parser.add_argument("--num-draws", type=int, default=200, help="gradients an estimator")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    x, y, _ = task(args.num_data, generator)
    test_x, test_y, entropy = task(2000, generator)

    print(
        "Test cross-entropy of a drawn expert, E_e[-log p(y|x, e)], nats a row, with its standard"
    )
    print("error over rows; entropy of the router, nats; experts in use, exp of the entropy of the")
    print(f"mean router, 1 to {NUM_EXPERTS}.")
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
        "\nThe router's gradient g on 100 rows against the exact e, at the weights that the exact"
    )
    print(f"gradient reached; over {args.num_draws} draws, with standard errors.")
    print(f"{'':17} cosine of g and e    g.e/|e|^2            |E g - e|^2/|e|^2    noise/|e|")
    for name, loss in list(ESTIMATORS.items())[1:]:
        r = report(layers["exact"], loss, x[:100], y[:100], args.num_draws)
        columns = "  ".join(f"{v:8.4f} +- {s:.4f}" for v, s in (r.cosine, r.slope, r.squared_bias))
        print(f"{name:17} {columns}  {r.noise:8.2f}")


if __name__ == "__main__":
    main()
