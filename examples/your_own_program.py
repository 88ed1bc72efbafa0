"""A Pyro program that knows nothing of this library, trained by Pyro's ELBOs and by this library's.

The model is a mixture of topics for documents of word counts, with a neural guide. Only one line
differs between the runs, the `loss` of `SVI`.

    python examples/your_own_program.py --steps 2000
"""

import argparse

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, SVI, Trace_ELBO, TraceGraph_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor, nn

from pyro_dvae import EnumeratedELBO, LocalExpectationELBO, RlooELBO

NUM_TOPICS, NUM_WORDS, NUM_DOCUMENTS, LENGTH = 10, 50, 500, 30


def documents() -> Tensor:
    """Draw word counts (N, W), for which each document has one of ten hidden topics."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(NUM_TOPICS, NUM_WORDS, generator=generator).mul(1.5).softmax(-1)
    topic = torch.randint(NUM_TOPICS, (NUM_DOCUMENTS,), generator=generator)
    words = torch.multinomial(topics[topic], LENGTH, replacement=True, generator=generator)
    return torch.zeros(NUM_DOCUMENTS, NUM_WORDS).scatter_add(1, words, torch.ones(words.shape))


def model(counts: Tensor) -> None:
    """p(topic) p(counts | topic)."""
    weights = pyro.param("weights", lambda: torch.zeros(NUM_TOPICS))
    words = pyro.param("words", lambda: 0.1 * torch.randn(NUM_TOPICS, NUM_WORDS))
    with pyro.plate("documents", len(counts)):
        topic = pyro.sample("topic", dist.OneHotCategorical(logits=weights))
        # A factor, since the lengths differ and Pyro's Multinomial wants one total count for all.
        log_word = (topic @ words).log_softmax(-1)
        pyro.factor("counts", (counts * log_word).sum(-1))


class Guide(nn.Module):
    """q(topic | counts), a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(NUM_WORDS, 32), nn.ReLU(), nn.Linear(32, NUM_TOPICS))

    def forward(self, counts: Tensor) -> None:
        """Draw the topic of each document."""
        layers = pyro.module("layers", self.layers)
        with pyro.plate("documents", len(counts)):
            pyro.sample("topic", dist.OneHotCategorical(logits=layers(counts)))


def main() -> None:
    """Train the same program with each loss, and print the exact ELBO that each reaches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    losses: dict[str, ELBO] = {
        "Pyro's Trace_ELBO": Trace_ELBO(),
        "Pyro's TraceGraph_ELBO": TraceGraph_ELBO(),
        "RlooELBO(4)": RlooELBO(num_particles=4),
        "LocalExpectationELBO": LocalExpectationELBO(),
        "EnumeratedELBO": EnumeratedELBO(),
    }
    counts = documents()
    print("exact ELBO, nats per document")
    for name, loss in losses.items():
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        guide = Guide()
        svi = SVI(model, guide, Adam({"lr": 0.01}), loss=loss)
        for _ in range(args.steps):
            svi.step(counts)
        exact = -EnumeratedELBO().loss(model, guide, counts) / len(counts)
        print(f"{name:24} {exact:8.2f}")


if __name__ == "__main__":
    main()
