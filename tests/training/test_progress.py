"""`fit(..., progress=True)` shows how far it is, and changes nothing else."""

from __future__ import annotations

import copy
import io
import sys
from typing import Any

import pytest
import torch
from zoo import tiny_data, tiny_vae

from pyro_dvae import EpochRecord, RlooELBO, fit
from pyro_dvae.training import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _trained(vae: Any, **options: Any) -> list[EpochRecord]:
    torch.manual_seed(1)
    x = tiny_data(20)
    records = fit(vae, RlooELBO(2), x, 4, epochs=2, batch_size=4, **options)
    return [EpochRecord(**{**vars(record), "seconds": 0.0}) for record in records]


def test_nothing_is_shown_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _trained(tiny_vae())
    assert capsys.readouterr() == ("", "")


def test_a_line_per_epoch_and_the_same_weights(capsys: pytest.CaptureFixture[str]) -> None:
    vae = tiny_vae()
    other = copy.deepcopy(vae)
    steps: list[tuple[int, int]] = []
    records = _trained(vae, progress=True, on_step=lambda *step: steps.append(step))
    assert steps == [(step, 4) for step in (1, 2, 3, 4)] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"epoch {record.epoch}/2: ELBO (train estimate) {record.train_elbo:.2f}, validation "
        f"{record.validation_elbo:.2f} nats/datum, 0 s"
        for record in records
    ]
    assert _trained(other) == records
    assert all(map(torch.equal, vae.parameters(), other.parameters()))


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    records = _trained(tiny_vae(), progress=True)
    shown = terminal.getvalue()
    assert "2/2" in shown
    assert f"{records[-1].train_elbo:.2f}" in shown
    assert "nats" not in shown


@pytest.mark.parametrize("widgets", [None, "there"])
def test_a_notebook_has_a_bar_if_it_can_show_one(
    monkeypatch: pytest.MonkeyPatch, widgets: str | None
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("pyro_dvae.training.progress.find_spec", lambda _: widgets)
    assert Progress(3).bar.disable == (widgets is None)
