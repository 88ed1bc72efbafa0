"""DisARM's setting: 200 binary latents on dynamically binarised MNIST.

The anchors are bounds on log p(x) by 100 draws of z after 1e6 steps (833 epochs of batches of 50):
-101.6 by DisARM (Dong, Mnih & Tucker 2020), -99.08 by ARMS (Dimitriev & Zhou 2021), -98.72 by RODEO
(Titsias & Shi 2022), and -92.97 by CARMS with 20 latents of 10 categories (Dimitriev & Zhou 2021).
They are second-hand: tables of those papers, not logs. The networks have two hidden layers of 200
units, LeakyReLU(0.3). The encoder sees the images minus the mean training image.

Ours has the same networks and data, batches of 50, and K = 2 one-hot categories per binary latent.
The figures are the ELBO and the importance-weighted bound of the 10,000 test images, drawn as bits
once.

    python examples/published/disarm_bound.py --data mnist --data-dir DIR --epochs 40
"""

import torch
from anchor import Centred, networks, options, table, train

from pyro_dvae import Bernoulli, BinaryImages, DiscreteVAE, LearnedPrior, evaluate, load_images


def main() -> None:
    """Train with each seed, and print the mean and its standard error."""
    parser = options(__doc__, estimator="reinmax", particles=1)
    parser.add_argument("--draws", type=int, default=100, help="draws of the bound per image")
    args = parser.parse_args()
    images = load_images(args.data, args.data_dir)
    grey = images.train[: args.num_data]
    test = BinaryImages(images.test[: args.num_test]).fixed(seed=0)
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        torch.manual_seed(seed)
        encoder, decoder = networks((200, 200), num_latents=200, num_categories=2, slope=0.3)
        encoder = Centred(encoder, grey.float().mean(0) / 255)
        vae = DiscreteVAE(encoder, decoder, LearnedPrior(200, 2), Bernoulli())
        figure = lambda vae=vae: evaluate(vae, test, num_samples=4).elbo  # noqa: E731
        runs.append(train(vae, BinaryImages(grey), figure, args, seed=seed, batch_size=50))
        bound = evaluate(vae, test, importance_samples=args.draws)
        value, error = bound.importance_bound, bound.standard_errors["importance_bound"]
        print(f"seed {seed}: bound by {args.draws} draws {value:.2f} ± {error:.2f}", flush=True)
    print(table(runs))


if __name__ == "__main__":
    main()
