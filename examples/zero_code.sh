#!/bin/sh
# Not a line of code: any Python program reports the GPUs of its machine.
#
#     pip install 'otelgpu[instrumentation]' opentelemetry-distro
#     sh examples/zero_code.sh train.py
#
# OTEL_* variables say where metrics go, as ever; OTELGPU_* variables which GPUs and fields. Of all programs of a user
# on a host that are started like this one reports the GPUs (OTELGPU_EMBED_ONCE=false: each does).
set -eu
: "${OTEL_METRICS_EXPORTER:=console}" "${OTEL_TRACES_EXPORTER:=none}" "${OTEL_LOGS_EXPORTER:=none}"
export OTEL_METRICS_EXPORTER OTEL_TRACES_EXPORTER OTEL_LOGS_EXPORTER
exec opentelemetry-instrument python "$@"
