"""`fit(..., progress=True)` shows how far it is, and changes nothing else."""

from __future__ import annotations

import copy
import io
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from zoo import make_vae, tiny_data, tiny_vae

from pyro_dvae import EpochRecord, RlooELBO, fit, fit_guide, fit_prior
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


class Notebook(ModuleType):
    """`IPython.display` as a kernel has it: it keeps what each output shows."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        shown = [content]
        self.outputs.append(shown)
        return SimpleNamespace(update=lambda content, raw: shown.append(content))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    module = Notebook()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return module


def test_a_notebook_has_a_bar_that_stays(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    records = _trained(tiny_vae(), progress=True)
    assert capsys.readouterr() == ("", "")
    (shown,) = notebook.outputs
    assert shown[0]["text/plain"] == "epoch 0/2"
    train, held_out = records[-1].train_elbo, records[-1].validation_elbo
    last = f"ELBO (train estimate) {train:.2f}, validation {held_out:.2f}, 0 s"
    assert shown[-1]["text/plain"] == f"epoch 2/2, {last}"
    assert '<progress value="2" max="2"' in shown[-1]["text/html"]
    assert shown[-1]["text/html"].endswith(f"</label> {last}</div>")


def test_a_bar_of_a_notebook_changes_a_few_times_per_second(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress(2) as bar:
        for step in range(1, 11):
            now = step / 8
            bar.step(step, 20)
        bar.extend(4, "ELBO")
    (shown,) = notebook.outputs
    words = [content["text/plain"] for content in shown]
    assert len(words) == 1 + 5 + 2
    assert words[1] == "epoch 0/2, about 5 s left"
    assert words[-2:] == ["epoch 0/4, about 9 s left", "epoch 0/4, 1 s"]


def test_an_interrupted_bar_says_how_far_it_came(notebook: Notebook) -> None:
    def stop() -> None:
        with Progress(2) as bar:
            bar.step(4, 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert notebook.outputs[0][-1]["text/plain"] == "epoch 1/2, 0 s"


@pytest.mark.parametrize("fit_part", [fit_prior, fit_guide])
def test_the_second_stage_shows_its_progress(
    fit_part: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x = tiny_data(20)
    records = list(fit_part(make_vae("learned"), x, 4, epochs=2, batch_size=16, progress=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert f"ELBO train {records[-1].train_elbo:.2f}, validation" in lines[-1]
