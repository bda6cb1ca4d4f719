"""From texts to a Config: flag over environment over file over OTEL_* over default.

Where two spellings meet, ours goes over the one that is dcgm-exporter's alone: `--interval` over `--collect-interval`,
OTELGPU_SAMPLING_INTERVAL over DCGM_EXPORTER_INTERVAL; but each flag goes over each variable.

Rule 1: every problem of every layer is found before any is reported, also of a value that another one overrides.
Rule 2: the more explicit layer replaces a value whole; lists and labels are not merged.
Rule 3: what takes more than one setting to judge is judged here, once all the values it needs are good.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from msgspec.structs import replace

from otelgpu.config.files import with_counters
from otelgpu.config.given import (
    FILE_VARIABLE,
    HEADERS,
    NAMELESS,
    Files,
    Flag,
    Given,
    Problem,
    from_environ,
    from_flags,
    from_their_environ,
)
from otelgpu.config.keys import Shape
from otelgpu.config.listed import Remark
from otelgpu.config.sdk import from_sdk
from otelgpu.config.settings import Config, Otlp
from otelgpu.config.standard import chosen_exporters, for_logs, from_standard
from otelgpu.config.theirs import EMPTY, defaults, from_their_flags, from_their_variables
from otelgpu.config.values import Address, SourceChoice, check_header_text
from otelgpu.config.words import whole
from otelgpu.errors import ConfigError

MOST_GENERATIONS = 2
MOST_HINTS = 20  # each takes some milliseconds to find

SpecParser = Callable[[str], object]
OTLP = "otlp."
# Settings that have no meaning for log events, or (`events`) the same for both.
METRICS_ONLY = ("interval", "temporality", "histograms", "events")


def load(
    *,
    environ: Mapping[str, str],
    flags: Sequence[Flag] = (),
    config_path: str | None = None,
    parse_spec: SpecParser | None = None,
    more: Iterable[Problem] = (),
    drop_in: bool = False,
    files: Files | None = None,
    again: bool = False,
) -> Config:
    """Make the Config of what the user gave. Raise ConfigError with every problem at once, and with `more` of them.

    `config_path` is the text of --config; without it the file that OTELGPU_CONFIG names is read, if any.
    With `drop_in` the defaults are dcgm-exporter's. `parse_spec` judges the SPEC of simulated:SPEC; it raises
    ValueError with a sentence on what would be right. *files* gets every file that is asked for. With *again* the
    pages are guarded already: their guard judges the web configuration file, and that is no part of these settings.
    """
    files = {} if files is None else files
    files.clear()
    problems: list[Problem] = []
    remarks: list[Remark] = []
    standard = chosen_exporters(environ, problems)
    above = (
        _grouped(_from_file(environ, config_path, problems, files)),
        _grouped((*from_their_environ(environ), *from_their_variables(environ, problems, remarks))),
        _grouped(from_environ(environ, problems)),
        _grouped(from_their_flags(flags, problems, remarks)),
        _grouped(from_flags(flag for flag in flags if flag.key)),
    )
    below = _grouped(defaults() if drop_in else ())
    layers = (below, _grouped(from_standard(environ, standard, problems)), *above)
    values, chosen = _settled(layers, problems, parse_spec)
    config = replace(
        _with_logs(_built(values, chosen), _grouped(for_logs(environ, standard, problems)), above, problems),
        exporters=standard.exporters,
        log_exporters=standard.log_exporters,
        disabled=standard.disabled,
        description=standard.description,
        remarks=tuple(remarks),
    )
    problems += _contradictions(config, chosen)
    named = next(
        (layer["fields"] for layer in reversed(layers) if "fields" in layer), ()
    )  # also a wrong one: all is told at once
    config = with_counters(config, named, problems, files)
    config = config if again else _with_web(config, chosen.get("server.web_config", ()), problems)
    problems += from_sdk(environ)
    problems += more
    if problems:
        raise ConfigError(finished(problems))
    return config


def _with_web(config: Config, given: Iterable[Given], problems: list[Problem]) -> Config:
    """Judge the web configuration file, to tell of all mistakes at once."""
    remarks: list[Remark] = []
    for one in given:
        if path := config.server.web_config:
            from otelgpu.config.webfile import read  # here, for the same reason as below

            asked_by = f"{one.origin} {whole(path)}" if one.got is None else f"{one.place}: {whole(path)}"
            remarks += map(Remark, read(path, asked_by=asked_by, problems=problems).remarks)
    return replace(config, remarks=(*config.remarks, *remarks))


def finished(problems: Iterable[Problem]) -> list[str]:
    """Put problems in order, each once. What may have been meant is looked for where few enough words are unknown.

    Somebody who wrote the fields of another program, a thousand of them, needs no thousand guesses and is not to wait.
    """
    in_order = sorted(problems, key=attrgetter("line"))
    unlike = {(problem.text, problem.tail): problem for problem in reversed(in_order)}
    lines: list[str] = []
    hints = 0
    for problem in reversed(unlike.values()):
        hints += problem.unknown is not None
        lines.append(problem.finished(hint=hints <= MOST_HINTS))
    return lines


def _from_file(
    environ: Mapping[str, str], config_path: str | None, problems: list[Problem], files: Files
) -> Iterator[Given]:
    path, asked_by = config_path, f"--config {whole(config_path or '')}"
    if path is None:
        path = environ.get(FILE_VARIABLE) or None
        asked_by = f"{FILE_VARIABLE}: {whole(path or '')}"
    if path is None:
        return
    from otelgpu.config.yamlfile import from_file  # here, because yaml costs 20 ms and most starts have no file

    yield from from_file(path, asked_by=asked_by, problems=problems, files=files)


def _grouped(given: Iterable[Given]) -> dict[str, list[Given]]:
    groups: dict[str, list[Given]] = {}
    for one in given:
        groups.setdefault(one.setting.key, []).append(one)
    return groups


def _settled(
    layers: Iterable[Mapping[str, list[Given]]], problems: list[Problem], parse_spec: SpecParser | None
) -> tuple[dict[str, object], dict[str, list[Given]]]:
    """Find the value of each setting, and what it was made of: the last of the layers whose text is good."""
    values: dict[str, object] = {}
    chosen: dict[str, list[Given]] = {}
    for layer in layers:
        for key, group in layer.items():
            found = len(problems)
            value = _value(group, problems, parse_spec)
            if len(problems) == found:
                values[key] = value
                chosen[key] = group
    return values, chosen


def _with_logs(
    config: Config,
    standard: Mapping[str, list[Given]],
    above: Iterable[Mapping[str, list[Given]]],
    problems: list[Problem],
) -> Config:
    """Add how log events are sent where that differs: *standard* stands in for what OTEL_* says of the metrics."""
    otlp = [{key: group for key, group in layer.items() if key.startswith(OTLP)} for layer in (standard, *above)]
    values, chosen = _settled(otlp, problems, None)
    for_metrics = {key: config.origin(key) for key in config.origins if key.startswith(OTLP)}
    named = {key.removeprefix(OTLP): value for key, value in values.items()}
    same = {name: getattr(config.otlp, name) for name in METRICS_ONLY}
    logs = replace(Otlp(), **(named | same))
    origins = {key: group[-1].origin for key, group in chosen.items()}
    if logs == config.otlp and all(origins.get(key) == origin for key, origin in for_metrics.items() if key in origins):
        return config
    renamed = {f"logs.{key.removeprefix(OTLP)}": origin for key, origin in origins.items()}
    return replace(config, logs=logs, origins=MappingProxyType({**config.origins, **renamed}))


def _value(group: list[Given], problems: list[Problem], parse_spec: SpecParser | None) -> object:
    """Convert one layer's texts for one setting; what is wrong with them goes to the problems."""
    shape = group[0].setting.shape
    values: list[object] = []
    named: dict[str, object] = {}
    for given in group:
        if _asks_for_nothing(given):
            continue
        try:
            value = _entry(given, parse_spec)
        except ValueError as error:
            problems.append(given.problem(error))
            continue
        values.append(value)
        if shape is Shape.MAPPING:
            if given.name in named:
                problems.append(given.problem("this label is set twice"))
            named[given.name] = value
    if shape is Shape.MAPPING:
        return named
    if shape is Shape.LIST:
        return tuple(values)
    return values[-1] if values else group[0].setting.default


