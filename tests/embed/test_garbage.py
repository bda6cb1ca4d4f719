"""Nothing in the environment raises into a host, whatever stands there."""

import pytest

from otelgpu.config import Config
from otelgpu.config.keys import PREFIX, SETTINGS
from otelgpu.embed.arguments import settings_of
from otelgpu.embed.observing import begin
from tests.embed.host import SIMULATED, Host

GARBAGE = (
    *("", " ", "garbage", "null", "None", "true", "-1", "0", "0x10", "\u0661\u0662", "9" * 400, "0-3"),
    *("nan", "inf", "-inf", "1e308", "1e400", "\udcff", "\x01", "\U0001f984" * 10, "[", "{a: b", ",", ",,", "=", "a=b"),
    *(
        "/nonexistent",
        "../../etc/passwd",
        "simulated:999999999xh100",
        "simulated:-1xh100",
        "simulated:",
        "GPU-",
        "MIG-",
    ),
    *("all", "none", "default", "default,all,nothing", "*"),
)


VARIABLES = [PREFIX + key.upper().replace(".", "_") for key in SETTINGS]


@pytest.mark.parametrize("variable", [*VARIABLES, PREFIX, f"{PREFIX}X"])
def test_garbage_in_a_variable_raises_nothing(variable: str) -> None:
    """Of every setting there is, those too that an embedded otelgpu does not look at.

    Most texts count as not set, so that many lead to the same settings: those are observed once.
    """
    observed: list[Config] = []
    for text in GARBAGE:
        environ = {f"{PREFIX}SOURCE": SIMULATED, variable: text}
        settings = settings_of({"deadline": 0.5}, environ)
        if settings in observed:
            continue
        observed.append(settings)
        host = Host()
        watching = begin(host.provider, {"deadline": 0.5}, environ=environ, is_once=False)
        host.collect()
        watching.stop()
        host.provider.shutdown()


def test_garbage_everywhere_raises_nothing() -> None:
    """All settings at once: each counts as not set, and the GPUs are there."""
    for text in ("garbage", "-1", "\udcff"):
        environ = dict.fromkeys(VARIABLES, text)
        host = Host()
        with begin(host.provider, {"source": SIMULATED}, environ=environ, is_once=False):
            assert len(host.points("hw.power")) == 2
        host.provider.shutdown()
