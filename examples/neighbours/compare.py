"""Train the discrete VAE and its neighbours in one setting, and print one table.

The defaults take seconds and only show that it runs. The table in README.md is made by

    python examples/neighbours/compare.py --epochs 30 --num-data 5000 --num-test 1000
"""

import discrete_vae
import gaussian_vae
import sparse_autoencoder
import vq_vae
from setting import arguments, load, table


def main() -> None:
    """Train all models, and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--num-latents", type=int, default=4)
    parser.add_argument("--num-categories", type=int, default=8)
    parser.add_argument("--num-dims", type=int, default=8, help="dimensions of the Gaussian code")
    parser.add_argument("--num-units", type=int, default=32, help="units of the sparse code")
    args = parser.parse_args()
    setting = load(args)
    code = (args.num_latents, args.num_categories)
    scores = [
        *discrete_vae.run(setting, *code),
        *vq_vae.run(setting, *code),
        *gaussian_vae.run(setting, args.num_dims),
        *sparse_autoencoder.run(setting, args.num_units, args.num_latents),
    ]
    print(table(scores, setting))


if __name__ == "__main__":
    main()
