from __future__ import annotations

import torch

from pyro_dvae.streams import RandomStream, seed_of_part


def test_streams_are_apart(device: torch.device) -> None:
    def draw(number: int) -> list[float]:
        return torch.rand(number, device=device).tolist()

    torch.manual_seed(9)
    alone = draw(6)
    torch.manual_seed(1)
    outside = draw(4)
    torch.manual_seed(1)
    first, second = RandomStream(9, device), RandomStream(9, device)
    drawn = draw(2)
    with first:
        inside = draw(2)
        with second:
            nested = draw(3)
        inside += draw(1)
    drawn += draw(2)
    with first:
        inside += draw(3)
    assert drawn == outside
    assert inside == alone
    assert nested == alone[:3]


def test_each_process_has_its_own_seed() -> None:
    seeds = [seed_of_part(3, rank, step) for rank in range(1, 4) for step in range(3)]
    assert len({3, *seeds}) == 10
    assert seed_of_part(3, 0, 7) == 3
