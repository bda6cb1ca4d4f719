"""Fields from a ConfigMap (`-m NAMESPACE:NAME`), from a fake API server over real HTTPS to the page and the log."""

import json
import logging
import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from otelgpu import configmap, pause
from otelgpu.config import Config, Flag, load
from otelgpu.configmap import followed
from otelgpu.errors import ConfigError
from tests.fakeapi import ApiServer, Json, configmap_object
from tests.fakenvml import models
from tests.harness import DROP_IN, LIMIT, Node, lines_of, serving, until, values
from tests.test_kubernetes_api import api, papers

__all__ = ["api", "papers"]  # the fixtures

TEMP, UTIL = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL"
HOT = f"{TEMP}, gauge, How hot it is\n"
BUSY = f"{UTIL}, gauge, How busy it is\n"
OBJECT = "/api/v1/namespaces/gpu/configmaps/fields"
ALL = "/api/v1/namespaces/gpu/configmaps"
DENIED = f'{OBJECT}: 403 {OBJECT} is forbidden: User "system:x" cannot get resource'

Follow = Callable[..., Config]


def fields(text: str) -> Json:
    """The ConfigMap that the tests ask for."""
    return configmap_object("fields", metrics=text)


class Changes:
    """What was told of changes, in order."""

    def __init__(self) -> None:
        self._told: queue.Queue[tuple[str, ...]] = queue.Queue()

    def __call__(self, config: Config) -> None:
        self._told.put(tuple(row.name for row in config.counters))

    def next(self) -> tuple[str, ...]:
        """Wait for the next change, and name what is shown from then on."""
        return self._told.get(timeout=LIMIT)

    @property
    def is_empty(self) -> bool:
        """Whether all of them were taken."""
        return self._told.empty()


@pytest.fixture
def changes() -> Changes:
    """What the product tells of changes."""
    return Changes()


def named(api: ApiServer) -> Config:
    """Settings with `-m gpu:fields`."""
    flags = [Flag("-m", "kubernetes.configmap", "gpu:fields")]
    flags += [Flag("--kubernetes-service-account", "kubernetes.service_account", str(api.folder))]
    return load(environ={}, flags=flags)


