"""A folder of images of your own, which have two sizes and need the option --size.

This draws coloured discs and squares into `pictures/disc` and `pictures/square`. Some have 24 x 24
and some 20 x 30 pixels. `pdvae fit` refuses them at first, since nothing is resized unless you ask
for it.

    python examples/own_images.py
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def draw_pictures(folder: Path, num: int, seed: int = 0) -> None:
    """Draw the pictures, with one folder per class."""
    source = np.random.default_rng(seed)
    for number in range(num):
        kind = ("disc", "square")[number % 2]
        width, height = (24, 24) if source.random() < 0.7 else (30, 20)
        colour = tuple(int(value) for value in source.choice([40, 230], 3))
        image = Image.new("RGB", (width, height), (128, 128, 128))
        pen = ImageDraw.Draw(image)
        radius = source.integers(5, 9)
        x, y = width / 2 + source.integers(-2, 3), height / 2 + source.integers(-2, 3)
        shape = pen.ellipse if kind == "disc" else pen.rectangle
        shape((x - radius, y - radius, x + radius, y + radius), fill=colour)
        (folder / kind).mkdir(parents=True, exist_ok=True)
        image.save(folder / kind / f"{number:04}.png")


def pdvae(*arguments: str) -> int:
    """Print a command and run it; return its exit status."""
    print(f"\n$ pdvae {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "pdvae_cli.main", *arguments]).returncode


def main() -> None:
    """Draw the images, see them refused, ask for a size, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, help="the size of the data decides if left out")
    args = parser.parse_args()
    draw_pictures(Path("pictures"), args.num_images)

    if pdvae("fit", "run-pictures", "--data", "pictures") != 2:
        sys.exit("the images of two sizes were not refused")
    size = ["--size", "24x24"]
    pdvae("data", "pictures", *size)
    epochs = [] if args.epochs is None else ["--epochs", str(args.epochs)]
    if pdvae("fit", "run-pictures", "--data", "pictures", *size, *epochs) != 0:
        sys.exit("the training failed")
    print("\nrun-pictures/reconstructions.png and samples.png show what the model has learnt")


if __name__ == "__main__":
    main()
