"""Data: read files, arrays and named sets, look at them, split them, and serve them to a model.

`open_source` opens a file, a folder or a named data set, and `as_rows` takes what a program holds.
`scan` looks at the values, `make_splits` splits them into training, validation and test data, and
`PreparedData` serves them to a likelihood.
"""

from pyro_dvae.data.look.columns import column_kinds, given_kinds, mixed_spec, with_categories
from pyro_dvae.data.look.fits import Fit, column_of_names
from pyro_dvae.data.look.report import (
    complaint,
    describe,
    describe_kinds,
    describe_missing,
    suggest,
)
from pyro_dvae.data.look.scan import Scan, scan
from pyro_dvae.data.read.arrays import Array, load_array
from pyro_dvae.data.read.classes import all_numbers, number_by, only_seen
from pyro_dvae.data.read.copies import found_among
from pyro_dvae.data.read.datasets import as_rows
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent
from pyro_dvae.data.read.fingerprints import fingerprint
from pyro_dvae.data.read.idx import read_idx
from pyro_dvae.data.read.labels import class_labels, partial_labels, refuse_gaps
from pyro_dvae.data.read.mnist import DATA_SETS, Images, load_images
from pyro_dvae.data.read.rows import Rows, Source, SubsetRows, TensorRows
from pyro_dvae.data.read.sources import open_source
from pyro_dvae.data.read.torchvision_sets import TORCHVISION_SETS
from pyro_dvae.data.serve.allocate import split
from pyro_dvae.data.serve.binary import BINARIZATIONS, BinaryImages
from pyro_dvae.data.serve.blocks import BlockData
from pyro_dvae.data.serve.choose import choose, refuse_unlike
from pyro_dvae.data.serve.inputs import ServedRows, binary_inputs, check_shape
from pyro_dvae.data.serve.kinds import describe_kind, kind_of, levels_of
from pyro_dvae.data.serve.prepare import POLICIES, Preparation
from pyro_dvae.data.serve.ranges import RangeError
from pyro_dvae.data.serve.served import PreparedData
from pyro_dvae.data.serve.splits import PARTS, Part, Splits, make_splits
from pyro_dvae.data.serve.unseen import refuse_unseen

__all__ = [
    "BINARIZATIONS",
    "DATA_SETS",
    "PARTS",
    "POLICIES",
    "TORCHVISION_SETS",
    "Array",
    "BinaryImages",
    "BlockData",
    "DataError",
    "Extent",
    "Fit",
    "Images",
    "Part",
    "Preparation",
    "PreparedData",
    "RangeError",
    "Rows",
    "Scan",
    "ServedRows",
    "Source",
    "Splits",
    "SubsetRows",
    "TensorRows",
    "all_numbers",
    "as_rows",
    "binary_inputs",
    "check_shape",
    "choose",
    "class_labels",
    "column_kinds",
    "column_of_names",
    "complaint",
    "describe",
    "describe_kind",
    "describe_kinds",
    "describe_missing",
    "extent",
    "fingerprint",
    "found_among",
    "given_kinds",
    "kind_of",
    "levels_of",
    "load_array",
    "load_images",
    "make_splits",
    "mixed_spec",
    "number_by",
    "only_seen",
    "open_source",
    "partial_labels",
    "read_idx",
    "refuse_gaps",
    "refuse_unlike",
    "refuse_unseen",
    "scan",
    "split",
    "suggest",
    "with_categories",
]
