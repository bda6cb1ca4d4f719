"""Which NVML call answers which field: the tables of the source, by subject.

Rule 1: to add a field: one row in the table of its subject and one in the catalogue. What a row may say stands in
        `rows`.
Rule 2: where several rows answer one series the first is asked. The order of the tables is FIELD_VALUES, QUESTIONS,
        RATES, SUMS, GPM_METRICS.
"""

from otelgpu.fields.process import PROCESS_IDS
from otelgpu.sources.nvml.questions import board, health, identity, nvlink, samples, video
from otelgpu.sources.nvml.questions.nvlink import RATES, SUMS
from otelgpu.sources.nvml.questions.profiling import GPM_METRICS, LATER
from otelgpu.sources.nvml.questions.rows import (
    ALL_LINKS,
    LINKS,
    WINDOW,
    FieldValue,
    GpmMetric,
    LinkSum,
    Number,
    Question,
    Rate,
    Take,
    Version,
)

__all__ = [
    "ALL_LINKS",
    "FIELD_VALUES",
    "GPM_METRICS",
    "LATER",
    "LINKS",
    "QUESTIONS",
    "RATES",
    "READABLE",
    "SUMS",
    "WINDOW",
    "XID_ERRORS",
    "FieldValue",
    "GpmMetric",
    "LinkSum",
    "Number",
    "Question",
    "Rate",
    "Take",
    "Version",
]

XID_ERRORS = 230  # comes from the event thread, not from a question

FIELD_VALUES = (*board.FIELD_VALUES, *health.FIELD_VALUES, *nvlink.FIELD_VALUES)
QUESTIONS = (
    *board.QUESTIONS,
    *identity.QUESTIONS,
    *health.QUESTIONS,
    *nvlink.QUESTIONS,
    *samples.QUESTIONS,
    *video.QUESTIONS,
)

# Of the catalogue; what a process uses of a GPU stands in none.
READABLE: frozenset[int] = frozenset(
    [row.field_id for row in FIELD_VALUES]
    + [row.field_id for row in RATES]
    + [row.field_id for row in SUMS]
    + [row.field_id for row in GPM_METRICS]
    + [take.field_id for question in QUESTIONS for take in question.takes if take.field_id not in PROCESS_IDS]
    + [XID_ERRORS]
)
