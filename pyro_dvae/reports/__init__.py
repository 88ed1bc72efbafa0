"""Reports: one HTML file that tells what runs are, for people.

The README of `pyro_dvae/reports` shows how to write one, and how to add a section.
"""

from pyro_dvae.reports.opened import Words
from pyro_dvae.reports.page import html_report, write_page, write_report
from pyro_dvae.reports.repeat import Arguments, arguments_of

__all__ = ["Arguments", "Words", "arguments_of", "html_report", "write_page", "write_report"]
