"""A model server with FastAPI: request counts and GPUs on one Prometheus page.

    pip install fastapi uvicorn 'otelgpu[instrumentation]'
    uvicorn --app-dir examples fastapi_server:app --workers 4
    curl localhost:8000/metrics

With several workers each process has a page of its own. The GPUs are on that of one of them (`once=True`), whichever
is asked first; leave it out where every page is scraped and the series carry the worker.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from otelgpu import GpuInstrumentor

registry = CollectorRegistry()
provider = MeterProvider([PrometheusMetricReader(registry=registry)])
requests = provider.get_meter("server").create_counter("server.requests", unit="{request}")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Observe the GPUs while the server runs; begun in the worker, after any fork."""
    GpuInstrumentor().instrument(meter_provider=provider, once=True)
    yield
    GpuInstrumentor().uninstrument()


app = FastAPI(lifespan=lifespan)


@app.get("/predict")
async def predict(x: float) -> float:
    """Answer as a model would."""
    requests.add(1, {"http.route": "/predict"})
    return 3 * x


@app.get("/metrics")
async def metrics() -> Response:
    """Serve the page. Made in a thread: a collection waits for the driver, for `deadline` at most."""
    page = await run_in_threadpool(generate_latest, registry)
    return Response(page, media_type=CONTENT_TYPE_LATEST)
