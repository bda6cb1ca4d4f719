"""Profiling values from GPU performance monitoring (GPM): Hopper and newer.

Rule 1: a value is the mean over a window between two samples. A window is at least WINDOW seconds and at most as
        long as the time since the last sweep; the first sweep only opens one.
Rule 2: a device has two sample objects, used in turn and freed with it.
Rule 3: all calls come from the thread of the GPU.
Rule 4: all metrics travel in one request. Where a driver refuses it as a whole, the metrics that drivers learned last
        are left out, and so on; see LATER.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pynvml

from otelgpu.fields import Field
from otelgpu.model import Device, Gap, Missing, Reading
from otelgpu.sources.again import Again
from otelgpu.sources.nvml.errors import gap_of, raise_if_whole
from otelgpu.sources.nvml.handles import Handle
from otelgpu.sources.nvml.plan import Answer, attributes_of, in_kind, told
from otelgpu.sources.nvml.questions import GPM_METRICS, LATER, WINDOW, GpmMetric

Wanted: TypeAlias = tuple[Field, GpmMetric]

WAITS = "a window needs two sweeps"


class GpmWindow:
    """The profiling values of one device. *take* fills a sample object: for a GPU, or for one of its instances."""

    def __init__(
        self,
        device: Device,
        take: Callable[[Any], object],
        clock: Callable[[], float],
    ) -> None:
        self._metrics: list[Wanted] = []
        self._below = math.inf  # metrics from this one on are not known to the driver
        self._device = device
        self._take = take
        self._clock = clock
        self._samples: list[Any] = []
        self._at: float | None = None  # when the newest sample was taken
        self._last: list[Answer] = []
        self._again = Again(clock)
        self._is_refused = False

    def want(self, fields: Iterable[Field]) -> None:
        """Ask for these fields from now on: the window that is open goes on, and holds any of them."""
        by_id = {field.id: field for field in fields}
        is_instance = self._device.instance_id is not None
        before = {field.id for field, _ in self._metrics}
        self._metrics = [
            (by_id[row.field_id], row)
            for row in GPM_METRICS
            if row.field_id in by_id and (row.instance or not is_instance)
        ]
        new = [wanted for wanted in self._metrics if wanted[0].id not in before]
        kept = [answer for answer in self._last if answer.field.id in by_id]
        self._last = kept + told(self._all_missing(new, Gap.FAILED, WAITS))
        self._is_refused = self._is_refused and not new

    def answers(self) -> list[Answer]:
        """Close the window that the last sweep opened, and open the next. DeviceDownError when the GPU is gone."""
        if self._again.is_due():
            self._is_refused = False
            self._below = math.inf
        if not self._metrics or self._is_refused:
            return self._last
        now = self._clock()
        if self._at is not None and now - self._at < WINDOW:
            return self._last  # the window before ended less than WINDOW ago: it is still the newest there can be
        try:
            self._last = self._measured(now)
        except pynvml.NVMLError as error:
            self._at = None
            raise_if_whole(error)
            gap = gap_of(error.value)
            if gap is Gap.UNSUPPORTED:
                self._is_refused = True
                self._again.refused()
            self._last = told(self._all_missing(self._metrics, gap, f"GPM: {error}"))
        return self._last

    def free(self) -> None:
        """Give the sample objects back to the driver. Safe to call twice."""
        samples, self._samples, self._at = self._samples, [], None
        for sample in samples:
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                continue  # the driver is going away and takes its samples with it

    def _measured(self, now: float) -> list[Answer]:
        while len(self._samples) < 2:  # noqa: PLR2004 - the two ends of a window
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
        older, newer = self._samples
        self._take(older)  # the older object is free for use again
        opened, self._at = self._at, now
        self._samples = [newer, older]
        if opened is None:
            return told(self._all_missing(self._metrics, Gap.FAILED, WAITS))
        return told(self._known_answers())

    def _known_answers(self) -> list[Answer]:
        """Ask for all that the driver is not known to refuse; what it refuses now is left out and the rest asked."""
        unknown = [wanted for wanted in self._metrics if wanted[1].metric_id >= self._below]
        reason = "GPM: this driver does not know the metric"
        try:
            answers = self._requested([wanted for wanted in self._metrics if wanted[1].metric_id < self._below])
        except pynvml.NVMLError as error:
            ids = [row.metric_id for _, row in self._metrics if row.metric_id < self._below]
            newest = [first for first in LATER if any(id_ >= first for id_ in ids)]
            if error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT or not newest:
                raise
            self._below = newest[-1]
            self._again.refused()
            return self._known_answers()
        return [*answers, *self._all_missing(unknown, Gap.UNSUPPORTED, reason)]

    def _requested(self, wanted: list[Wanted]) -> list[Answer]:
        if not wanted:
            return []
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = self._samples
        for place, (_, row) in enumerate(wanted):
            request.metrics[place].metricId = row.metric_id
        pynvml.nvmlGpmMetricsGet(request)
        return [self._answer(field, row, request.metrics[place]) for place, (field, row) in enumerate(wanted)]

    def _answer(self, field: Field, row: GpmMetric, metric: Any) -> Answer:  # noqa: ANN401 - c_nvmlGpmMetric_t
        if metric.nvmlReturn != pynvml.NVML_SUCCESS:
            error = pynvml.NVMLError(metric.nvmlReturn)
            raise_if_whole(error)
            # A metric that the driver does not know is an invalid argument too.
            unknown = metric.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT
            gap = Gap.UNSUPPORTED if unknown else gap_of(metric.nvmlReturn)
            return Missing(field, self._device, gap, f"GPM: {error}")
        # GPM gives counters as doubles too.
        return Reading(field, self._device, in_kind(field, metric.value), attributes_of(row.link))

    def _all_missing(self, wanted: Iterable[Wanted], gap: Gap, reason: str) -> list[Answer]:
        return [Missing(field, self._device, gap, reason) for field, _ in wanted]


def is_supported(handle: Handle) -> str | None:
    """Say why a GPU has no GPM; None when it has, or when that cannot be told now: the first sample will tell."""
    try:
        support = pynvml.nvmlGpmQueryDeviceSupport(handle)
    except pynvml.NVMLError as error:
        raise_if_whole(error)
        return None
    return None if support.isSupportedDevice else "GPM needs Hopper or newer; on older GPUs DCGM gives this field"
