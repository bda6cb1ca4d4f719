"""The page of a whole node, from what the driver answers to the text that Prometheus reads."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from otelgpu.config import SourceChoice
from otelgpu.glance import look
from otelgpu.sources.simulated.models import MODELS
from tests.conftest import Golden
from tests.fakenvml import models
from tests.harness import Node, config, lines_of, values

OWN = re.compile(r"^(# (HELP|TYPE) )?otelgpu_(process|snapshot|sweep|build)")


@pytest.mark.parametrize("name", sorted(models.MAKERS))
def test_the_page_of_each_model_is_as_reviewed(name: str, node: Callable[..., Node], golden: Golden) -> None:
    """A change of any series, label or number of any model is seen and meant."""
    page = node(models.MAKERS[name]()).settled_page()

    golden(f"page/{name}.txt", "".join(f"{line}\n" for line in page.splitlines() if not OWN.match(line)))


def test_sixty_four_gpus_are_all_on_the_page(node: Callable[..., Node]) -> None:
    """The largest machines there are have more GPUs than dcgm-exporter's 32."""
    page = node(models.h100(64)).page()

    assert list(values(page, "DCGM_FI_DEV_GPU_TEMP")) == [str(index) for index in range(64)]
    assert len({line.labels["UUID"] for line in lines_of(page) if line.name == "DCGM_FI_DEV_GPU_TEMP"}) == 64


SIMULATED = sorted([*MODELS, *(f"{name}-mig" for name, model in MODELS.items() if model.layout)])


@pytest.mark.parametrize("compat", ["4.8.2", "4.9"])
@pytest.mark.parametrize("spec", SIMULATED)
def test_prometheus_takes_the_page_of_every_simulated_model(
    spec: str, compat: Literal["4.8.2", "4.9"], promtool: Path
) -> None:
    """Prometheus drops a whole page for one label that stands twice."""
    settings = config(SourceChoice("simulated", spec), fields=("all",), compat=compat)
    page = look(settings, {}).page
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    lines = lines_of(page.decode())

    assert b"error while linting" not in checked.stderr
    assert len({(line.name, *sorted(line.labels.items())) for line in lines}) == len(lines)