def _asks_for_nothing(given: Given) -> bool:
    """Whether this is a flag with the default of dcgm-exporter's, an empty text: `--hpc-job-mapping-dir=`."""
    return given.setting.key in EMPTY and not given.text and given.origin.startswith("-")


def _entry(given: Given, parse_spec: SpecParser | None) -> object:
    if given.text is None:
        raise ValueError("expected at least one")
    if given.setting.shape is Shape.MAPPING:
        if given.name == NAMELESS:
            raise ValueError("expected NAME=VALUE")
        if given.setting.parse is not None:
            given.setting.parse(given.name)
        if given.setting.key == HEADERS:
            check_header_text(given.text)
    value = given.setting.value(given.text)
    if parse_spec is not None and isinstance(value, SourceChoice) and value.kind == "simulated":
        parse_spec(value.spec)
    return value


def _built(values: Mapping[str, object], chosen: Mapping[str, list[Given]]) -> Config:
    origins: dict[str, str] = {}
    for key, group in chosen.items():
        origins[key] = group[-1].origin
        if group[0].setting.shape is Shape.LIST:
            origins |= {f"{key}[{entry}]": given.origin for entry, given in enumerate(group)}
    config = replace(Config(), origins=MappingProxyType(origins))
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        changed = replace(getattr(config, section), **{name: value}) if section else value
        config = replace(config, **{section or name: changed})
    return config


