"""Data larger than memory: `pdvae fit` on an array of 4 GB, and the peak of its memory.

This writes an array of images into a temporary folder and trains on it for one epoch, in a process
of its own. Then it prints the peak resident memory of that process, mapped pages included. With
4 GB it takes some minutes, and as much room on the disk.

Example: python examples/benchmarks/larger_than_memory.py --gigabytes 4
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHAPE = (28, 28)


def write_images(path: Path, gigabytes: float, seed: int = 0) -> int:
    """Write noisy copies of ten images, (N, 28, 28) uint8 in so many gigabytes; return N."""
    source = np.random.default_rng(seed)
    originals = source.integers(0, 2, (10, *SHAPE), np.uint8) * 200
    num = max(100, int(gigabytes * 1e9) // originals[0].size)
    header = {"descr": "|u1", "fortran_order": False, "shape": (num, *SHAPE)}
    with path.open("wb") as file:  # not mapped, since the child would inherit this process's peak
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, num, 10_000):
            classes = source.integers(0, 10, min(10_000, num - start))
            noise = source.integers(0, 56, (len(classes), *SHAPE), np.uint8)
            file.write((originals[classes] + noise).tobytes())
    return num


def main() -> None:
    """Write the file, train on it, and print the peak memory and the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="folder for the file, else a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "images.npy"
        num = write_images(path, arguments.gigabytes)
        print(f"{num:,} images of {SHAPE}, {path.stat().st_size / 1e9:.2f} GB", flush=True)
        fit = ["fit", f"{folder}/run", f"--data={path}", "--epochs=1", "--batch-size=500"]
        fit += ["--hidden=64", "--estimator=reinforce", "--device=cpu"]
        if num > 100_000:  # validation and test rows are held in memory, in float32
            fit += ["--val=2000", "--test=2000"]
        code = f"from pdvae_cli.main import main; main({fit})"
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds = time.perf_counter() - start
        # Kilobytes on Linux, bytes on macOS.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
    print(f"peak resident memory {peak / 1e9:.2f} GB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
