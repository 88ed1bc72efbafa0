"""`Explorer`: what a person asks of a model, as functions of inputs that are checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.evaluation import (
    Inference,
    PosteriorName,
    datum_terms,
    found_posteriors,
    sums_cheaply,
)
from pyro_dvae.explorer.answers import Datum, Figure, Inferred, Step
from pyro_dvae.explorer.inputs import Inputs
from pyro_dvae.explorer.payloads import MOST_SEED, code_of, whole
from pyro_dvae.explorer.views import View, views_of
from pyro_dvae.runs import Run, decode_blocks, draw_samples, is_nominal, model_labels

MOST_SAMPLES = 100
"""The largest number of samples at once."""
IMPORTANCE_SAMPLES = 100
"""Codes drawn for the importance-weighted bound, where all codes cannot be summed over."""


class Explorer(Inputs):
    """A run, and what a person can ask of it. No question changes anything.

    Every argument is checked, so that it may come from a page. A seed is an argument, and no
    process-wide random numbers are used: the same question has the same answer, whoever asks
    besides.

    Args:
        run: the run, as `load_run` gave it.
        data_dir: the folder that its data lie in now, if that is another one.
    """

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        super().__init__(run, data_dir)
        config = run.config
        self.num_latents, self.num_categories = config.num_latents, config.num_categories
        self.is_summed = sums_cheaply(
            run.vae, (self.num_latents, self.num_categories), run.event_shape
        )
        """Whether figures are sums over all codes."""
        names = run.data.label_names
        self.classes = list(names or map(str, range(config.num_classes)))
        """The names of the classes, where the prior is p(z|y); else empty."""
        if not run.vae.takes_labels:
            self.classes = []
        self.class_categories = list(names or map(str, range(self.num_categories)))
        """The names of the first categories of z1, where z1 is the class; else empty."""
        if config.alpha is None:
            self.class_categories = []

    # --- Questions ---

    def decode(self, code: Any, seed: Any = 0) -> tuple[View, View]:
        """The mean of p(x|z) at a code, and a draw from p(x|z).

        Args:
            code: D categories, as a list or as a text.
            seed: of the draw.

        Raises:
            ValueError: it is no code, or no seed.
        """
        z = code_of(code, self.num_latents, self.num_categories)
        s = whole("the seed", seed, 0, MOST_SEED)
        return self._decoded([z])[0], self._decoded([z], means=False, seed=s)[0]

    def infer(self, datum: Datum, label: Any = None, seed: Any = 0) -> Inferred:
        """The code of a datum, q(z_d|x), its reconstruction and the parts of its ELBO.

        Args:
            datum: of `datum`, `drawn` or `row`.
            label: the number or the name of its class, where the prior is p(z|y); None for the
                class that the datum has, or else the first.
            seed: of draws, where codes cannot be summed over.

        Raises:
            ValueError: there is no such class, or the data are outside of what the model takes.
        """
        s = whole("the seed", seed, 0, MOST_SEED)
        vae, x = self.run.vae, datum.x.to(next(self.run.vae.parameters()))
        given = self._given(datum, label)
        labels = None if given is None else self._labels(given)
        q, code = self._posterior(x, None, "encoder")
        exact = self._posterior(x, labels, "exact")[0] if self.is_summed else None
        draws = None if self.is_summed else IMPORTANCE_SAMPLES
        terms = datum_terms(vae, x, labels, importance_samples=draws, seed=s)
        bounds = {
            "ELBO": (terms.elbo, "elbo"),
            "E_q[log p(x|z)]": (terms.log_likelihood, "log_likelihood"),
            "E_q[log p(z)]": (terms.log_prior, "log_prior"),
            "entropy of q(z|x)": (terms.entropy, "entropy"),
            "importance-weighted bound": (terms.importance_bound, "importance_bound"),
            "log p(x)": (terms.log_marginal, "log_marginal"),
        }
        figures = [
            Figure(name, float(value), _error(terms.variances.get(key)))
            for name, (value, key) in bounds.items()
            if value is not None
        ]
        taken, mean = views_of(self.run, datum.x)[0], self._decoded([code])[0]
        name = None if given is None else self.classes[given]
        return Inferred(code, q, exact, taken, mean, figures, name)

    def walk(self, start: Any, end: Any) -> list[Step]:
        """From one code to another, one latent at a time.

        Args:
            start: D categories, as a list or as a text.
            end: the same.

        Returns:
            The start, and a step per latent in which the two differ, from the first one on.

        Raises:
            ValueError: one is no code.
        """
        code = code_of(start, self.num_latents, self.num_categories)
        goal = code_of(end, self.num_latents, self.num_categories)
        codes, changed = [list(code)], [d for d, k in enumerate(goal) if code[d] != k]
        for d in changed:
            codes.append([*goal[: d + 1], *code[d + 1 :]])
        views = self._decoded(codes)
        return [Step(*step) for step in zip(codes, [None, *changed], views, strict=True)]

    def sample(
        self, num: Any = 16, label: Any = None, seed: Any = 0, means: Any = True
    ) -> list[tuple[View, str]]:
        """Data of codes that are drawn from the prior, each with the name of its class.

        Args:
            num: how many, at most `MOST_SAMPLES`.
            label: the number or the name of the one class, where the prior is p(z|y); None for
                all classes.
            seed: of the draws.
            means: the means of p(x|z); else draws from it.

        Raises:
            ValueError: an argument is none of these.
        """
        n = whole("the number of samples", num, 1, MOST_SAMPLES)
        s = whole("the seed", seed, 0, MOST_SEED)
        one = None if label is None else self._class(label)
        x, labels = draw_samples(self.run, n, means=bool(means), label=one, seed=s)
        names = [""] * n if labels is None else [self.classes[i] for i in labels.tolist()]
        return list(zip(views_of(self.run, x), names, strict=True))

    # --- Parts of answers ---

    def _class(self, label: Any) -> int:
        if not self.classes:
            raise ValueError(
                "Expected no label for a prior that knows none; got one. Leave it out."
            )
        if isinstance(label, str):
            label = self.classes.index(label) if label in self.classes else -1
        return whole("the class", label, 0, len(self.classes) - 1)

    def _given(self, datum: Datum, label: Any) -> int | None:
        """The class that p(z) is conditional on; None if it is on none."""
        if not self.classes and label is None:
            return None
        known = 0 if datum.label is None else datum.label
        return self._class(known if label is None else label)

    def _labels(self, number: int) -> Tensor | None:
        """(1,) the label of a class, as the prior takes it."""
        labels = model_labels(self.run.config, torch.tensor([number]), "the datum")
        return None if labels is None else labels.to(next(self.run.vae.parameters()).device)

    def _posterior(
        self, x: Tensor, labels: Tensor | None, name: PosteriorName
    ) -> tuple[Tensor, list[int]]:
        """(D, K) probabilities of each latent alone, and the most probable code."""
        found = next(iter(found_posteriors(self.run.vae, x, labels, Inference(name))))
        return found.marginals().double().softmax(-1)[0].cpu(), found.mode()[0].tolist()

    def _decoded(self, codes: list[list[int]], *, means: bool = True, seed: int = 0) -> list[View]:
        how: dict[str, Any] = {"means": means, "seed": seed, "typical": is_nominal(self.run)}
        blocks = decode_blocks(self.run.vae, torch.tensor(codes), self.num_categories, **how)
        return views_of(self.run, torch.cat(list(blocks)))


def _error(variance: Tensor | None) -> float:
    return 0.0 if variance is None else math.sqrt(float(variance))
