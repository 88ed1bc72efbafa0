"""The bits that runs take to store their test data, and the speed of one core.

For every run and every way to code, the size of the file is shown beside what the way promises, and
the data per processor second that are compressed and decompressed. Every file is decompressed and
compared. Below stand the sizes that other compressors make of the same values.

Example: OMP_NUM_THREADS=1 python examples/benchmarks/compressed_sizes.py runs/mnist-d4k8-snapshot-1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_dvae.coding import baseline_sizes, compress, decompress, promised_sizes
from pyro_dvae.evaluation import MAX_CODES, num_codes
from pyro_dvae.runs import is_image, load_run

WAYS: tuple[Any, ...] = ("exact", "bits-back", "code")


def measure(folder: Path, num_data: int) -> dict[str, Any]:
    """The sizes and speeds of one run, on the first test data as its model takes them."""
    run = load_run(folder)
    x = run.rows("test").x[:num_data]
    values = np.asarray(x).astype(np.uint8)
    few = num_codes(run.config.num_latents, run.config.num_categories) <= MAX_CODES
    promised = promised_sizes(run.vae, x)
    rows = {}
    for way in WAYS[0 if few else 1 :]:
        start = time.process_time()
        found = compress(run.vae, values, way=way)
        middle = time.process_time()
        again = decompress(run.vae, found.content)
        stop = time.process_time()
        if again.tobytes() != values.tobytes():
            raise AssertionError(f"{folder}, {way}: other data came back")
        rows[way] = {
            "bytes": len(found.content),
            "promised": promised[way],
            "bits_per_dimension": found.bits_per_dimension,
            "compressed_per_second": len(x) / (middle - start),
            "decompressed_per_second": len(x) / (stop - middle),
        }
    others = baseline_sizes(values, is_image=is_image(run.event_shape))
    return {"elements": values.size, "num_data": len(x), "ways": rows, "others": others}


def main() -> None:
    """Print a table per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="runs of zeros and ones")
    parser.add_argument("--num-data", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for folder in args.runs:
        result = results[str(folder)] = measure(folder, args.num_data)
        print(f"\n{folder}: {result['num_data']} data")
        print("| | bytes | bits per dimension | above its promise | per processor second |")
        print("|---|---|---|---|---|")
        for way, row in result["ways"].items():
            print(
                f"| {way} | {row['bytes']:,} | {row['bits_per_dimension']:.4f} | "
                f"{100 * (row['bytes'] / row['promised'] - 1):+.2f} % | "
                f"{row['compressed_per_second']:,.0f} in, "
                f"{row['decompressed_per_second']:,.0f} out |"
            )
        for name, size in result["others"].items():
            if size is not None:
                print(f"| {name} | {size:,} | {8 * size / result['elements']:.4f} | | |")
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
