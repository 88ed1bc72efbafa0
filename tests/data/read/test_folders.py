"""Tests of folders of images: nothing is converted, dropped or guessed that is not asked for."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pyro_dvae.data import DataError
from pyro_dvae.data.read.folders import image_folder
from pyro_dvae.data.read.images import ImageRows


def save(path: Path, mode: str = "RGB", size: tuple[int, int] = (4, 3), **options: Any) -> Path:
    """Write one image; the size is width, height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, options.pop("color", 0)).save(path, **options)
    return path


def opened(folder: Path, **options: Any) -> ImageRows:
    train, test, _ = image_folder(folder, **options)
    assert test is None
    return train


@contextmanager
def one_line(word: str) -> Iterator[None]:
    """What is raised must be one line with this word."""
    try:
        yield
    except DataError as error:
        if "\n" in str(error) or word not in str(error):
            raise AssertionError(str(error)) from error
        raise


def pixels(folder: Path, **options: Any) -> list[Any]:
    rows = opened(folder, **options)
    return rows.read(torch.arange(len(rows))).tolist()


PIXELS = {
    "L": ((), "uint8", "png"),
    "RGB": ((3,), "uint8", "png"),
    "1": ((), "bool", "png"),
    "I;16": ((), "uint16", "png"),
    "I": ((), "int32", "tiff"),
    "F": ((), "float32", "tiff"),
}


@given(
    st.sampled_from(list(PIXELS)), st.integers(1, 33), st.integers(1, 33), st.integers(0, 2**32 - 1)
)
@settings(max_examples=60, deadline=None)
def test_pixels_are_as_stored(mode: str, height: int, width: int, seed: int) -> None:
    channels, dtype, suffix = PIXELS[mode]
    bits = np.random.default_rng(seed).integers(0, 2**15, (3, height, width, *channels))
    arrays = list((bits % 2 if mode == "1" else bits).astype(dtype))
    with tempfile.TemporaryDirectory() as folder:
        for i, array in enumerate(arrays):
            Image.fromarray(array).save(Path(folder) / f"{i}.{suffix}")
        rows = opened(Path(folder))
        assert rows.images[0].mode == mode
        values = rows.read(torch.tensor([2, 0, 2]))
    assert rows.event_shape == (*channels, height, width)
    assert values.dtype == rows.dtype
    assert rows.dtype == (torch.int32 if mode == "I;16" else getattr(torch, dtype))
    for value, array in zip(values.numpy(), (arrays[2], arrays[0], arrays[2]), strict=True):
        stored = np.moveaxis(array, -1, 0) if channels else array
        np.testing.assert_array_equal(value, stored)


def test_class_folders(tmp_path: Path) -> None:
    for name in ("b/x.png", "b/deep er/y.PNG", "a: é/z.jpg", "a: é/.hidden.png", ".git/u.png"):
        save(tmp_path / name)
    (tmp_path / "b/notes.txt").touch()
    (tmp_path / "README").touch()
    (tmp_path / "empty").mkdir()
    rows, test, notice = image_folder(tmp_path)
    assert (len(rows), test, rows.label_names) == (3, None, ("a: é", "b"))
    assert rows.labels is not None
    assert rows.labels.tolist() == [0, 1, 1]
    told = "left out, being no images: README, b/notes.txt, empty; 2 hidden: .git, a: é/.hidden.png"
    assert notice == told
    assert [(str(group), group.first) for group in rows.images] == [
        ("3 of 3 x 4 RGB", "a: é/z.jpg")
    ]


def test_what_is_left_out_and_what_is_followed(tmp_path: Path) -> None:
    """Copies of editors and archives, links to nothing, to folders and in circles, and pipes."""
    root = tmp_path / "d"
    for name in ("d/a/1.png", "d/a/2.png", "d/b/1.png", "more/1.png", "more/deeper/2.png"):
        save(tmp_path / name)
    for copy in ("d/a/.ipynb_checkpoints/1.png", "d/a/x/.cache/y/2.png", "d/__MACOSX/a/1.png"):
        save(tmp_path / copy)
    (root / "a/.DS_Store").touch()
    for i in range(3):
        (root / f"b/gone{i}.png").symlink_to(f"/not/fetched/{i}.png")
    (root / "b/linked.png").symlink_to(tmp_path / "more/1.png")
    (root / "b/more").symlink_to(tmp_path / "more")
    (root / "b/again").symlink_to(tmp_path / "more/deeper")
    (root / "b/circle").symlink_to(root)
    (root / "b/self").symlink_to(root / "b/self")
    (root / "c").symlink_to(tmp_path / "more")
    os.mkfifo(root / "b/z.png")
    rows, _, notice = image_folder(root)
    assert rows.labels is not None
    assert rows.label_names == ("a", "b", "c")
    assert torch.bincount(rows.labels).tolist() == [2, 4, 2]
    told = (
        "left out, 4 hidden: __MACOSX, a/.DS_Store, a/.ipynb_checkpoints and 1 more; 4 broken "
        "links: b/gone0.png, b/gone1.png, b/gone2.png and 1 more; 2 links to folders that are read "
        "already: b/circle, b/more/deeper; 1 pipes or devices: b/z.png"
    )
    assert notice == told


