"""deploy/helm/otelgpu: what comes out of it for each file of values in its folder ci/."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from otelgpu import __version__
from tests.conftest import ROOT
from tests.deploy import helm, kustomize
from tests.deploy.checks import misfits, problems
from tests.deploy.containers import container, containers, daemonset, environ_of
from tests.deploy.gotemplate import FUNCTIONS, Chart, TemplateError, parse

VALUES = [path.name.removesuffix("-values.yaml") for path in helm.VALUES]
Json = dict[str, Any]


def rendered(name: str) -> list[Json]:
    return helm.render(helm.values_of(helm.CHART / "ci" / f"{name}-values.yaml"))[0]


def by_name(objects: list[Json]) -> list[Json]:
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


def program() -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed")
    return found


@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_takes_what_the_chart_makes(name: str) -> None:
    """Each of these is a way of installing it that must not fail at the user's."""
    objects = rendered(name)

    assert list(problems(objects)) == []
    assert list(misfits(objects)) == []


@pytest.mark.parametrize("name", VALUES)
def test_helm_renders_the_same(name: str) -> None:
    """What the other tests look at is what `helm install` would install."""
    values = helm.CHART / "ci" / f"{name}-values.yaml"
    command = [program(), "template", "gpu", str(helm.CHART), "--namespace", "monitoring"]
    command += ["--kube-version", "1.31.0", "--values", str(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert by_name([one for one in yaml.safe_load_all(done.stdout) if one]) == by_name(rendered(name))


def test_helm_finds_nothing_to_complain_of() -> None:
    """Its own linter."""
    done = subprocess.run(
        [program(), "lint", "--strict", str(helm.CHART)], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_and_the_manifests_are_alike() -> None:
    """Two ways of installing one thing, whose defaults must not drift apart."""
    base = kustomize.build(ROOT / "deploy" / "kubernetes" / "overlays" / "pods")
    ours = rendered("default")
    theirs, mine = (daemonset(objects)["spec"]["template"]["spec"] for objects in (base, ours))
    there, here = (container(objects) for objects in (base, ours))
    environ = environ_of(here)

    for key in ("affinity", "tolerations", "priorityClassName", "automountServiceAccountToken", "volumes"):
        assert mine[key] == theirs[key], key
    assert here["securityContext"] == there["securityContext"]
    assert here["volumeMounts"] == there["volumeMounts"]
    assert environ_of(there).items() <= environ.items()
    assert set(environ) - set(environ_of(there)) == {"OTELGPU_SERVER_LISTEN", "OTELGPU_KUBERNETES_SOCKET"}
    for probe in ("livenessProbe", "readinessProbe"):
        expected = copy.deepcopy(there[probe])
        expected["httpGet"]["scheme"] = "HTTP"
        assert here[probe] == expected


def test_the_chart_is_scraped_as_the_manifests_are() -> None:
    """Labels of otelgpu's own pod must not stand for whoever uses a GPU, in either way."""
    base = kustomize.build(ROOT / "deploy" / "kubernetes" / "overlays" / "prometheus-operator")
    monitors = [
        one["spec"]["endpoints"]
        for objects in (base, helm.render({"serviceMonitor": {"enabled": True}})[0])
        for one in objects
        if one["kind"] == "ServiceMonitor"
    ]

    assert monitors[1] == [{**monitors[0][0], "scheme": "http"}]
    assert monitors[0][0]["honorLabels"] is True
    assert monitors[0][0]["relabelings"][:2] == [
        {"targetLabel": "job", "replacement": "otelgpu"},
        {"action": "labeldrop", "regex": "container|namespace|pod"},
    ]


def test_the_chart_has_the_version_of_the_program() -> None:
    """AppVersion is the tag of the image that is pulled."""
    about = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())

    assert about["appVersion"] == __version__


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kubernetes": {"enablePodLabel": True}}, "'enablePodLabel' was unexpected"),
        ({"processes": {"by": "pods"}}, "'pods' is not one of"),
        ({"otlp": {"endpoint": "collector:4317"}}, "'collector:4317' does not match"),
        ({"tlsServerConfig": {"enabled": True}}, "tlsServerConfig.existingSecret: the name of a Secret"),
        (
            {"tlsServerConfig": {"enabled": True, "existingSecret": "a"}, "webConfig": {"existingSecret": "b"}},
            "only one",
        ),
        ({"service": {"port": 9401, "address": ":9400"}}, "service.address: :9400 does not end in service.port, :9401"),
        ({"customMetrics": "x", "arguments": ["-f", "/x.csv"]}, "customMetrics and arguments -f: only one"),
        ({"customMetrics": "x", "arguments": ["--fields=all"]}, "customMetrics and arguments --fields=all: only one"),
        (
            {"serviceMonitor": {"enabled": True}, "service": {"enable": False}},
            "serviceMonitor.enabled needs service.enable",
        ),
        (
            {"service": {"address": "127.0.0.1:9400"}},
            "neither the kubelet's probes nor Prometheus reach 127.0.0.1:9400",
        ),
        (
            {"webConfig": {"existingSecret": "w"}, "serviceMonitor": {"enabled": True}},
            "serviceMonitor.scheme: http or https",
        ),
        ({"kubernetes": {"enabled": False, "enablePodUID": True}}, "kubernetes.enabled: without it there are no pods"),
        ({"kubernetes": {"enabled": False}, "kubernetesDRA": {"enabled": True}}, "kubernetes.enabled: without it"),
        (
            {"serviceAccount": {"create": False}, "kubernetesDRA": {"enabled": True}},
            "serviceAccount.name: without an account",
        ),
        ({"networkPolicy": {"enabled": True, "from": []}}, "[] should be non-empty"),
        ({"networkPolicy": {"enabled": True, "from": None}}, "networkPolicy.from: who may reach the page"),
        ({"rollingUpdate": {"maxSurge": 1}}, "exactly one of them to be 0"),
        ({"rollingUpdate": {"maxUnavailable": "0%"}}, "exactly one of them to be 0"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "'app.kubernetes.io/name' should not be valid"),
        ({"podLabels": {"app.kubernetes.io/instance": "x"}}, "'app.kubernetes.io/instance' should not be valid"),
        ({"dcgm": {"address": "engine:5555"}}, "dcgm.address: without dcgm.enabled"),
        ({"dcgm": {"enabled": True}, "processes": {"by": "pod"}}, "processes.by: DCGM does not tell"),
        ({"mig": {"sysAdmin": True}}, "mig.sysAdmin: it is another way than CDI"),
        ({"mig": {"monitor": True, "sysAdmin": True}, "cdi": {"enabled": True}}, "mig.sysAdmin: it is another way"),
        ({"dcgm": {"enabled": True}, "mig": {"monitor": True, "sysAdmin": True}}, "mig.sysAdmin: DCGM tells"),
        ({"dcgm": None}, "'dcgm' is a required property"),
        ({"mig": {"sysAdmin": None}}, "'sysAdmin' is a required property"),
        ({"image": {"repository": ""}}, "'' should be non-empty"),
        ({"extraEnv": [{"value": "x"}]}, "'name' is a required property"),
        ({"extraEnv": [{"name": "PORT", "value": 1}]}, "1 is not of type 'string'"),
        ({"podAnnotations": {"checksum/files": "x"}}, "'checksum/files' should not be valid"),
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: Json, said: str, tmp_path: Path) -> None:
    """When it is installed, not when the pods do not start; and by the real helm for the same reason."""
    with pytest.raises((jsonschema.ValidationError, TemplateError)) as caught:
        helm.render(values)
    assert said in str(caught.value)
    if (found := shutil.which("helm")) is not None:
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        command = [found, "template", "gpu", str(helm.CHART), "--kube-version", "1.31.0", "--values", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

        assert done.returncode != 0


@pytest.mark.parametrize(
    ("overlay", "values"),
    [("dcgm", {"dcgm": {"enabled": True}}), ("cdi", {"cdi": {"enabled": True}}), ("mig", {"mig": {"monitor": True}})],
    ids=str,
)
def test_a_value_does_what_the_overlay_of_its_name_does(overlay: str, values: Json) -> None:
    """Image, engine, rights and annotations are written down twice."""
    theirs = kustomize.build(ROOT / "deploy" / "kubernetes" / "overlays" / overlay)
    ours = helm.render({"kubernetes": {"enabled": False}, **values})[0]
    there, here = (containers(objects) for objects in (theirs, ours))
    annotations = [daemonset(objects)["spec"]["template"]["metadata"]["annotations"] for objects in (theirs, ours)]
    rest = {"imagePullPolicy": "IfNotPresent"}

    assert annotations[0].items() == annotations[1].items() - {("checksum/files", annotations[1]["checksum/files"])}
    assert [one["name"] for one in here] == [one["name"] for one in there]
    for one, other in zip(here, there, strict=True):
        if one["name"] != "otelgpu":
            assert one == other | rest
    assert container(ours)["securityContext"] == container(theirs)["securityContext"]
    assert environ_of(container(theirs)).items() <= environ_of(container(ours)).items()
    assert container(ours).get("volumeMounts") == container(theirs).get("volumeMounts")


def test_a_variable_of_the_user_goes_over_that_of_the_chart() -> None:
    """Twice in a list, one of the two would be lost when it is applied again; Helm's users expect theirs to win."""
    values: Json = {
        "cdi": {"enabled": True},
        "extraEnv": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0,1"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "OTHER", "value": "1"},
        ],
    }
    names = [one["name"] for one in container(helm.render(values)[0])["env"]]
    environ = environ_of(container(helm.render(values)[0]))

    assert len(names) == len(set(names))
    assert set(names) == {one["name"] for one in container(helm.render({})[0])["env"]} | {"OTHER"}
    assert (environ["NVIDIA_VISIBLE_DEVICES"], environ["NODE_NAME"], environ["OTHER"]) == ("0,1", "otelgpu-x7", "1")


def test_a_value_that_is_left_blank_counts_as_nothing() -> None:
    """`podLabels:` with nothing behind it takes the default away; where that cannot be, the schema says so."""
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    blank: Json = {
        "tlsServerConfig": {"enabled": True, "existingSecret": "tls"},
        **{name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards", "dcgm", "otlp")},
    }
    for path in paths(yaml.safe_load((helm.CHART / "values.yaml").read_text())):
        step, given = schema, blank
        *sections, last = path.split(".")
        for key in sections:
            step, given = step["properties"][key], given.setdefault(key, {})
        if last not in step.get("required", ()):
            given.setdefault(last, None)
    objects = helm.render(blank)[0]

    assert blank["podLabels"] is blank["serviceMonitor"]["additionalLabels"] is blank["service"]["address"] is None
    assert list(problems(objects)) == list(misfits(objects)) == []


def test_no_certificate_is_asked_of_clients_where_the_values_say_so() -> None:
    """NoClientCert with an authority for clients is a contradiction that the program refuses at its start."""
    tls: Json = {"enabled": True, "existingSecret": "tls"}
    plain, said = (helm.render({"tlsServerConfig": {**tls, "clientAuthType": one}})[0] for one in ("", "NoClientCert"))

    assert said == plain
    assert "httpGet" in container(said)["livenessProbe"]


def test_a_version_may_name_its_build() -> None:
    """Flux packs a chart out of Git as 0.1.0+<commit>, and neither a label nor a tag of an image may have a plus."""
    (made,) = (one for one in helm.render({}, build="+1a2b3c")[0] if one["kind"] == "DaemonSet")
    labels = made["metadata"]["labels"]

    assert labels["helm.sh/chart"] == f"otelgpu-{__version__}_1a2b3c"
    assert labels["app.kubernetes.io/version"] == f"{__version__}_1a2b3c"
    assert container([made])["image"] == f"otelgpu:{__version__}_1a2b3c"


def test_two_releases_have_rights_of_their_own() -> None:
    """Names of ClusterRoles are the cluster's, and a namespace and a release may be cut at another hyphen."""
    values: Json = {"kubernetes": {"enablePodUID": True}, "fullnameOverride": "b-otelgpu"}
    one = helm.render(values, namespace="a")[0]
    other = helm.render({**values, "fullnameOverride": "otelgpu"}, namespace="a-b")[0]
    roles = {each["metadata"]["name"] for each in one + other if each["kind"] == "ClusterRole"}

    assert len(roles) == 2


def test_no_right_is_granted_that_is_not_used() -> None:
    """Who uses a GPU is told by its processes without the kubelet too, and then the API server is not asked."""
    objects = helm.render({"kubernetes": {"enabled": False}, "processes": {"by": "pod"}})[0]

    assert daemonset(objects)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert not {"ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in objects}


@pytest.mark.parametrize(
    "arguments", [["-m", "gpus:metrics"], ["--configmap-data=gpus:metrics"], ["-f", "/m.csv"]], ids=str
)
def test_a_list_of_metrics_from_a_configmap_comes_with_the_token(arguments: list[str]) -> None:
    """It is asked of the API server, which wants to know who asks; dcgm-exporter's chart forgets that."""
    objects = helm.render({"arguments": arguments})[0]

    assert daemonset(objects)["spec"]["template"]["spec"]["automountServiceAccountToken"] is (arguments[0] != "-f")
    assert "ClusterRole" not in {one["kind"] for one in objects}


def test_names_may_look_like_numbers_and_labels_may_stand_twice() -> None:
    """YAML takes 2024 for a number, which Kubernetes refuses; a label for all objects may be given for one again."""
    label = {"release": "1"}
    values: Json = {
        "nameOverride": "0x1",
        "fullnameOverride": "1e3",
        "namespaceOverride": "2024",
        "serviceAccount": {"name": "7"},
        "kubernetes": {"enablePodUID": True},
        "otlp": {"enabled": True, "headersSecret": "12", "caSecret": "13"},
        "webConfig": {"existingSecret": "14"},
        "priorityClassName": "15",
        "runtimeClassName": "16",
        "extraHostVolumes": [{"name": "17", "hostPath": "/run"}],
        "extraVolumeMounts": [{"name": "17", "mountPath": "/run/gpu"}],
        "networkPolicy": {"enabled": True},
        "commonLabels": label,
        "podLabels": label,
        "serviceMonitor": {"enabled": True, "scheme": "https", "additionalLabels": {"release": "2"}},
        "prometheusRule": {"enabled": True, "additionalLabels": label},
        "dashboards": {"enabled": True, "labels": label},
    }
    objects = helm.render(values, name="123", namespace="456")[0]
    labels = {one["kind"]: one["metadata"]["labels"]["release"] for one in objects}

    assert list(problems(objects)) == []
    assert list(misfits(objects)) == []
    assert {one["metadata"].get("namespace", "2024") for one in objects} == {"2024"}
    assert labels.pop("ServiceMonitor") == "2"
    assert {*labels.values()} == {"1"}


def test_pods_are_made_anew_when_their_files_change() -> None:
    """The settings are read at the start; without this an upgrade would change nothing."""

    def template(values: Json) -> Json:
        return dict(daemonset(helm.render(values)[0])["spec"]["template"])

    one, other = template({"config": {"labels": {"a": "1"}}}), template({"config": {"labels": {"a": "2"}}})

    assert one != other
    assert template({"config": {"labels": {"a": "1"}}, "dashboards": {"enabled": True}}) == one


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Every value of the chart, as --set names it."""
    if isinstance(value, dict) and value and path not in ("affinity", "dashboards.labels") and "resources" not in path:
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def test_every_value_is_in_the_schema_and_in_the_documentation() -> None:
    """Whoever comes from dcgm-exporter's chart looks up what became of a value."""
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    told = set(re.findall(r"`([a-zA-Z.]+\*?)`", (ROOT / "docs" / "helm.md").read_text()))
    missing = []
    for path in paths(values):
        step = schema
        for key in path.split("."):
            step = step["properties"][key]
        if path not in told and f"{path.rpartition('.')[0]}.*" not in told:
            missing.append(path)

    assert missing == []


def test_the_notes_say_what_to_do() -> None:
    """They are all that somebody sees after an installation."""
    plain = helm.render({})[1]
    guarded = helm.render(
        {"webConfig": {"existingSecret": "w"}, "serviceMonitor": {"enabled": True, "scheme": "https"}}
    )[1]

    by_annotation = helm.render({"podAnnotations": {"prometheus.io/scrape": "true"}})[1]

    assert "http://localhost:9400/metrics" in plain
    assert "Nothing scrapes it yet" not in by_annotation
    assert "needs honor_labels" in by_annotation
    assert "needs honor_labels" in plain
    assert "Nothing scrapes it yet" in plain
    assert "-k https://localhost:9400/metrics" in guarded
    assert "Nothing scrapes it yet" not in guarded


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ uppercase .Values.a }}", "no function or variable 'uppercase'"),
        ("{{ .Values.b }}", "there is no 'b'"),
        ("{{ .Values.nothing }}", "is no text"),
        ("{{ if .Values.a }}x", "if without end"),
        ('{{ printf "%d" 1 }}', "only %s"),
        ("{{ eq .Values.a 1 }}", "not of one kind"),
        ('{{ include "x" . }}', "no template 'x'"),
        ("{{ .Values.a .Values.a }}", "no function"),
    ],
)
def test_the_stand_in_for_helm_is_strict(source: str, said: str) -> None:
    """What it does not know it must not pass over: it would be another chart that is looked at."""
    with pytest.raises(TemplateError) as caught:
        Chart({"templates/x.yaml": source}).render("templates/x.yaml", {"Values": {"a": "1", "nothing": None}})

    assert said in str(caught.value)


def test_the_stand_in_for_helm_has_no_more_than_is_used() -> None:
    """A function that nothing uses is compared with nothing."""
    words: set[str] = set()
    for path in (helm.CHART / "templates").iterdir():
        words.update(re.findall(r"\w+", " ".join(re.findall(r"\{\{.*?\}\}", path.read_text(), re.DOTALL))))

    assert set(FUNCTIONS) - words == set()
    assert [node.word for node in parse("a{{- /* b */ -}} c {{ .d }}")] == ["text", "text", "action", "text"]
