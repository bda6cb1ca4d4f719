"""A plain script: observe the GPUs, print what they say.

    pip install otelgpu
    python examples/embed_script.py                                 # the GPUs of this machine
    OTELGPU_SOURCE=simulated:2xh100 python examples/embed_script.py # without any

`otelgpu.observe` registers the GPUs on a MeterProvider. Here that is one of our own which prints; in your program it
is the one you have, with its exporters.
"""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

import otelgpu


def main() -> None:
    """Report for as long as the work takes, and once more at its end."""
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(), export_interval_millis=60_000)
    provider = MeterProvider([reader])
    with otelgpu.observe(provider, fields=["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"]):
        work = sum(number * number for number in range(1_000_000))
        provider.force_flush()
    provider.shutdown()
    print("done:", work)


if __name__ == "__main__":
    main()