def test_images_that_exif_says_to_turn_are_counted(tmp_path: Path) -> None:
    for i in range(9):
        exif = Image.Exif()
        exif[0x0112] = i
        image = Image.new("L", (4, 3), i)
        image.save(tmp_path / f"{i}.jpg", exif=exif)
        image.save(tmp_path / f"{i}.png")
    rows, _, notice = image_folder(tmp_path)
    assert notice == "EXIF says to turn 7 of the images, which are taken as stored, not turned"
    assert rows.event_shape == (3, 4)
    assert rows.read(torch.tensor([0])).shape == (1, 3, 4)


def test_train_and_test(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png"):
        save(tmp_path / name, color=int(name[-5]))
    train, test, notice = image_folder(tmp_path)
    assert test is not None
    assert notice is None
    assert (len(train), len(test), train.label_names) == (2, 2, ("a", "b"))
    assert test.read(torch.tensor([1]))[0, 0, 0, 0] == 4
    save(tmp_path / "test/c/5.png")
    with pytest.raises(DataError, match=r"the same classes in train and test .*\('a', 'b', 'c'\)"):
        image_folder(tmp_path)
    save(tmp_path / "val/a/5.png")
    assert opened(tmp_path).label_names == ("test", "train", "val")


def test_size_and_channels(tmp_path: Path) -> None:
    save(tmp_path / "grey.png", "L", (8, 6), color=100)
    save(tmp_path / "colour.png", "RGB", (2, 2), color=(255, 0, 0))
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    clear.putpixel((0, 0), (0, 0, 255, 255))
    clear.save(tmp_path / "clear.png")
    clear.convert("P").save(
        tmp_path / "palette.gif", transparency=clear.convert("P").getpixel((1, 1))
    )
    rows = opened(tmp_path, size=(2, 2), channels=3)
    assert (rows.event_shape, rows.dtype, len(rows)) == ((3, 2, 2), torch.uint8, 4)
    assert len(rows.images) == 4
    values = rows.read(torch.arange(4))
    assert values[0, :, 1, 1].tolist() == [255, 255, 255]
    assert values[0, :, 0, 0].tolist() == [0, 0, 255]
    assert values[1, :, 0, 0].tolist() == [255, 0, 0]
    assert (values[2] == 100).all()
    assert values[3, :, 1, 1].tolist() == [255, 255, 255]
    grey = opened(tmp_path, size=(5, 1), channels=1)
    assert grey.event_shape == (5, 1)
    assert grey.read(torch.tensor([2]))[0].tolist() == [[100]] * 5


def test_resizing_averages_and_keeps_the_dtype(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 1000], [3000, 4000]], np.uint16)).save(tmp_path / "x.png")
    rows = opened(tmp_path, size=(1, 1))
    assert (rows.dtype, rows.read(torch.tensor([0])).tolist()) == (torch.int32, [[[2000]]])


def test_bits_become_grey_on_request(tmp_path: Path) -> None:
    save(tmp_path / "x.png", "1", (2, 1), color=1)
    assert pixels(tmp_path) == [[[True, True]]]
    assert pixels(tmp_path, channels=1) == [[[255, 255]]]
    assert pixels(tmp_path, channels=1, size=(1, 1)) == [[[255]]]
    with pytest.raises(DataError, match=r"to resize in .* black and white. Pass channels=1 too"):
        opened(tmp_path, size=(1, 1))


