"""How Sphinx builds these pages. Every cell in them is run, and a failure ends the build.

pip install '.[docs]'
sphinx-build -W --keep-going docs docs/_build/html
"""

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import kernel  # noqa: E402

project = "pyro_dvae"
author = "the authors of pyro_dvae"
copyright = "2026, the authors of pyro_dvae"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "api",
    "command_line",
    "console",
    "readmes",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = True
smartquotes = False  # they turn --option into a dash
toc_object_entries = False

html_theme = "sphinx_book_theme"
html_title = "pyro_dvae"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}

# --- Markdown, and the cells in it ---

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_merge_streams = True
kernel.prepare(Path(tempfile.mkdtemp(prefix="pyro-dvae-docs-")), HERE.parent)

# Formulas are drawn by MathJax from a public server. To read the pages without a network, run
# `npm install mathjax@3`, and name its file es5/tex-svg.js, which needs no other, at build time.
if "PDVAE_MATHJAX" in os.environ:
    html_static_path.append(os.environ["PDVAE_MATHJAX"])
    mathjax_path = Path(os.environ["PDVAE_MATHJAX"]).name

# --- The API, from docstrings ---

autodoc_typehints = "none"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "exclude-members": "extra_repr"}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
# The pages link to no inventory of another project, so that they can be built without a network.
nitpick_ignore_regex = [(r"py:.*", r"(?!pyro_dvae\.).*")]
