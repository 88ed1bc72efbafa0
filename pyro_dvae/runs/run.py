"""A run folder as a Python object: `load_run`, and `inspect_run`, which imports no code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.defaults import ANOMALY_SCORE
from pyro_dvae.evaluation import AnomalyScore, PosteriorName, Profile, inference_of
from pyro_dvae.runs.anomalies import anomaly_rows
from pyro_dvae.runs.config import model_code
from pyro_dvae.runs.info import RunInfo
from pyro_dvae.runs.profiled import profile_rows
from pyro_dvae.runs.rows import PreparedRows, prepared_rows
from pyro_dvae.runs.scores import (
    Bound,
    encode_blocks,
    posterior_labels,
    refuse_unused,
    score_rows,
)
from pyro_dvae.runs.settings import read_config, trusted_config
from pyro_dvae.runs.weights import built, read_weights, without_numbers
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.vae import DiscreteVAE


@dataclass(frozen=True, repr=False)
class Run(RunInfo):
    """A run folder, read: what `load_run` returns."""

    vae: DiscreteVAE
    """The model with the best weights, in eval mode."""

    def rows(
        self,
        what: Any,
        *,
        labels: Any = None,
        data_dir: str | Path | None = None,
        key: str | None = None,
        labelled: bool = False,
        gaps: bool = False,
    ) -> PreparedRows:
        """Data as the model takes them: a part of the run's own, or a file or an array like them.

        `run.vae.mode(run.rows("new.csv").x[:])` are the codes of a new table, one-hot.

        Args:
            what: "train", "validation" or "test"; the path of a file or folder, which is read as
                the run's data were read: the same columns, size of images and classes; or values
                as they are stored: a tensor, an array, a table or a data set of torch.
            labels: (N,) the classes of values, by number or by name; None if there are none.
            data_dir: the folder that the run's data lie in now, if that is another one.
            key: the name of an array in a `.npz` file, where it is not the one of the run's data.
            labelled: whether a model that is conditional on labels cannot do without them here.
            gaps: whether values may be missing also where the model was trained on complete data,
                as `impute` and `predict` can do with.

        Raises:
            ValueError: the data are not there, have changed, or are none that the model takes.

        Warns:
            UserWarning: the labels cannot be read, and are left out.
        """
        return prepared_rows(
            self.vae,
            self.data,
            self.event_shape,
            what,
            labels=labels,
            data_dir=data_dir,
            key=key,
            labelled=labelled,
            gaps=gaps,
        )

    def encode(
        self,
        what: Any,
        *,
        probabilities: bool = False,
        key: str | None = None,
        labels: Any = None,
        posterior: PosteriorName | None = None,
        refine: int | None = None,
    ) -> Tensor:
        """The most probable code of each datum, as the command line writes it.

        Args:
            what: as for `rows`.
            probabilities: return the probabilities q(z|x) of the categories in place of codes.
            key: as for `rows`.
            labels: as for `rows`. Refined and exact posteriors need them if p(z) is p(z|y).
            posterior: q(z|x): the guide's, "encoder"; "refined" by coordinate ascent on the ELBO
                (`pyro_dvae.refine`); or p(z|x), "exact", if all codes can be summed over. None for
                "refined" if `refine` is given, else the guide's.
            refine: sweeps of coordinate ascent; None for 5.

        Returns:
            (N, D) categories 0 to K - 1, int64; or (N, D, K) probabilities, float32.
        """
        inference = inference_of(posterior, refine, self.config.seed)
        is_labelled = inference.posterior != "encoder"
        rows = self.rows(what, labels=labels, key=key, labelled=is_labelled)
        known = posterior_labels(self.vae, self.config, rows, inference)
        options: Any = {"probabilities": probabilities, "inference": inference}
        return torch.cat(list(encode_blocks(self.vae, rows.x, known, **options)))

    def score(
        self,
        what: Any,
        bound: Bound | None = None,
        *,
        by: AnomalyScore | None = None,
        labels: Any = None,
        importance_samples: int = 100,
        seed: int | None = None,
        key: str | None = None,
        posterior: PosteriorName | None = None,
        refine: int | None = None,
    ) -> Tensor:
        """How usual each datum is, in nats: the data with the lowest scores surprise most.

        Args:
            what: as for `rows`.
            bound: the ELBO, "elbo"; the importance-weighted bound, "importance"; or log p(x),
                "exact". None for the score `by`.
            by: the score, such as "ratio"; see `pyro_dvae.evaluation.anomaly_scores`. None for
                "log-prob", which is best as a rule, if there is no `bound`.
            labels: as for `rows`.
            importance_samples: k, the codes drawn per datum for the importance-weighted bound.
            seed: of the draws; None for the run's.
            key: as for `rows`.
            posterior: as for `encode`. It stands for bound="elbo" if neither a bound nor a score is
                given. With bound="importance", codes are drawn from it.
            refine: as for `encode`.

        Returns:
            (N,) nats, in the order of the data.

        Raises:
            ValueError: both `bound` and `by` are given, or there is no such score; or q(z|x) is
                named for a score that does not depend on it.
        """
        inference = None
        if posterior is not None or refine is not None:
            inference = inference_of(posterior, refine, self.config.seed if seed is None else seed)
            bound = "elbo" if bound is None and by is None else bound
            refuse_unused(bound, by)
        if bound is not None and by is not None:
            raise ValueError(
                f"Expected a bound or a score; got {bound!r} and {by!r}. Leave one out."
            )
        rows = self.rows(what, labels=labels, key=key, labelled=True)
        draws: dict[str, Any] = {"importance_samples": importance_samples, "seed": seed}
        if bound is not None:
            return score_rows(
                self.vae, self.config, rows, bound, **draws, inference=inference
            ).values
        by = by or ANOMALY_SCORE
        return anomaly_rows(self, rows, by, **draws).values

    def profile(
        self,
        what: Any = "train",
        *,
        labels: Any = None,
        key: str | None = None,
        num_typical: int = 3,
        posterior: PosteriorName | None = None,
        refine: int | None = None,
    ) -> Profile:
        """What the categories of each latent mean, told by the rows of a table, as they are stored.

        See `pyro_dvae.profile`. The columns, the levels, the classes and the rows have their names.

        Args:
            what: as for `rows`.
            labels: as for `rows`.
            key: as for `rows`.
            num_typical: typical rows to name per category. A row without a name has its number in
                the run's data, or in the file.
            posterior: which q(z|x) counts a row for a category, as for `encode`. If neither this
                nor `refine` is given, it is "exact" where that is cheap.
            refine: as for `encode`.

        Raises:
            ValueError: the data are no table.
        """
        rows = self.rows(what, labels=labels, key=key)
        return profile_rows(
            self.vae, self.data, rows, num_typical, posterior=posterior, refine=refine
        )

    def class_number(self, label: str) -> int:
        """The class that a prior conditional on labels knows by a name.

        Args:
            label: the name of the class; its number where the classes have no names.

        Raises:
            ValueError: there is no such class, or the prior knows none.
        """
        if not self.config.num_classes:
            raise ValueError(
                f"Expected label=None for {self.folder}, whose prior knows none; got {label}. "
                "Leave it out, or train with prior='conditional'."
            )
        names = list(self.data.label_names or map(str, range(self.config.num_classes)))
        if label in names:
            return names.index(label)
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise ValueError(f"Expected a label of {self.folder}: {shown}; got {label!r}. Name one.")


def inspect_run(folder: str | Path) -> RunInfo:
    """Read all of a run folder without its model; no code that it names is imported.

    Args:
        folder: the run's.

    Raises:
        ValueError: there is no run, one of a newer format, or a damaged file.
    """
    folder = Path(folder)
    file = read_config(folder)
    if model_code(file.config):
        epoch, number = read_weights(folder, file, None)[1], None
    else:
        vae = without_numbers(folder, file)
        epoch = read_weights(folder, file, vae)[1]
        number = _num_parameters(vae)
    return RunInfo(folder, *file, epoch, number)


def load_run(folder: str | Path, *, trust_code: bool = False) -> Run:
    """Read a run folder: its settings, its model, its figures, and what it knows of its data.

    The model is on the CPU. The data themselves are not needed before `run.data` opens them.

    Nothing in the folder is executed. But the run's settings may name a network of the user's own
    as `module:factory`, and to build it imports that module. This is done where you made the run
    yourself, on this machine, with the module that lies there now. For any other run it is refused
    unless you say that you trust the module.

    Args:
        folder: the run's.
        trust_code: import the modules that the run names, whoever made it.

    Raises:
        ValueError: there is no run, one of a newer format, a damaged file, a run that names code
            and is not known to be yours, or a network of the user's own that is not there, or not
            as it was.
    """
    folder = Path(folder)
    file = trusted_config(folder, trust_code=trust_code)
    if model_code(file.config):  # a network that reads its own numbers cannot be built without them
        vae = built(folder, file)
        weights, epoch = read_weights(folder, file, vae)
    else:
        weights, epoch = read_weights(folder, file, without_numbers(folder, file))
        vae = built(folder, file)
    vae.load_state_dict(weights)
    if isinstance(vae, SemiSupervisedVAE):
        vae.alpha *= file.data.data_per_label or 1.0
    vae.eval()
    return Run(folder, *file, epoch, _num_parameters(vae), vae)


def _num_parameters(vae: DiscreteVAE) -> int:
    return sum(weight.numel() for weight in vae.parameters())
