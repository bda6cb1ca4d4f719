# The image of otelgpu, which takes the place of dcgm-exporter's: the same command line, variables, files and port.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag otelgpu .
#
# Nothing runs but on the builder's own processor, so that no image needs an emulator: the first stage fetches what was
# compiled for the other one, and the last has no RUN. BuildKit says itself what BUILDPLATFORM is; so does buildah (and
# podman), but for old releases: --build-arg BUILDPLATFORM=linux/amd64.
#
# Both stages have the same base, so that the environment made in one works in the other. Whoever wants it pinned by
# digest gives --build-arg BASE=python:3.13-slim-trixie@sha256:...; any Debian with python3 and python3-venv does.
ARG BASE=python:3.13-slim-trixie

FROM --platform=$BUILDPLATFORM ${BASE} AS build
WORKDIR /build
COPY requirements-build.lock ./
# Wheels alone: nothing is compiled here, and the hashes are those of all platforms.
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/otelgpu \
    && tools/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes --requirement requirements-build.lock
ARG TARGETARCH
COPY requirements.lock ./
RUN case "$TARGETARCH" in amd64) processor=x86_64 ;; arm64) processor=aarch64 ;; \
        *) echo "no image for TARGETARCH=$TARGETARCH: expected amd64 or arm64" >&2; exit 1 ;; esac \
    && tools/bin/uv pip install --python /opt/otelgpu --python-platform "$processor-unknown-linux-gnu" --no-cache \
        --only-binary :all: --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY otelgpu otelgpu
# Bytecode by hash, and not by time: a builder may change the times when it copies, and every start would compile anew.
RUN tools/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir wheels . \
    && tools/bin/uv pip install --python /opt/otelgpu --no-cache --no-deps --no-index wheels/*.whl \
    && /opt/otelgpu/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/otelgpu/lib \
    && cp -r otelgpu/data /etc/dcgm-exporter

# Named although it goes without saying: buildah 1.28 would take the first stage's.
# hadolint ignore=DL3065
FROM --platform=$TARGETPLATFORM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="otelgpu" \
      org.opencontainers.image.description="GPU exporter: dcgm-exporter's Prometheus page and OTLP from the same readings" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/otelgpu /opt/otelgpu
# Where dcgm-exporter's image has it: manifests name it by its path.
COPY --from=build /opt/otelgpu/bin/dcgm-exporter /usr/bin/dcgm-exporter
COPY --from=build /etc/dcgm-exporter /etc/dcgm-exporter
# The NVIDIA runtime reads the last two: all GPUs of the node, and of the driver no more than NVML.
ENV PATH=/opt/otelgpu/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
USER 65534:65534
EXPOSE 9400
# For Docker alone; Kubernetes asks /healthz and /readyz itself. With another address or TLS give --health-cmd.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9400/healthz', timeout=4)"]
# A manifest for dcgm-exporter names no command. Whoever wants otelgpu's own defaults, or another command of it, says so:
# `command: [otelgpu]`, `docker run --entrypoint otelgpu IMAGE doctor`.
ENTRYPOINT ["dcgm-exporter"]
