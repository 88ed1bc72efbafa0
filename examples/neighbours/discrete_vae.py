"""The discrete VAE in the setting of its neighbours: two guides, and a prior fitted afterwards.

The gradient is that of leave-one-out REINFORCE with 4 draws. So a step decodes 4 codes per data
point, where the other models decode 1.

    python examples/neighbours/discrete_vae.py --num-latents 4 --num-categories 8
"""

import torch
from setting import (
    EVENT,
    Scores,
    Setting,
    arguments,
    load,
    score_discrete,
    table,
    train,
    train_prior,
)

from pyro_dvae import Bernoulli, DiscreteVAE, MLPDecoder, MLPEncoder, RlooELBO, UniformPrior
from pyro_dvae.guides import AutoregressiveGuide
from pyro_dvae.priors import AutoregressivePrior


def run(setting: Setting, num_latents: int = 4, num_categories: int = 8) -> list[Scores]:
    """Train by leave-one-out REINFORCE; score under the uniform prior, then under a fitted one."""
    code = (num_latents, num_categories)
    elbo = RlooELBO(num_particles=4, max_plate_nesting=1)
    scores = []
    for name, guide in (("mean-field", None), ("autoregressive", AutoregressiveGuide(*code))):
        torch.manual_seed(setting.seed)
        encoder = MLPEncoder(EVENT, num_latents, guide.num_outputs if guide else num_categories)
        networks = encoder, MLPDecoder(EVENT, *code)
        vae = DiscreteVAE(*networks, UniformPrior(*code), Bernoulli(), guide)

        def loss(x: torch.Tensor, vae: DiscreteVAE = vae) -> torch.Tensor:
            return elbo.differentiable_loss(vae.model, vae.guide, x) / len(x)

        train(vae.parameters(), loss, setting)
        scores.append(score_discrete(f"discrete VAE, {name} guide", vae, setting))
        fitted = DiscreteVAE(*networks, AutoregressivePrior(*code), Bernoulli(), guide)
        train_prior(fitted, setting)
        scores.append(score_discrete(f"discrete VAE, {name} guide, prior fitted", fitted, setting))
    return scores


def main() -> None:
    """Train the models, and print their scores."""
    parser = arguments(__doc__)
    parser.add_argument("--num-latents", type=int, default=4)
    parser.add_argument("--num-categories", type=int, default=8)
    args = parser.parse_args()
    setting = load(args)
    print(table(run(setting, args.num_latents, args.num_categories), setting))


if __name__ == "__main__":
    main()
