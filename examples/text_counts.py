"""Topics in text: the words of Python's own docstrings, under three likelihoods of counts.

A document is the docstring of a module, class or function of the standard library. A datum counts
how often each word of the vocabulary occurs in it. The categories of a latent are topics. For each
category, the words are printed that it makes more probable than the mean over the categories does.
The multinomial is given the number of words of a document. Poisson and negative binomial are not,
so their ELBO also includes the probability of that number.

    python examples/text_counts.py --epochs 30 --num-documents 4000
"""

import argparse
import ast
import math
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from pyro_dvae import (
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    Multinomial,
    NegativeBinomial,
    Poisson,
    RlooELBO,
    UniformPrior,
    evaluate,
    fit,
)

D, K, HIDDEN = 3, 8, (128,)
STOP = re.compile(
    "the|and|for|that|this|with|from|are|not|you|can|will|may|has|have|its|all|any|but|was|been|"
    "into|than|then|when|which|who|other|them|they|also|only|must|one|two|use|used|using|return|"
    "returns"
)


def docstrings(folder: Path, num: int) -> Iterator[str]:
    """The first docstrings of at least 60 characters below a folder; nothing is imported."""
    return (text for text, _ in docstrings_and_files(folder, num))


def docstrings_and_files(folder: Path, num: int) -> Iterator[tuple[str, str]]:
    """Those docstrings, each with the name of its file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        if num <= 0:
            return
        if "site-packages" in str(path) or "test" in str(path):
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in nodes:
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text is not None and len(text) >= 60 and num > 0:
                num -= 1
                yield text, path.name


def count_words(documents: list[str], size: int) -> tuple[Tensor, list[str]]:
    """Count the most frequent words in every document.

    Returns:
        (N, V) counts in the N documents that have at least three of these words, and the V words.
    """
    counts, vocabulary = count_all(documents, size)
    return counts[counts.sum(1) >= 3], vocabulary


def count_all(documents: list[str], size: int) -> tuple[Tensor, list[str]]:
    """Counts as those of `count_words`, of all documents."""
    words = [re.findall(r"[a-z]{3,}", text.lower()) for text in documents]
    total = Counter(word for document in words for word in document if not STOP.fullmatch(word))
    vocabulary = [word for word, _ in total.most_common(size)]
    place = {word: i for i, word in enumerate(vocabulary)}
    counts = torch.zeros(len(words), len(vocabulary))
    for row, document in zip(counts, words, strict=True):
        for word in document:
            if word in place:
                row[place[word]] += 1
    return counts, vocabulary


def main() -> None:
    """Train under each likelihood, and print the ELBO, the perplexity and the topics."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-documents", type=int, default=1500)
    parser.add_argument("--vocabulary", type=int, default=500)
    args = parser.parse_args()

    folder = Path(sysconfig.get_paths()["stdlib"])
    documents = list(docstrings(folder, args.num_documents))
    counts, vocabulary = count_words(documents, args.vocabulary)
    counts = counts[torch.randperm(len(counts), generator=torch.Generator().manual_seed(0))]
    num_test = len(counts) // 10
    test, train = counts[:num_test], counts[num_test:]
    length = test.sum(1).mean().item()
    print(f"{len(counts)} documents, {len(vocabulary)} words, {length:.1f} words per document")

    shape = (len(vocabulary),)
    for likelihood in (Multinomial(), Poisson(), NegativeBinomial()):
        torch.manual_seed(0)
        vae = DiscreteVAE(
            MLPEncoder(shape, D, K, HIDDEN),
            MLPDecoder(shape, D, K, HIDDEN, likelihood.num_params),
            UniformPrior(D, K),
            likelihood,
        )
        calibrate = getattr(likelihood, "calibrate", None)
        if calibrate is not None:
            calibrate(train)
        elbo = RlooELBO(num_particles=4)
        # The KL weighs more at first, so that topics are found before the guide commits to a few.
        records = fit(
            vae,
            elbo,
            train,
            None,
            epochs=args.epochs,
            learning_rate=2e-3,
            averaging=0.99,
            annealing=args.epochs // 3,
            initial_beta=4.0,
        )
        for _ in records:
            pass
        score = evaluate(vae, test).elbo
        line = f"{type(likelihood).__name__:17} test ELBO {score:8.2f} nats per document"
        if isinstance(likelihood, Multinomial):
            # The perplexity is that of a sequence of words. The multinomial coefficient, which
            # counts their orders, is left out.
            orders = (torch.lgamma(test.sum(1) + 1) - torch.lgamma(test + 1).sum(1)).mean().item()
            line += f", perplexity {math.exp(-(score - orders) / length):.0f} per word"
            topics = top_words(vae, train, vocabulary)
        print(line)
    print("\n".join(topics))


@torch.no_grad()
def top_words(vae: DiscreteVAE, train: Tensor, vocabulary: list[str], num: int = 6) -> list[str]:
    """For each category of each latent, the words whose log-probability it raises most."""
    code = vae.mode(train)  # (N, D, K)
    lines = []
    for latent in range(D):
        means = []
        for category in range(K):
            varied = code.clone()
            varied[:, latent] = torch.eye(K)[category]
            means.append(vae.decoder(varied).log_softmax(-1).mean(0))
        raised = torch.stack(means) - torch.stack(means).mean(0)
        for category, row in enumerate(raised):
            words = ", ".join(vocabulary[int(i)] for i in row.topk(num).indices)
            used = code[:, latent, category].mean().item()
            lines.append(f"z{latent + 1}={category} ({used:4.0%}): {words}")
    return lines


if __name__ == "__main__":
    main()
