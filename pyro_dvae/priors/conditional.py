"""A prior given a label."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.codes import one_hot
from pyro_dvae.displays import named
from pyro_dvae.priors.base import Prior
from pyro_dvae.sequences import CausalCodes, CausalNetwork


class ConditionalPrior(Prior):
    """p(z|y) = prod_d Cat(z_d; softmax(V_d h_d + v_d)), h_d = relu(b_d + A_d y + B_d [z_1 ...]).

    There is one autoregressive prior per label y, and all of them share one network. With it,
    `DiscreteVAE.sample` draws data of a given label (the conditional prior of Sohn et al. 2015,
    "Learning structured output representation"). The decoder does not see y, so everything that
    depends on the label has to be in the code. The ELBO is a bound on log p(x|y). The prior is
    uniform until it is trained.

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.
        num_classes: the number of labels, at least 2. Labels are 0 to num_classes - 1.
        width: the size of the hidden layer of each latent's network.

    Raises:
        ValueError: D < 1, K < 2, num_classes < 2 or width < 1.
    """

    sequential = True
    takes = "labels"

    def __init__(
        self, num_latents: int, num_categories: int, num_classes: int, width: int = 64
    ) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        if num_classes < 2:
            raise ValueError(
                "Expected labels of at least 2 classes for the conditional prior; got "
                f"{num_classes}. Use data with labels, or another prior."
            )
        at_least("width of the prior", width, 1)
        self.num_classes = num_classes
        self.network = CausalNetwork(
            num_latents, num_categories, width, num_features=num_classes, uniform=True
        )

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return f"{self.network.extra_repr()}, {named(num_classes=self.num_classes)}"

    def check_labels(self, labels: Tensor) -> None:
        """Raise a ValueError unless the labels are whole numbers from 0 to num_classes - 1.

        `forward` does not check this, because it would have to wait for a GPU.
        """
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(
                f"Expected labels as integers; got {labels.dtype}. Pass labels.long()."
            )
        low, high = (int(end) for end in labels.aminmax()) if labels.numel() else (0, 0)
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"Expected labels from 0 to {self.num_classes - 1}; got {low} to {high}. Renumber "
                "them from 0, or build the prior with more classes."
            )

    def forward(self, labels: Tensor) -> CausalCodes:
        """Return the distribution over codes given each label: batch shape (B,), event (D, K).

        Args:
            labels: (B,) int64.
        """
        label = one_hot(labels, self.num_classes, dtype=self.network.bias.dtype)
        features = label.unsqueeze(-2).expand(*labels.shape, self.network.num_latents, -1)
        return CausalCodes(self.network, features)
