"""The setting of ARSM's public log: 20 latents of 10 categories on MNIST, cut at one half.

The anchor is the log `vae/ARSM.out` of github.com/ARM-gradient/ARSM (Yin, Yue & Zhou 2019): layers
784-512-256 with LeakyReLU(0.2), 20 one-hot latents of 10 categories, a uniform prior, batches of
200, pixels that are 1 above 0.5. Its validation figure, the negative ELBO by one draw of z per
image, is 104.2 after 50 epochs, 99.7 after 100 and 94.6 after 200.

Ours has the same networks, data and batches, and anneals nothing unless `--annealing` says so. The
figure is the ELBO of the 10,000 test images, by 16 draws of z per image, in nats.

    python examples/published/arsm_log.py --data mnist --data-dir DIR --epochs 50 --bfloat16
"""

import torch
from anchor import as_bits, networks, options, table, train

from pyro_dvae import Bernoulli, DiscreteVAE, UniformPrior, evaluate, load_images


def main() -> None:
    """Train with each seed, and print the mean and its standard error."""
    args = options(__doc__, estimator="reinmax", particles=1).parse_args()
    images = load_images(args.data, args.data_dir)
    data, test = as_bits(images.train[: args.num_data]), as_bits(images.test[: args.num_test])
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        torch.manual_seed(seed)
        parts = networks((512, 256), num_latents=20, num_categories=10, slope=0.2)
        vae = DiscreteVAE(*parts, UniformPrior(20, 10), Bernoulli())
        figure = lambda vae=vae: evaluate(vae, test).elbo  # noqa: E731
        runs.append(train(vae, data, figure, args, seed=seed, batch_size=200))
    print(table(runs))


if __name__ == "__main__":
    main()