@pytest.fixture
def follow(api: ApiServer, changes: Changes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Settings with `-m gpu:fields`, followed for as long as the test runs."""
    monkeypatch.setattr(pause, "FIRST", 0.02)
    monkeypatch.setattr(pause, "LONGEST", 0.05)
    monkeypatch.setattr(configmap, "AGAIN", 0.05)
    monkeypatch.setattr(configmap, "PATIENCE", LIMIT)
    with ExitStack() as stack:

        def start(**changed: object) -> Config:
            config = replace(named(api), **changed)
            followed_fields = stack.enter_context(followed(config, api.environ))
            assert followed_fields is not None

            def reload() -> None:
                try:
                    changes(followed_fields.applied(config))
                except ConfigError as error:
                    logging.getLogger("reload").error("%s", error)  # noqa: TRY400 - as the product does

            followed_fields.tell(reload)
            return followed_fields.applied(config)

        yield start


# ---- at start


def test_the_page_shows_what_the_configmap_names(follow: Follow, api: ApiServer, node: Callable[..., Node]) -> None:
    """And nothing else: it stands in place of the file of -f."""
    api.put(fields(f"# ours\n{HOT}"), path="configmaps")
    api.start()
    config = follow()
    page = node(models.h100(2), fields=config.fields, counters=config.counters).page()

    assert {line.name for line in lines_of(page) if line.name.startswith("DCGM_")} == {TEMP}
    assert f"# HELP {TEMP} How hot it is\n" in page
    assert api.requests(OBJECT)[0].status == 200


def _absent(_: ApiServer) -> None:
    """The object was not made."""


def _forbidden(api: ApiServer) -> None:
    api.forbidden.add(OBJECT)


def _no_key(api: ApiServer) -> None:
    api.put(configmap_object("fields", dcgm="x", other="y"), path="configmaps")


def _no_token(api: ApiServer) -> None:
    (api.folder / "token").unlink()


FAULTS: Mapping[Callable[[ApiServer], None], str] = {
    _absent: f'https://SERVER: {OBJECT}: 404 configmaps "fields" not found',
    _forbidden: f"https://SERVER: {DENIED}",
    _no_key: "it has no key metrics, but dcgm, other",
    _no_token: "{folder}/token: No such file or directory; is automountServiceAccountToken true?",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_without_it_the_fields_of_the_settings_are_shown_until_it_is_there(
    fault: Callable[[ApiServer], None],
    follow: Follow,
    api: ApiServer,
    changes: Changes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A role that was forgotten must not hide every GPU; and what is mended is noticed."""
    fault(api)
    api.start()
    config = follow()
    said = [text.replace(f"https://127.0.0.1:{api.port}", "https://SERVER") for text in caplog.messages]

    assert config.counters == ()
    assert config.fields == ("default",)
    (line,) = said
    assert line == (
        f"ConfigMap gpu:fields: {FAULTS[fault].format(folder=api.folder)}; until it is there, these fields are shown: "
        "default"
    )
    with caplog.at_level(logging.INFO):
        api.renew_token("first-token")
        api.forbidden.clear()
        api.put(fields(HOT), path="configmaps")
        assert changes.next() == (TEMP,)
    assert caplog.messages[-1] == "ConfigMap gpu:fields is there again"


def test_a_server_that_does_not_answer_delays_the_start_by_a_moment(
    follow: Follow, api: ApiServer, changes: Changes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as while the network of a node is not there yet, and no longer; the answer may come later."""
    monkeypatch.setattr(configmap, "PATIENCE", 0.05)
    api.put(fields(HOT), path="configmaps")
    api.hang()
    api.start()

    assert follow().fields == ("default",)
    assert ["no answer within 0.05 s" in text for text in caplog.messages] == [True]
    api.let_go()
    assert changes.next() == (TEMP,)


WRONG = f"{HOT}\nDCGM_FI_DEV_GPU_TMP, gauge, x\nDCGM_FI_DEV_POWER_USAGE, gouge, x\n"


def test_wrong_rows_are_told_as_of_a_file(follow: Follow, api: ApiServer, node: Callable[..., Node]) -> None:
    """All at once, with their lines; with `lenient` they are passed over and counted. No row at all is a mistake."""
    api.put(fields(WRONG), path="configmaps")
    api.start()
    with pytest.raises(ConfigError) as caught:
        follow()
    problems = list(caught.value.problems)
    config = follow(lenient=True)
    page = node(models.h100(1), counters=config.counters, skipped_rows=config.skipped_rows, fields=("none",)).page()
    api.put(fields("# nothing\n"), path="configmaps")
    with pytest.raises(ConfigError) as empty:
        follow()

    assert [problem.partition(": ")[0] for problem in problems] == ["ConfigMap gpu:fields:3", "ConfigMap gpu:fields:4"]
    assert "did you mean DCGM_FI_DEV_GPU_TEMP?" in problems[0]
    assert [line.value for line in lines_of(page) if line.name == "otelgpu_config_skipped_rows"] == [2]
    assert [remark.text for remark in config.remarks] == [f"{problem}; the row is passed over" for problem in problems]
    assert list(empty.value.problems) == ["ConfigMap gpu:fields: its key metrics names no field"]


# ---- later


def test_a_change_is_told_and_an_end_costs_nothing(
    follow: Follow, api: ApiServer, changes: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody deletes the object; one of the same namespace that is not ours is no news."""
    api.put(fields(HOT), path="configmaps")
    api.start()
    follow()
    api.is_watched()
    api.put(fields(BUSY), path="configmaps")
    assert changes.next() == (UTIL,)
    api.put(configmap_object("other", metrics=HOT), path="configmaps")
    api.remove("fields", namespace="gpu", path="configmaps")
    until(lambda: "it was deleted" in caplog.text, "the end")
    api.put(fields(HOT + BUSY), path="configmaps")

    assert changes.next() == (TEMP, UTIL)
    assert changes.is_empty
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("it was deleted; the fields stay as they are")


def test_what_changes_before_anybody_is_told_is_not_missed(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the first page some tenths of a second go by, and the next change may be weeks off."""
    monkeypatch.setattr(configmap, "PATIENCE", LIMIT)
    told = queue.Queue[str]()
    api.put(fields(HOT), path="configmaps")
    api.start()
    config = named(api)
    with followed(config, api.environ) as found:
        assert found is not None
        assert [row.name for row in found.applied(config).counters] == [TEMP]
        api.is_watched()
        api.put(fields(BUSY), path="configmaps")
        until(lambda: found._configmap.text == BUSY, "the change")  # noqa: SLF001 - nothing else shows it yet
        found.tell(lambda: told.put("changed"))

        assert told.get(timeout=LIMIT)


def test_the_role_of_their_chart_is_enough(follow: Follow, api: ApiServer, changes: Changes) -> None:
    """It allows to get this one object; without a watch it is asked for again and again."""
    api.forbidden |= {"list", "watch"}
    api.put(fields(HOT), path="configmaps")
    api.start()

    assert [row.name for row in follow().counters] == [TEMP]
    api.put(fields(BUSY), path="configmaps")
    assert changes.next() == (UTIL,)
    assert {asked.status for asked in api.requests(ALL)} == {403}


def test_a_watch_that_ends_or_breaks_is_begun_again(
    follow: Follow, api: ApiServer, changes: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    """What changed in between is not missed; a server that is away is told once, and once that it is back."""
    api.put(fields(HOT), path="configmaps")
    api.start()
    follow()
    api.is_watched()
    api.silently(fields(BUSY), path="configmaps")
    api.end_watches()
    assert changes.next() == (UTIL,)
    api.is_watched()
    api.silently(fields(HOT), path="configmaps")
    api.end_watches(breaks=True)
    assert changes.next() == (TEMP,)
    api.is_watched()
    api.stop()
    until(lambda: "; the fields stay as they are" in caplog.text, "the fault")
    api.silently(fields(BUSY), path="configmaps")
    api.start()

    assert changes.next() == (UTIL,)


def test_the_program_takes_it_from_their_command_line(api: ApiServer, tmp_path: Path) -> None:
    """The whole way: the variable of their chart, the page, and that of another text."""
    api.put(fields(HOT), path="configmaps")
    api.start()
    environ = {"DCGM_EXPORTER_CONFIGMAP_DATA": "gpu:fields", "OTELGPU_KUBERNETES_SERVICE_ACCOUNT": str(api.folder)}
    environ |= api.environ
    with serving(models.h100(1), tmp_path, "--listen=127.0.0.1:0", environ=environ, program=DROP_IN) as it:
        page = it.page()
        api.put(fields(BUSY), path="configmaps")
        until(lambda: UTIL in it.page(), "the change")
        changed = it.page()
        api.put(fields("DCGM_FI_DEV_GPU_TMP, gauge, x"), path="configmaps")
        until(lambda: "otelgpu_config_last_reload_successful 0" in it.page(), "the mistake")
        wrong = it.page()
        api.put(fields(BUSY), path="configmaps")
        until(lambda: "otelgpu_config_last_reload_successful 1" in it.page(), "its end")
        status = it.stop()

    assert {line.name for line in lines_of(page) if line.name.startswith("DCGM_")} == {TEMP}
    for each in (changed, wrong):
        assert {line.name for line in lines_of(each) if line.name.startswith("DCGM_")} == {UTIL}
    assert it.logged("ConfigMap gpu:fields:1: no such field; did you mean DCGM_FI_DEV_GPU_TEMP?") == 1
    assert status == 0


def test_the_program_tells_of_each_mistake_once_and_keeps_what_was_good(api: ApiServer, tmp_path: Path) -> None:
    """A slip of the pen in an object that a thousand nodes follow changes no page but for the gauge that says so."""
    api.put(fields(f"DCGM_A, gauge, x\n{HOT}"), path="configmaps")
    api.start()
    (tmp_path / "s.yaml").write_text("lenient: true\nlog: {format: json}\n")
    flags = ("-m", "gpu:fields", "--kubernetes-service-account", str(api.folder), "--config", str(tmp_path / "s.yaml"))
    with serving(models.h100(1), tmp_path, *flags, environ=api.environ) as it:
        api.put(fields(f"DCGM_B, gauge, x\n{BUSY}"), path="configmaps")
        until(lambda: UTIL in it.page(), "the change")
        api.put(fields("DCGM_C, gauge, x\n"), path="configmaps")
        until(lambda: values(it.page(), "otelgpu_config_last_reload_successful") == {"": 0}, "the mistake")
        kept = it.page()
        api.put(fields(HOT), path="configmaps")
        until(lambda: values(it.page(), "otelgpu_config_last_reload_successful") == {"": 1}, "it is mended")
        mended = it.page()
        assert it.stop() == 0

    (origin,) = (
        line for line in lines_of(mended) if line.name == "otelgpu_config_info" and ":" in line.labels["source"]
    )
    assert (origin.labels["source"], len(origin.labels["hash"])) == ("gpu:fields", 16)
    assert TEMP in mended

    assert UTIL in kept
    assert [it.logged(name) for name in ("DCGM_A", "DCGM_B", "names no field", "those before stay")] == [1] * 4
    assert all(line.startswith("{") for line in it.log)


def test_what_is_said_of_it_is_said_in_the_form_of_the_log(tmp_path: Path) -> None:
    """Whoever reads the log as JSON reads each line so."""
    flags = ("-m=gpu:fields", "--log-format=json", "--listen=127.0.0.1:0")
    environ = {"OTELGPU_KUBERNETES_SERVICE_ACCOUNT": str(tmp_path)}
    with serving(models.h100(1), tmp_path, *flags, environ=environ, program=DROP_IN) as it:
        it.page()
    said = [json.loads(line) for line in it.log if not line.startswith("listening on ")]

    assert ["until it is there" in line["message"] for line in said].count(True) == 1


@pytest.mark.parametrize(
    "text", ["gpu", "gpu:", ":fields", "gpu/fields", "GPU:fields", "gpu:fields:x", "gpu:fields.", "a" * 64 + ":fields"]
)
def test_what_is_no_name_of_a_configmap_is_refused(text: str) -> None:
    """With what would be right."""
    with pytest.raises(ConfigError) as caught:
        load(environ={"DCGM_EXPORTER_CONFIGMAP_DATA": text})

    assert list(caught.value.problems) == [
        f'DCGM_EXPORTER_CONFIGMAP_DATA: expected NAMESPACE:NAME of a ConfigMap, or none, got "{text}"'
        if len(text) <= 60
        else f'DCGM_EXPORTER_CONFIGMAP_DATA: expected NAMESPACE:NAME of a ConfigMap, or none, got "{text[:60]}..." (71 '
        "characters)"
    ]
    assert load(environ={"DCGM_EXPORTER_CONFIGMAP_DATA": "none"}).kubernetes.configmap is None