def _rgb16(path: Path) -> None:
    """A PNG of 16 bits a channel, which Pillow reads but does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" + b"\1\2" * 3))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))


def _frames(path: Path) -> None:
    images = [Image.new("L", (4, 3), color) for color in (0, 99)]
    images[0].save(path, save_all=True, append_images=images[1:])


@pytest.mark.parametrize(
    ("files", "options", "match"),
    [
        ([], {}, r"Expected images \(.png, .jpg, ...\) in .*; got an empty folder"),
        (["x.txt", "sub/y.csv"], {}, "got x.txt, sub. Pass the folder that holds them"),
        (
            ["a/1.png", "2.png"],
            {},
            r"all images in class folders .* got 1 beside the folders a\. Move",
        ),
        (["1.png", ("2.png", "RGB", (9, 9))], {}, "of one size in .*; got 1 of 3 x 4 RGB, 1 of 9"),
        ([("1.png", "RGB", (9, 9)), "2.png", "3.png"], {}, "got 2 of 3 x 4 .* with 1.png 9 x 9"),
        (["1.png", ("2 é.png", "L")], {}, "of one mode, .*, with 2 é.png L. Pass channels=1 or"),
        ([("1.png", "RGBA")], {}, "with 1.png with alpha. Pass channels=1 or channels=3"),
        ([("1.png", "LA")], {}, r"with alpha\. .*transparent becomes white"),
        ([("1.png", "P")], {}, "with 1.png with a palette"),
        ([("1.jpg", "CMYK")], {}, "with 1.jpg CMYK"),
        ([("1.png", "I;16")], {"channels": 1}, "one frame and 8 bits .*, with 1.png I;16. Convert"),
        ([("1.tif", "F"), "2.png"], {"channels": 3}, "with 1.tif F. Convert these, or take"),
        ([("1.tif", "LAB")], {}, "with 1.tif LAB"),
        ([_rgb16], {}, "8 bits .* RGB in 16 bits"),
        ([_rgb16], {"channels": 3}, "8 bits .* RGB in 16 bits"),
        ([_frames], {}, "one frame .* in several frames"),
        (
            [b"", "1.png"],
            {},
            "Expected an image; got .*/bytes.png .*Replace the file, or take it out",
        ),
        ([b"GIF89a"], {}, "Expected an image; got"),
        ([b"\x89PNG\r\n\x1a\n\0\0"], {}, "Expected an image; got"),
    ],
)
def test_refused(tmp_path: Path, files: list[Any], options: Any, match: str) -> None:
    for file in files:
        if isinstance(file, bytes):
            (tmp_path / "bytes.png").write_bytes(file)
        elif callable(file):
            file(tmp_path / ("x.gif" if file is _frames else "x.png"))
        elif isinstance(file, tuple):
            save(tmp_path / file[0], *file[1:])
        elif file.endswith(".png"):
            save(tmp_path / file)
        else:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
    with pytest.raises(DataError, match=match) as error:
        image_folder(tmp_path, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_transparent_colour_is_not_dropped(tmp_path: Path) -> None:
    save(tmp_path / "x.png", "RGB", (1, 1), color=(1, 2, 3), transparency=(1, 2, 3))
    with pytest.raises(DataError, match=r"x.png RGB with a transparent colour. Pass channels"):
        opened(tmp_path)
    assert pixels(tmp_path, channels=3) == [[[[255]], [[255]], [[255]]]]


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tiff"])
def test_a_truncated_image_is_named(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)
    path = tmp_path / f"a b.{suffix}"
    Image.fromarray(noise).convert("P" if suffix == "gif" else "L").save(path)
    whole = path.read_bytes()
    for length in range(1, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with suppress(DataError), one_line(path.name):
            pixels(tmp_path, channels=1)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png")
    rows = opened(tmp_path)
    for change in (lambda: save(path, size=(9, 9)), lambda: save(path, "L"), path.unlink):
        change()
        with pytest.raises(DataError, match=r"Expected a whole image; got .*x.png"):
            rows.read(torch.arange(1))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x.png", size=(20, 20))
    for most in (300, 100):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(DataError, match=r"Expected an image; got .*decompression bomb"):
            opened(tmp_path)


def test_bad_exif_changes_no_pixel(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg", "L", color=7, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\0\0")
    content = path.read_bytes()
    path.write_bytes(content[:2] + content[content.index(b"\xff\xe1") :])  # EXIF comes first
    with pytest.warns(UserWarning, match="Corrupt EXIF"), Image.open(path):
        pass
    assert pixels(tmp_path) == [[[7] * 4] * 3]  # without a warning


def test_images_that_say_they_are_others(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("L", (4, 3), 7).save(content, "BMP")
    (tmp_path / "x.PNG").write_bytes(content.getvalue())
    assert pixels(tmp_path) == [[[7] * 4] * 3]
