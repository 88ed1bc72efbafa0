"""Tests of training data that are read in shuffled blocks."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_dvae import BinaryImages, Config, Trainer, build_elbo, build_vae
from pyro_dvae.data import BlockData, Preparation, TensorRows, open_source
from pyro_dvae.data.read.errors import DataError


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(num: int) -> TensorRows:
    """Rows of one byte."""
    return TensorRows((torch.arange(num) % 251).to(torch.uint8)[:, None])


def order(num: int, block: int, window: int, seed: int = 0) -> Tensor:
    data = BlockData(numbered(num), Preparation(), block_bytes=block, window=window)
    return data.order(stream(seed))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9), st.integers(0, 5))
def test_order_is_a_permutation_and_its_windows_are_of_whole_blocks(
    num: int, block: int, window: int, seed: int
) -> None:
    found = order(num, block, window, seed)
    assert torch.equal(found.sort().values, torch.arange(num))
    num_blocks = -(-num // block)
    seen: list[int] = []
    start = 0
    while start < num:
        blocks = (found[start : start + 1] // block).tolist()
        stop = start
        while stop < num:
            block_here = int(found[stop]) // block
            if block_here not in blocks and len(blocks) == window:
                break
            blocks = list(dict.fromkeys([*blocks, block_here]))
            stop += 1
        sizes = [min(block, num - b * block) for b in blocks]
        assert sum(sizes) == stop - start
        seen += blocks
        start = stop
    assert sorted(seen) == list(range(num_blocks))


class TestShuffle:
    """The quality that the docstring states, at 4.5 standard errors or more."""

    @pytest.mark.slow
    def test_every_row_is_as_likely_everywhere(self) -> None:
        num, draws = 24, 4000
        places = torch.stack([order(num, 4, 2, seed).argsort() for seed in range(draws)])
        counts = torch.stack([(places == place).sum(0) for place in range(num)])
        expected = draws / num
        # N^2 counts, of which one in 10^9 would be off by more.
        assert (counts - expected).abs().max() < 6.5 * math.sqrt(expected)
        displacement = (places - torch.arange(num)).abs().double().mean()
        full = (num**2 - 1) / (3 * num)
        assert abs(displacement - full) < 0.1

    def test_one_window_is_a_full_shuffle(self) -> None:
        num, draws = 4, 4800
        found = [tuple(order(num, 2, 2, seed).tolist()) for seed in range(draws)]
        counts = torch.tensor([found.count(one) for one in set(found)]).double()
        assert len(counts) == math.factorial(num)
        expected = draws / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 23 + 6 * math.sqrt(46)

    @pytest.mark.parametrize(("window", "chance"), [(4, 0.25), (8, 0.125), (16, 0.0625)])
    def test_two_rows_of_a_batch_share_a_block_with_chance_one_in_w(
        self, window: int, chance: float
    ) -> None:
        block, num = 20, 20 * 64
        exact = (block - 1) / (window * block - 1)
        assert abs(exact - chance) < 0.05 * chance
        pairs = []
        for seed in range(100):
            blocks = order(num, block, window, seed).view(-1, 20) // block  # (batches, B)
            same = (blocks[:, :, None] == blocks[:, None, :]).sum((1, 2)) - 20
            pairs.append(same.double().mean() / (20 * 19))
        mean, error = torch.stack(pairs).mean(), torch.stack(pairs).std() / 10
        assert abs(mean - exact) < 4.5 * error

    def test_neighbours_part(self) -> None:
        num, block, window = 4096, 64, 8
        adjacent = []
        for seed in range(40):
            steps = order(num, block, window, seed).diff().abs()
            adjacent.append((steps == 1).double().mean())
        assert abs(torch.stack(adjacent).mean() - 2 / (block * window)) < 5e-4

    def test_shares_of_sorted_classes_vary_as_stated(self) -> None:
        block, window, num = 10, 16, 10 * 640
        share = []
        for seed in range(30):
            is_first = order(num, block, window, seed) < num // 4
            share.append(is_first.view(-1, block * window).double().mean(1))
        deviation = torch.cat(share).std()
        assert abs(deviation - math.sqrt(0.25 * 0.75 / window)) < 0.01


class Counting(TensorRows):
    """Counts what is read."""

    num_read = 0

    def read(self, index: Tensor) -> Tensor:
        self.num_read += len(index)
        return super().read(index)


POLICIES = [
    ("dynamic", None),
    ("static", None),
    ("threshold", None),
    ("dynamic", (0.0, 255.0)),
    ("static", (0.0, 255.0)),
    ("none", None),
]


def grey(num: int = 83) -> Tensor:
    return torch.randint(256, (num, 3, 2), dtype=torch.uint8, generator=stream(1))


@pytest.mark.parametrize(("policy", "range"), POLICIES)
def test_what_is_served_is_the_same_whatever_the_blocks(policy: str, range: Any) -> None:
    values = grey() // 128 if policy == "none" else grey()
    preparation, index = Preparation(policy, range), torch.arange(83).roll(5)
    served = []
    for block_bytes, window in [(1, 1), (40, 3), (40, 99), (10_000, 2)]:
        rows = TensorRows(values)
        data = BlockData(rows, preparation, seed=3, block_bytes=block_bytes, window=window)
        noise = stream(7)
        before = [data.batch(batch, noise) for batch in index.split(10)]
        data.order(stream(2))
        after = [data.batch(batch, noise) for batch in index.split(10)]
        served.append(torch.cat([*before, *after, data.fixed(5)]))
    assert served[0].dtype == torch.float32
    assert all(torch.equal(other, served[0]) for other in served)
    if policy != "static":  # whose bits are drawn row by row
        held = BinaryImages(values, policy, range=range)
        noise = stream(7)
        wanted = [held.batch(batch, noise) for batch in index.split(10)]
        wanted += [held.batch(batch, noise) for batch in index.split(10)]
        assert torch.equal(torch.cat([*wanted, held.fixed(5)]), served[0])
    else:
        assert torch.equal(served[0][:83], served[0][83:166])
        assert torch.equal(served[0][:83], served[0][166:][index])


def test_static_bits_follow_seed_and_row_and_have_the_means() -> None:
    values = torch.full((4000, 5), 64, dtype=torch.uint8)
    first, same, other = (
        BlockData(TensorRows(values), Preparation("static"), seed=seed).fixed(0)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    p = 64 / 255
    assert abs(first.mean() - p) < 4.5 * math.sqrt(p * (1 - p) / first.numel())
    part = BlockData(TensorRows(values), Preparation("static"), seed=1).subset(torch.arange(7, 90))
    assert torch.equal(part.fixed(0), first[7:90])


def test_an_epoch_reads_every_row_once() -> None:
    rows = Counting(grey(1000))
    data = BlockData(rows, Preparation(), block_bytes=60, window=4)
    for batch in data.order(stream()).split(33):
        data.batch(batch, stream())
    assert rows.num_read == 1000
    assert len(data._held) <= 2


def test_a_subset_is_of_these_rows() -> None:
    values, index = grey(), torch.arange(1, 83, 3)
    data = BlockData(TensorRows(values), Preparation("threshold"), block_bytes=30, window=2)
    part = data.subset(index)
    assert len(part) == len(index)
    assert torch.equal(part.fixed(0), data.fixed(0)[index])
    found = part.order(stream())
    served = torch.cat([part.batch(batch, stream()) for batch in found.split(4)])
    assert torch.equal(served, data.fixed(0)[index[found]])


def test_a_row_that_cannot_be_read_is_said_where_it_is_asked_for() -> None:
    class Damaged(TensorRows):
        def read(self, index: Tensor) -> Tensor:
            raise DataError("Expected a whole file; got half of it. Mend it.")

    data = BlockData(Damaged(grey()), Preparation())
    index = data.order(stream())[:3]
    with pytest.raises(DataError, match="got half of it"):
        data.batch(index, stream())


class TestTrainer:
    config = Config(num_latents=2, num_categories=3, hidden=(6,), num_particles=2)

    def trainer(self, data: Any) -> Trainer:
        torch.manual_seed(0)
        vae, elbo = build_vae(self.config, (3, 2)), build_elbo(self.config, (3, 2))
        return Trainer(vae, elbo, data, batch_size=10, seed=4)

    def data(self, **options: Any) -> BlockData:
        torch.set_default_dtype(torch.float32)
        return BlockData(TensorRows(grey(81)), Preparation(), **options)

    def test_asks_for_the_order(self) -> None:
        data = self.data(block_bytes=36, window=2)
        served: list[Tensor] = []
        batch = data.batch

        def recorded(index: Tensor, generator: torch.Generator) -> Tensor:
            served.append(index)
            return batch(index, generator)

        trainer = self.trainer(data)
        data.batch = recorded  # type: ignore[method-assign]
        list(trainer.run(2))
        both = torch.cat(served).view(2, 81)
        shuffling = stream(4)
        assert torch.equal(both, torch.stack([data.order(shuffling) for _ in both]))
        assert not torch.equal(*both)

    def test_one_window_trains_the_same_whatever_the_blocks_would_be(self) -> None:
        """The block size decides the order alone: for the same order the weights are the same."""
        held = BinaryImages(grey(81))
        streamed = self.data(block_bytes=18, window=3)
        held.order = streamed.order  # type: ignore[attr-defined]
        ends = []
        for data in (held, streamed):
            trainer = self.trainer(data)
            list(trainer.run(2))
            ends.append(trainer.vae.state_dict())
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])

    @pytest.mark.parametrize("stop_at", [1, 9, 13])
    def test_resumes_bit_for_bit(self, stop_at: int) -> None:
        class Stop(Exception):
            pass

        left = [stop_at]

        def on_step(step: int, steps: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Stop

        whole = self.trainer(self.data(block_bytes=36, window=2))
        list(whole.run(3))
        stopped = self.trainer(self.data(block_bytes=36, window=2))
        with pytest.raises(Stop):
            list(stopped.run(3, on_step=on_step))
        state = stopped.state_dict()
        resumed = self.trainer(self.data(block_bytes=36, window=2))
        resumed.load_state_dict(state)
        list(resumed.run(3))
        ours, theirs = whole.state_dict().tensors, resumed.state_dict().tensors
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_mapped_file_is_read_in_blocks(tmp_path: Path) -> None:
    values = grey(200).numpy()
    for name, array in {"c": values, "f": np.asfortranarray(values)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        rows = open_source(tmp_path / f"{name}.npy").train
        data = BlockData(rows, Preparation("threshold"), block_bytes=60, window=3)
        index = data.order(stream())
        served = torch.cat([data.batch(batch, stream()) for batch in index.split(7)])
        assert torch.equal(served, (torch.from_numpy(values)[index] >= 128).float())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_copies_serve_the_same_also_in_the_middle_of_an_epoch(tmp_path: Path, how: Any) -> None:
    values = torch.randint(256, (40, 3), dtype=torch.uint8)
    np.save(tmp_path / "x.npy", values.numpy())
    rows = open_source(str(tmp_path / "x.npy")).train
    data = BlockData(rows, Preparation("static"), seed=4, block_bytes=12, window=2)
    order = data.order(torch.Generator().manual_seed(1))
    draws = [torch.Generator() for _ in range(2)]
    expected = data.batch(order[:7], draws[0])
    other = how(data)
    assert torch.equal(other.batch(order[:7], draws[1]), expected)
    assert torch.equal(other.order(torch.Generator().manual_seed(1)), order)
    assert torch.equal(other.batch(order[7:20], draws[1]), data.batch(order[7:20], draws[0]))
