"""Upload to and download from a hub of models, by the library huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pyro_dvae._version import __version__
from pyro_dvae.reports import Words
from pyro_dvae.runs import Run, load_run
from pyro_dvae.sharing.card import LICENSE
from pyro_dvae.sharing.shared import share_run


class MissingHub(ImportError):
    """The library huggingface_hub is not installed."""


class Pushed(NamedTuple):
    """What `push_run` uploaded."""

    url: str
    """Where the model is now."""
    files: dict[str, int]
    """Name of a file -> its bytes."""


def push_run(
    run: Run | str | Path,
    repo_id: str,
    *,
    private: bool = True,
    license: str = LICENSE,
    data_dir: str | Path | None = None,
    words: Words | None = None,
    usage: str = "",
) -> Pushed:
    """Upload a run to the hub as the folder that `share_run` writes.

    You must be known to the hub: `hf auth login`, or the variable `HF_TOKEN`.

    Args:
        run: the run, or its folder.
        repo_id: "OWNER/NAME" on the hub. It is made if it is not there.
        private: whether only the owner sees it. It does not change one that is there already.
        license: as for `share_run`, as are the arguments below.
        data_dir: the folder that the run's data lie in now, if that is another one.
        words: how the card names settings and commands.
        usage: commands that use the model, which the card shows.

    Raises:
        ValueError: there is no run, or no such name can be.
        MissingHub: huggingface_hub is not installed.
        OSError: the hub cannot be reached, or does not let you write there.
    """
    api = _api(repo_id)
    from huggingface_hub import CommitOperationAdd

    run = run if isinstance(run, Run) else load_run(run)
    with TemporaryDirectory() as kept:
        name = repo_id.rpartition("/")[2]
        options: dict[str, Any] = {"license": license, "data_dir": data_dir, "words": words}
        files = share_run(run, Path(kept) / "shared", name=name, usage=usage, **options)
        sizes = {path.name: path.stat().st_size for path in files}
        with _one_line(f"write to {repo_id}"):
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            api.create_commit(  # one, so that nobody ever sees half of them
                repo_id,
                [CommitOperationAdd(path.name, path.read_bytes()) for path in files],
                commit_message=f"Share a run of pyro_dvae {run.version}",
            )
    return Pushed(str(url), sizes)


class Remote(NamedTuple):
    """What the hub keeps under a name, at one commit."""

    api: Any
    repo_id: str
    commit: str
    sizes: dict[str, int]
    """Name of a file -> its bytes."""

    @classmethod
    def of(cls, repo_id: str) -> Remote:
        """Ask the hub.

        Args:
            repo_id: "OWNER/NAME".

        Raises:
            ValueError: there is no such name, nor a folder of it.
            MissingHub: huggingface_hub is not installed.
            OSError: the hub cannot be reached, or does not know the name.
        """
        api = _api(repo_id)
        with _one_line(f"read {repo_id}"):
            info = api.model_info(repo_id, files_metadata=True)
        # The size of a file that the hub does not tell is not trusted.
        sizes = {each.rfilename: each.size for each in info.siblings or () if each.size is not None}
        return cls(api, repo_id, str(info.sha), sizes)

    @property
    def name(self) -> str:
        """The name without the owner."""
        return self.repo_id.rpartition("/")[2]

    def download(self, folder: Path, names: Sequence[str]) -> None:
        """Download files into a folder.

        Args:
            folder: the folder.
            names: of the files.

        Raises:
            OSError: the hub cannot be reached.
        """
        for name in names:
            with _one_line(f"read {name} of {self.repo_id}"):
                self.api.hf_hub_download(
                    self.repo_id, name, revision=self.commit, local_dir=str(folder)
                )


def _api(repo_id: str) -> Any:
    """The client of the hub, for a name that can be."""
    owner, slash, name = repo_id.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise ValueError(
            f"Expected a folder that is there, or OWNER/NAME on the hub; got {repo_id!r}. Check "
            "the path."
        )
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingHub(
            "Expected huggingface_hub, which reaches the hub; got none. Run pip install "
            "'pyro-dvae[hub]', or share a folder."
        ) from error
    return HfApi(library_name="pyro_dvae", library_version=__version__)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Report what the hub answers, or that nobody answers, as one kind of error.

    The library raises errors of its own, of the system and of the package that it asks the network
    by, which is another one in each of its versions.
    """
    try:
        yield
    except Exception as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"Expected a hub that lets you {what}; got: {told.rstrip('.')}. Look at your network "
            "and at `hf auth login`, or share a folder."
        ) from error
