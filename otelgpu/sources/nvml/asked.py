"""Which NVML question answers a field, in NVML's own words: for documentation and messages."""

from collections.abc import Iterator

import pynvml

from otelgpu.sources.nvml.questions import FIELD_VALUES, GPM_METRICS, QUESTIONS, RATES, XID_ERRORS


def asked_by(field_id: int) -> Iterator[str]:
    """List the ways in which a field is asked for, the preferred one first."""
    for value in FIELD_VALUES:
        if value.field_id == field_id and not value.before:  # the id of older drivers has another name by now
            yield _constant("NVML_FI_", value.nvml_id)
    for question in QUESTIONS:
        if any(take.field_id == field_id for take in question.takes):
            yield question.name
    for rate in RATES:
        if rate.field_id == field_id:
            yield " + ".join(_constant("NVML_FI_", counter) for counter, _ in rate.counters)
    for metric in GPM_METRICS:
        if metric.field_id == field_id:
            yield _constant("NVML_GPM_METRIC_", metric.metric_id)
    if field_id == XID_ERRORS:
        yield "nvmlEventSetWait_v2"


def _constant(prefix: str, number: int) -> str:
    """Find the name of one of NVML's numbers; the number itself where pynvml has no name for it."""
    names = [name for name, value in vars(pynvml).items() if name.startswith(prefix) and value == number]
    return names[0] if names else f"{prefix}{number}"
