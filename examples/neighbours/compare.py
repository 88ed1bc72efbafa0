"""Train the discrete VAE and its neighbours in one setting, and print one table.

Defaults take seconds and show no more than that it runs; the README's table is

    python examples/neighbours/compare.py --epochs 30 --num-data 5000 --num-test 1000
"""

import discrete_vae
import gaussian_vae
import sparse_autoencoder
import vq_vae
from setting import arguments, load, table


def main() -> None:
    """Train all, and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--num-latents", type=int, default=4)
    parser.add_argument("--num-categories", type=int, default=8)
    parser.add_argument("--num-dims", type=int, default=8, help="of the Gaussian code")
    parser.add_argument("--num-units", type=int, default=32, help="of the sparse code")
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