def _contradictions(config: Config, chosen: Mapping[str, list[Given]]) -> Iterator[Problem]:
    """Judge what takes more than one value. A setting with a problem of its own counts as not set here."""
    yield from _too_early(config, chosen)
    kubernetes = config.kubernetes
    if kubernetes.expire < kubernetes.refresh:
        key = "kubernetes.expire" if "kubernetes.expire" in chosen else "kubernetes.refresh"
        yield chosen[key][-1].problem(
            f"the kubelet's answers would expire (after {kubernetes.expire:g} s) before it is asked again "
            f"(after {kubernetes.refresh:g} s)"
        )
    met: set[Address] = set()
    for address, given in zip(config.server.listen, chosen.get("server.listen", ()), strict=False):
        if address in met and (address.port or address.path):
            yield given.problem("given twice")
        met.add(address)
    for place, given in enumerate(chosen.get("compat", ())):
        if config.compat[place] in config.compat[:place]:
            yield given.problem("given twice")
        elif place == MOST_GENERATIONS:
            yield given.problem("expected at most two generations")
        elif place and config.naming == "semconv":
            yield given.problem("a second generation has no place on a page with naming semconv")
    for given in chosen.get("fields", ()):
        if given.text == "none" and len(config.fields) > 1:
            yield given.problem("none stands alone")


def _too_early(config: Config, chosen: Mapping[str, list[Given]]) -> Iterator[Problem]:
    """Refuse that a reading expires while it may still be reused, or before the next one is due."""
    sampling = config.sampling
    for key, seconds in (("sampling.reuse", sampling.reuse), ("sampling.interval", sampling.interval)):
        if seconds is None or seconds <= sampling.expire_after:
            continue
        if "sampling.expire" in chosen:
            least = f"expected at least {key}, which is {seconds:g} s ({config.origin(key)})"
            yield chosen["sampling.expire"][-1].problem(least)
        else:
            most = f"expected at most sampling.expire, which is {sampling.expire_after:g} s while not set"
            yield chosen[key][-1].problem(most)
    pace = config.dcgm.interval
    if pace is not None and sampling.expire is not None and pace > sampling.expire and "sampling.expire" in chosen:
        least = f"expected at least dcgm.interval, which is {pace:g} s ({config.origin('dcgm.interval')})"
        yield chosen["sampling.expire"][-1].problem(least)
