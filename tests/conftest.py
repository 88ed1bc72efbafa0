from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pyro
import pytest
import torch
from browser.browsing import browse as browse
from browser.browsing import chromium as chromium  # once: playwright cannot be started twice
from hostile import Hostile
from zoo import SLOW_ROWS

from pyro_dvae.evaluation import simple

# The suite runs in two processes; threads that spin would slow both, and what they start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests and the library stay: the search for garbage leaves them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some estimators take each test of the tables only among the slow ones."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and any(
            isinstance(value, str) and value in SLOW_ROWS for value in call.params.values()
        ):
            item.add_marker(pytest.mark.slow)
    # The longest test begins first: were it the last one, the other process would wait for it.
    items.sort(key=lambda item: item.name != "test_pages_build_without_a_warning")


@pytest.fixture(scope="session", autouse=True)
def own_secret(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs are known as one's own by another secret than the user's: see `networks/trust.py`."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def short_em() -> None:
    """The mixtures beside a figure of images get two steps of EM, which take no seconds."""
    simple._MOST_NUMBERS, simple._SMALL = 2**22, 2**20


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """float64, one seed, Pyro's checks on, an empty parameter store."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    with pyro.validation_enabled(True):
        yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="session")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    server = Hostile(tmp_path_factory.mktemp("hostile"))
    yield server
    server.close()


@pytest.fixture
def hostile(hostile_server: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    """Run the command in a process with limits, in an empty folder; see `hostile.py`."""
    monkeypatch.chdir(tmp_path)
    return hostile_server


@pytest.fixture
def pdvae(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in an empty folder; exit status, stdout, stderr."""
    from pdvae_cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDVAE_DATA_DIR", raising=False)
    torch.set_default_dtype(torch.float32)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run
