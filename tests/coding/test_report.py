"""What a report says of sizes."""

from __future__ import annotations

import gzip
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from zoo import tiny_data, tiny_vae

from pyro_dvae import evaluate
from pyro_dvae.coding import baseline_sizes, codec_report, compress
from pyro_dvae.coding.baselines import _sheet


def test_a_file_is_as_large_as_promised() -> None:
    torch.manual_seed(0)
    vae, x = tiny_vae(event=(100,)), tiny_data(5000, (100,))
    for way in ("code", "bits-back", "exact"):
        found = compress(vae, x.numpy(), way=way)  # type: ignore[arg-type]
        report = codec_report(vae, found, x)
        scores = evaluate(vae, x)
        assert scores.log_marginal is not None
        for name, nats in (("bits-back", scores.elbo), ("exact", scores.log_marginal)):
            expected = -nats * len(x) / math.log(2) / 8
            assert report.promised[name] == pytest.approx(expected, rel=1e-6)
        assert report.excess is not None
        assert 0 < report.excess < 0.005
        assert report.size == len(found.content)
        assert report.header < 200
        assert report.bits_per_dimension(report.size) == found.bits_per_dimension
        assert report.to_dict()["excess"] == report.excess


def test_other_compressors_get_packed_bits() -> None:
    bits = np.random.default_rng(0).random((30, 8, 8)) < 0.1
    sizes = baseline_sizes(bits.astype(np.int64), is_image=True)
    assert sizes["gzip"] == len(gzip.compress(np.packbits(bits).tobytes(), 9, mtime=0))
    file = io.BytesIO()
    Image.fromarray(bits[0]).save(file, "PNG", optimize=True)
    assert Image.open(file).mode == "1"
    alone = baseline_sizes(bits[:1].astype(np.int64), is_image=True)
    assert alone["PNG, one by one"] == alone["PNG, one sheet"] == len(file.getvalue())
    assert sizes["PNG, one by one"] > 20 * alone["PNG, one by one"]  # type: ignore[operator]
    assert baseline_sizes(bits.reshape(30, -1), is_image=False).keys() == {
        *("gzip", "bz2", "xz", "zstd")
    }


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 1, 4, 3), (5, 3, 4, 6)])
def test_levels_are_bytes_and_colours_are_pictures(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape)
    sizes = baseline_sizes(values, is_image=True)
    assert min(size for size in sizes.values() if size is not None) > 50
    assert sizes["gzip"] == len(gzip.compress(values.astype(np.uint8).tobytes(), 9, mtime=0))
    wide = baseline_sizes(values * 1000, is_image=True)
    assert wide["PNG, one sheet"] is None


def test_a_sheet_holds_every_image() -> None:
    images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    sheet = _sheet(images)
    assert sheet is not None
    assert sheet.shape == (2 * 2, 3 * 3)
    assert (sheet[:2, 3:6] == images[1]).all()
    assert (sheet[2:, :3] == images[3]).all()
    assert (sheet[2:, 6:] == 0).all()
    assert _sheet(np.zeros((40_000, 100, 100), np.uint8)) is None
