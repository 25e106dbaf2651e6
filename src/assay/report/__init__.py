"""A study, a run, the atlas, a budget or a coordinate check as one HTML page: plain records in, an offline file out."""

from assay.report.atlas_page import atlas_page, write_atlas_page
from assay.report.budget_page import budget_page, write_budget_page
from assay.report.coordinates_page import coordinates_page, write_coordinates_page
from assay.report.page import run_page, study_page, write_run_page, write_study_page

__all__ = [
    "atlas_page",
    "budget_page",
    "coordinates_page",
    "run_page",
    "study_page",
    "write_atlas_page",
    "write_budget_page",
    "write_coordinates_page",
    "write_run_page",
    "write_study_page",
]
