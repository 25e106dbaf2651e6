"""A study, a run, the atlas or a budget as one HTML page: plain records in, one self-contained offline file out."""

from assay.report.atlas_page import atlas_page, write_atlas_page
from assay.report.budget_page import budget_page, write_budget_page
from assay.report.page import run_page, study_page, write_run_page, write_study_page

__all__ = [
    "atlas_page",
    "budget_page",
    "run_page",
    "study_page",
    "write_atlas_page",
    "write_budget_page",
    "write_run_page",
    "write_study_page",
]
