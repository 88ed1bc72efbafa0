"""Runs: settings, the parts that they name, and the folder that a training leaves behind."""

from pyro_dvae.memory import refuse_bytes
from pyro_dvae.runs.anomalies import ExplainedRow, anomaly_rows, explain_row, explained_table
from pyro_dvae.runs.beside import with_simple_models
from pyro_dvae.runs.blocks import decode_blocks, draw_samples, is_nominal, sample_blocks
from pyro_dvae.runs.checkpoints import GUIDE_STATE, STATE, newest_run, read_state
from pyro_dvae.runs.config import (
    ESTIMATORS,
    Config,
    build_elbo,
    build_vae,
    own_code,
    preparation_of,
)
from pyro_dvae.runs.decoded import NamedRows, decoded_rows, reconstructed_rows, sampled_rows
from pyro_dvae.runs.estimators import estimator_of
from pyro_dvae.runs.filled import (
    Filled,
    column_number,
    fill_blocks,
    fill_rows,
    filled_table,
    num_missing,
    predict_rows,
)
from pyro_dvae.runs.grouped import RunGroup, group_runs
from pyro_dvae.runs.info import RunInfo
from pyro_dvae.runs.log import (
    METRICS,
    read_epochs,
    read_evaluation,
    stored_evaluation,
    training_status,
    write_evaluation,
)
from pyro_dvae.runs.named import (
    beside,
    column_names,
    label_column,
    name_numbered,
    named_labels,
    named_values,
    number_labels,
)
from pyro_dvae.runs.pictures import brightness, example_images, is_image, sample_grid, shade_of
from pyro_dvae.runs.profiled import profile_posterior, profile_rows
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.resolve import check_source, resolve_settings
from pyro_dvae.runs.rows import PreparedRows, model_batch, model_labels
from pyro_dvae.runs.run import Run, inspect_run, load_run
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.save import save_run
from pyro_dvae.runs.scores import (
    Scores,
    encode_blocks,
    posterior_labels,
    score_rows,
)
from pyro_dvae.runs.second_stage import start_guide, start_prior
from pyro_dvae.runs.settings import CONFIG, data_to_json, read_config
from pyro_dvae.runs.sizes import refuse_too_large
from pyro_dvae.runs.splitting import describe_split, split_notes
from pyro_dvae.runs.start import new_model, resume_run, start_run
from pyro_dvae.runs.trackers import (
    MlflowTracker,
    StepTracker,
    TensorBoardTracker,
    Tracker,
    TrackerFactory,
    tracker_factory,
)

__all__ = [
    "CONFIG",
    "ESTIMATORS",
    "GUIDE_STATE",
    "METRICS",
    "STATE",
    "Config",
    "DataRecord",
    "ExplainedRow",
    "Filled",
    "MlflowTracker",
    "NamedRows",
    "PreparedRows",
    "Run",
    "RunGroup",
    "RunInfo",
    "RunTrainer",
    "Scores",
    "StepTracker",
    "TensorBoardTracker",
    "Tracker",
    "TrackerFactory",
    "anomaly_rows",
    "beside",
    "brightness",
    "build_elbo",
    "build_vae",
    "check_source",
    "column_names",
    "column_number",
    "data_to_json",
    "decode_blocks",
    "decoded_rows",
    "describe_split",
    "draw_samples",
    "encode_blocks",
    "estimator_of",
    "example_images",
    "explain_row",
    "explained_table",
    "fill_blocks",
    "fill_rows",
    "filled_table",
    "group_runs",
    "inspect_run",
    "is_image",
    "is_nominal",
    "label_column",
    "load_run",
    "model_batch",
    "model_labels",
    "name_numbered",
    "named_labels",
    "named_values",
    "new_model",
    "newest_run",
    "num_missing",
    "number_labels",
    "own_code",
    "posterior_labels",
    "predict_rows",
    "preparation_of",
    "profile_posterior",
    "profile_rows",
    "read_config",
    "read_epochs",
    "read_evaluation",
    "read_state",
    "reconstructed_rows",
    "refuse_bytes",
    "refuse_too_large",
    "resolve_settings",
    "resume_run",
    "sample_blocks",
    "sample_grid",
    "sampled_rows",
    "save_run",
    "score_rows",
    "shade_of",
    "split_notes",
    "start_guide",
    "start_prior",
    "start_run",
    "stored_evaluation",
    "tracker_factory",
    "training_status",
    "with_simple_models",
    "write_evaluation",
]
