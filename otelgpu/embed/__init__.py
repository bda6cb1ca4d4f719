"""otelgpu inside somebody else's process: instruments on their MeterProvider, nothing else of theirs touched.

Rule 1: wrong arguments raise, at once and all together; nothing else ever raises into the host.
Rule 2: nothing runs and no driver is asked before the first collection; what runs after it are idle daemon threads.
Rule 3: names are OpenTelemetry's, attributes are those of the device; who uses it is the host's to say.
"""

from otelgpu.embed.observing import Observation, observe

__all__ = ["Observation", "observe"]
