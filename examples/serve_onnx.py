"""An exported model without PyTorch: encode, sample and decode with NumPy and ONNX Runtime alone.

The folder is one that pdvae export made of a run with the Bernoulli likelihood. The images are a
.npy file of stored values (N, H, W); without it, images of the bundled sample of MNIST. The picture
shows images, the means of p(x|z) at their codes, and at codes that are drawn from the prior.

    pdvae fit runs/served --data mnist --latents 8 --epochs 4
    pdvae export runs/served -o exported
    python examples/serve_onnx.py exported
"""

import argparse
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

Array = npt.NDArray[Any]
SAMPLE = Path(__file__).parents[1] / "pyro_dvae/assets/mnist_sample.npz"


class Served:
    """The graphs of an exported model, and what they say of themselves.

    Args:
        folder: the exported folder.
    """

    def __init__(self, folder: Path) -> None:
        self.graphs = {
            path.stem: onnxruntime.InferenceSession(path) for path in folder.glob("*.onnx")
        }
        about = self.graphs["encoder"].get_modelmeta().custom_metadata_map
        self.about = {name: json.loads(value) for name, value in about.items() if value[:1] in "{["}
        self.shape = self.about["code"]["num_latents"], self.about["code"]["num_categories"]

    def run(self, graph: str, **inputs: Array) -> Array:
        """The output of a graph."""
        output: Array = self.graphs[graph].run(None, inputs)[0]
        return output

    def prepared(self, values: Array) -> Array:
        """Stored values (N, *event) as the zeros and ones that the encoder takes.

        Where the training drew them, the more probable one is taken.
        """
        x = self.about["x"]
        if x["kind"] != "bits":
            raise SystemExit(f"Expected a model of zeros and ones; got {x['kind']}: {x['how']}")
        if x["binarize"] == "none" or (x["range"] is None and values.max() <= 1):
            return values.astype(np.float32)
        low, high = x["range"] or (0, 255)
        return ((values - low) / (high - low) >= 0.5).astype(np.float32)

    def encode(self, x: Array) -> Array:
        """The most probable code of each datum, (N, D) categories; one latent after the other."""
        if len(self.graphs["encoder"].get_inputs()) == 1:
            return self.run("encoder", x=x).argmax(-1)
        return self._one_by_one(len(x), lambda code: self.run("encoder", x=x, code=code))

    def sample_codes(self, number: int, source: np.random.Generator) -> Array:
        """Codes drawn from the prior, (N, D) categories."""
        prior = self.about["prior"]
        if prior["kind"] == "factorised":
            logits = np.broadcast_to(prior["logits"], (number, *self.shape))
            return drawn(logits, source)
        if prior["kind"] != "graph" or prior["num_classes"]:
            raise SystemExit(f"Expected a prior p(z) in the files; got {prior['how']}")
        return self._one_by_one(number, lambda code: self.run("prior", code=code), source)

    def _one_by_one(self, number: int, logits: Any, source: Any = None) -> Array:
        """Codes whose latents depend on those before them, drawn or, without a source, the best."""
        code = np.zeros((number, *self.shape), np.float32)
        for d in range(self.shape[0]):
            of_latent = logits(code)[:, d]
            chosen = of_latent.argmax(-1) if source is None else drawn(of_latent, source)
            code[np.arange(number), d, chosen] = 1
        return code.argmax(-1)

    def means(self, codes: Array) -> Array:
        """E[x|z] = sigmoid(params) at codes (N, D), (N, *event)."""
        one_hot = np.eye(self.shape[1], dtype=np.float32)[codes]
        mean: Array = 1 / (1 + np.exp(-self.run("decoder", code=one_hot)))
        return mean


def drawn(logits: Array, source: np.random.Generator) -> Array:
    """Categories drawn from softmax(logits), (..., K) -> (...)."""
    index: Array = (logits + source.gumbel(size=logits.shape)).argmax(-1)
    return index


def write_png(path: Path, grey: Array) -> None:
    """Write values (H, W) in [0, 1] as a .png file, white on black."""
    rows = (255 * grey).round().astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">2I5B", *rows.shape[::-1], 8, 0, 0, 0, 0)
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")):
            check = struct.pack(">I", zlib.crc32(kind + body))
            file.write(struct.pack(">I", len(body)) + kind + body + check)


def main() -> None:
    """Encode images, decode their codes, and draw others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what pdvae export wrote")
    parser.add_argument("--data", type=Path, help="a .npy file of images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("serve_onnx.png"))
    args = parser.parse_args()
    served = Served(args.folder)
    if args.data is None:
        with np.load(SAMPLE) as sample:
            values = sample["test_images"][:12]
    else:
        values = np.load(args.data)
    codes = served.encode(served.prepared(values))
    header = ",".join(f"z{d + 1}" for d in range(codes.shape[1]))
    np.savetxt("codes.csv", codes, "%d", delimiter=",", header=header, comments="")
    for number, code in enumerate(codes[:3]):
        print(f"image {number}: code {' '.join(map(str, code))}")
    rebuilt = served.means(codes)
    new = served.means(served.sample_codes(12, np.random.default_rng(args.seed)))
    np.save("samples.npy", new)
    shown = [served.prepared(values[:12]), rebuilt[:12], new[: len(rebuilt)]]
    rows = [np.concatenate([np.pad(image, 2) for image in row], 1) for row in shown]
    write_png(args.output, np.kron(np.concatenate(rows), np.ones((3, 3))))
    print(f"codes.csv: {len(codes)} codes; samples.npy: {len(new)} means; {args.output}")


if __name__ == "__main__":
    main()
