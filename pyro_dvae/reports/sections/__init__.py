"""The sections of a page, one function each: it takes a run, and returns a `Section` or None.

To add a section, write such a function in the file of its group, and add it to `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyro_dvae.reports.blocks import Section
from pyro_dvae.reports.opened import Reported
from pyro_dvae.reports.sections.bounds import bounds
from pyro_dvae.reports.sections.categories import categories
from pyro_dvae.reports.sections.latents import latents
from pyro_dvae.reports.sections.learning import learning
from pyro_dvae.reports.sections.overview import environment, overview
from pyro_dvae.reports.sections.pictures import reconstructions, samples
from pyro_dvae.reports.sections.problems import findings
from pyro_dvae.reports.sections.surprising import surprising
from pyro_dvae.reports.sections.traversal import traversal

SECTIONS: tuple[Callable[[Reported], Section | None], ...] = (
    overview,
    findings,
    learning,
    bounds,
    latents,
    categories,
    traversal,
    reconstructions,
    samples,
    surprising,
    environment,
)
"""The sections in the order of the page."""
