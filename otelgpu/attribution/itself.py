"""What otelgpu says about how it finds out who uses the GPUs.

Rule 1: always served, and from plain numbers: no lock, no I/O.
Rule 2: a number that is not known yet is absent.
"""

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otelgpu.attribution.owners import Attribution

Observations = Iterable[Observation]


def create_attribution_instruments(meter: Meter, attribution: Attribution) -> None:
    """Register the instruments of whoever is asked; none when nobody is."""
    sources = tuple(attribution.sources())
    pods, jobs = attribution.pods, attribution.jobs
    rows: list[tuple[str, str, str, Callable[[], Observations]]] = []
    if sources:
        rows = [
            (
                "otelgpu.attribution.up",
                "",
                "Whether the owners of GPUs could be asked for the last time: 1 or 0.",
                lambda: [
                    Observation(int(is_up), {"source": source.name})
                    for source in sources
                    if (is_up := source.is_up) is not None
                ],
            ),
            (
                "otelgpu.attribution.age",
                "s",
                "How long ago the owners of GPUs were last told.",
                lambda: [
                    Observation(age, {"source": source.name}) for source in sources if (age := source.age) is not None
                ],
            ),
        ]
    if pods is not None:
        rows.append(
            (
                "otelgpu.attribution.unmatched_devices",
                "",
                "Device ids of the kubelet's that mean none of the GPUs here.",
                lambda: [Observation(attribution.unmatched, {"source": pods.name})],
            )
        )
    if jobs is not None:
        rows.append(
            (
                "otelgpu.attribution.skipped_files",
                "",
                "Files of the job folder that cannot be read or believed.",
                lambda: [Observation(jobs.skipped, {"source": jobs.name})],
            )
        )
    rows.append(
        (
            "otelgpu.attribution.left_out",
            "",
            "Owners of GPUs that have no series of their own, as there are more than limits.owners* let through.",
            lambda: [Observation(attribution.left_out)],
        )
    )
    if attribution.metas is not None:
        rows.append(
            (
                "otelgpu.attribution.labels_left_out",
                "",
                "Labels of pods on this node that are not shown, as a pod has more than 64.",
                lambda: [Observation(attribution.labels_left_out)],
            )
        )
    for name, unit, description, report in rows:
        meter.create_observable_gauge(name, callbacks=[_callback(report)], unit=unit, description=description)


def _callback(report: Callable[[], Observations]) -> Callable[[CallbackOptions], Observations]:
    return lambda _: report()
