"""Kinds of people's own as targets: Rollouts of Argo Rollouts and Services of Knative, by the rules that are shipped as
examples.

Their definitions alone are there, and the scenarios write the status that the controllers would write.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pykube
import pytest
import yaml

from e2e import harness
from e2e.harness import (
    ROOT,
    Kubectl,
    Manifest,
    Operator,
    as_list,
    fetch,
    fetch_all,
    reading_pod_spec,
    settle,
    versioned_config,
    wait_gone,
    wait_until,
    wait_versioned,
)

EXAMPLES = ROOT / "manifests" / "examples"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT = {"type": "string"}
TEMPLATE = {
    "type": "object",
    "properties": {"metadata": ANYTHING, "spec": {**ANYTHING, "required": ["containers"]}},
}
CONDITION = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        **dict.fromkeys(("type", "status", "reason", "message", "severity"), TEXT),
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}


# -- what there is ---------------------------------------------------------------------------------------------------


def definition(
    group: str, version: str, kind: str, plural: str, spec: Manifest, status: Manifest
) -> Manifest:
    """As the projects define the kind, but for fields that no scenario uses."""
    properties = {
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "properties": status},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                }
            ],
        },
    }


ROLLOUTS = definition(
    "argoproj.io",
    "v1alpha1",
    "Rollout",
    "rollouts",
    {"replicas": {"type": "integer"}, "selector": ANYTHING, "strategy": ANYTHING, "template": TEMPLATE},
    # A generation as text: so it is in the versions that most people have.
    {"observedGeneration": TEXT, "phase": TEXT, "message": TEXT},
)
SERVICES = definition(
    "serving.knative.dev",
    "v1",
    "Service",
    "services",
    {"template": TEMPLATE},
    {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "conditions": {"type": "array", "items": CONDITION},
    },
)


@pytest.fixture(scope="module")
def kinds(kubectl: Kubectl, installed: None) -> Iterator[None]:
    """Both kinds are served."""
    names = [f"crd/{crd['metadata']['name']}" for crd in (ROLLOUTS, SERVICES)]
    kubectl.apply("default", ROLLOUTS, SERVICES)
    kubectl("wait", "--for=condition=Established", *names, "--timeout=60s")
    for crd in (ROLLOUTS, SERVICES):
        spec = crd["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        wait_served(kubectl, path)
    yield
    kubectl("delete", *names)


def wait_served(kubectl: Kubectl, path: str) -> None:
    """Until the API server answers for the kind: a little later than it is established."""
    question = ("get", "--raw", f"{path}?resourceVersion=0")
    wait_until(lambda: kubectl(*question, check=False).returncode == 0, 30, f"{path} is served")


@pytest.fixture
def no_rules(kubectl: Kubectl, kinds: None) -> Iterator[None]:
    """No rule is there; those that a test makes are deleted."""
    yield
    kubectl("delete", "referencerule", "--all")
    for name in ("argo-rollouts", "knative-services"):
        kubectl("delete", "-f", str(EXAMPLES / f"{name}.yaml"), "--ignore-not-found")


@pytest.fixture
def rollouts(operator: Operator, kubectl: Kubectl, no_rules: None) -> None:
    """Rollouts are targets."""
    follow(kubectl, "argo-rollouts")


@pytest.fixture
def services(operator: Operator, kubectl: Kubectl, no_rules: None) -> None:
    """Knative's Services are targets."""
    follow(kubectl, "knative-services")


def follow(kubectl: Kubectl, name: str) -> None:
    """Apply an example as it is shipped, and wait until it counts."""
    kubectl("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
    wait_rule(kubectl, name, "True", "Moves")


def example(name: str, kind: str = "ReferenceRule") -> Manifest:
    """One object of an example."""
    documents = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    (found,) = [document for document in documents if document["kind"] == kind]
    return dict(found)


def wait_rule(kubectl: Kubectl, name: str, status: str, reason: str) -> str:
    """Until the rule, as it is now, says so; its message."""

    def told() -> str | None:
        found = json.loads(kubectl("get", "referencerule", name, "-o", "json").stdout)
        for condition in found.get("status", {}).get("conditions", []):
            about = condition["observedGeneration"] == found["metadata"]["generation"]
            if about and (condition["status"], condition["reason"]) == (status, reason):
                return str(condition["message"])
        return None

    return wait_until(told, 60, f"rule {name} is {reason}")


def rollout(name: str = "web", config: str = "app-cfg") -> Manifest:
    """A Rollout that refers to the ConfigMap three times."""
    pod = reading_pod_spec(config)
    pod["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "strategy": {"canary": {}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**spec, "template": template},
    }


def knative_service(name: str = "web", config: str = "app-cfg") -> Manifest:
    """A Service that refers to the ConfigMap three times."""
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": rollout(name, config)["spec"]["template"]["spec"]}},
    }


ROLLOUT = "rollouts.argoproj.io"
SERVICE = "services.serving.knative.dev"


def get(kubectl: Kubectl, namespace: str, name: str, plural: str = ROLLOUT) -> Manifest:
    """The live object."""
    question = ("get", "-n", namespace, f"{plural}/{name}", "-o", "json", "--show-managed-fields")
    return dict(json.loads(kubectl(*question).stdout))


def generation(kubectl: Kubectl, namespace: str, name: str, plural: str = ROLLOUT) -> int:
    """One more for each change of its spec."""
    return int(get(kubectl, namespace, name, plural)["metadata"]["generation"])


def names_in(found: Manifest) -> list[str]:
    """What its template refers to, field by field."""
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return [
        container["env"][0]["valueFrom"]["configMapKeyRef"]["name"],
        container["envFrom"][0]["configMapRef"]["name"],
        pod["volumes"][0]["configMap"]["name"],
    ]


def wait_moved(kubectl: Kubectl, namespace: str, name: str, version: str, plural: str = ROLLOUT) -> None:
    """Until all its references are to that version."""
    wait_until(
        lambda: names_in(get(kubectl, namespace, name, plural)) == [version] * 3,
        30,
        f"{name} refers to {version}",
    )


def report(kubectl: Kubectl, namespace: str, name: str, phase: str) -> None:
    """As the controller of Rollouts does, having seen the object as it is now."""
    observed = str(generation(kubectl, namespace, name))
    write_status(kubectl, namespace, f"{ROLLOUT}/{name}", {"observedGeneration": observed, "phase": phase})


def report_ready(kubectl: Kubectl, namespace: str, name: str, ready: str) -> None:
    """As Knative does, having seen the object as it is now."""
    condition = {"type": "Ready", "status": ready, "reason": "RevisionFailed", "message": "exit code 1"}
    observed = generation(kubectl, namespace, name, SERVICE)
    others = {"type": "RoutesReady", "status": "True"}
    status = {"observedGeneration": observed, "conditions": [others, condition]}
    write_status(kubectl, namespace, f"{SERVICE}/{name}", status)


def write_status(kubectl: Kubectl, namespace: str, resource: str, status: Manifest) -> None:
    """Through the subresource, as controllers do."""
    patch = json.dumps({"status": status})
    kubectl("patch", "-n", namespace, resource, "--type=merge", "--subresource=status", "-p", patch)


def resource(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> Manifest:
    """The VersionedConfig."""
    found = fetch(api, harness.versioned_configs(api), namespace, name)
    assert found is not None
    return found


def current(api: pykube.HTTPClient, namespace: str, besides: str = "") -> str:
    """The version that is current, once it is another one than `besides`."""

    def told() -> str:
        version = str(resource(api, namespace).get("status", {}).get("currentVersion", ""))
        return version if version != besides else ""

    return wait_until(told, 30, f"another version than {besides or 'none'} is current")


def targets(api: pykube.HTTPClient, namespace: str) -> dict[str, tuple[str, str]]:
    """State and version by kind and name, as the status tells."""
    told = resource(api, namespace).get("status", {}).get("targets", [])
    return {f"{t['kind']}/{t['name']}": (t["state"], t.get("version", "")) for t in told}


def wait_targets(api: pykube.HTTPClient, namespace: str, wanted: dict[str, tuple[str, str]]) -> None:
    """Until the status tells exactly this."""

    def told() -> bool:
        return targets(api, namespace) == wanted

    try:
        wait_until(told, 30, f"the targets are {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {targets(api, namespace)}") from None


def message(api: pykube.HTTPClient, namespace: str, name: str) -> str:
    """What the status says of a target."""
    told = resource(api, namespace)["status"]["targets"]
    return str(next(target.get("message", "") for target in told if target["name"] == name))


def edit(kubectl: Kubectl, namespace: str, mode: str) -> None:
    """Other content."""
    patch = json.dumps({"spec": {"data": {"MODE": mode}}})
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--type=merge", "-p", patch)


def started(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, *names: str, **spec: Any) -> str:
    """A VersionedConfig, and Rollouts that are healthy with its first version, which is returned."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, **spec))
    kubectl.create(namespace, *map(rollout, names))
    first = current(api, namespace)
    for name in names:
        wait_moved(kubectl, namespace, name, first)
        report(kubectl, namespace, name, "Healthy")
    wait_versioned(api, namespace, "app-cfg")
    wait_targets(api, namespace, {f"Rollout/{name}": ("Updated", first) for name in names})
    return first


# -- Rollouts --------------------------------------------------------------------------------------------------------


def test_a_rollout_is_moved_in_one_patch(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """All its references together, and it is through when its controller says so of that generation."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), rollout())
    first = current(api, namespace)
    wait_moved(kubectl, namespace, "web", first)
    assert generation(kubectl, namespace, "web") == 2
    wait_targets(api, namespace, {"Rollout/web": ("Updating", first)})
    assert message(api, namespace, "web") == ".status.observedGeneration is not 2 yet"

    # Of an earlier generation, and then on its way.
    healthy = {"observedGeneration": "1", "phase": "Healthy"}
    write_status(kubectl, namespace, f"{ROLLOUT}/web", healthy)
    report(kubectl, namespace, "web", "Progressing")
    settle(kubectl, api, versions=True)
    wait_targets(api, namespace, {"Rollout/web": ("Updating", first)})
    report(kubectl, namespace, "web", "Healthy")
    wait_versioned(api, namespace, "app-cfg")
    wait_targets(api, namespace, {"Rollout/web": ("Updated", first)})

    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    wait_moved(kubectl, namespace, "web", second)
    report(kubectl, namespace, "web", "Healthy")
    wait_versioned(api, namespace, "app-cfg", besides=first)
    assert generation(kubectl, namespace, "web") == 3
    fields = get(kubectl, namespace, "web")["metadata"]["managedFields"]
    assert "versionedconfig" in {entry["manager"] for entry in fields}


def test_the_next_one_waits_until_the_first_is_healthy(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = started(kubectl, api, namespace, "a", "b")

    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    wait_moved(kubectl, namespace, "a", second)
    report(kubectl, namespace, "a", "Progressing")
    settle(kubectl, api, versions=True)
    assert generation(kubectl, namespace, "b") == 2
    assert targets(api, namespace) == {"Rollout/a": ("Updating", second), "Rollout/b": ("Waiting", first)}

    report(kubectl, namespace, "a", "Healthy")
    wait_moved(kubectl, namespace, "b", second)
    report(kubectl, namespace, "b", "Healthy")
    wait_targets(api, namespace, {f"Rollout/{name}": ("Updated", second) for name in "ab"})


def test_a_degraded_one_rolls_back(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """And the others never get the version."""
    first = started(kubectl, api, namespace, "a", "b")

    edit(kubectl, namespace, "two")
    bad = current(api, namespace, first)
    wait_moved(kubectl, namespace, "a", bad)
    report(kubectl, namespace, "a", "Degraded")
    wait_moved(kubectl, namespace, "a", first)
    assert current(api, namespace) == first
    report(kubectl, namespace, "a", "Healthy")
    wait_targets(api, namespace, {f"Rollout/{name}": ("Updated", first) for name in "ab"})

    (told,) = [v for v in resource(api, namespace)["status"]["versions"] if v["name"] == bad]
    assert (told["result"], told["message"]) == ("Failed", "Rollout a: .status.phase is Degraded")
    assert generation(kubectl, namespace, "b") == 2


def test_a_paused_one_is_not_waited_for(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = started(kubectl, api, namespace, "a", "b")

    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    wait_moved(kubectl, namespace, "a", second)
    report(kubectl, namespace, "a", "Paused")
    wait_moved(kubectl, namespace, "b", second)
    report(kubectl, namespace, "b", "Healthy")
    wait_targets(api, namespace, {"Rollout/a": ("Paused", second), "Rollout/b": ("Updated", second)})


def test_targets_by_kind_and_name(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Neither another Rollout nor a Deployment of the same name moves."""
    chosen = [{"kind": "Rollout", "name": "web"}]
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout={"targets": chosen}))
    kubectl.create(namespace, rollout("web"), rollout("other"), harness.deployment("web", replicas=0))
    first = current(api, namespace)
    wait_moved(kubectl, namespace, "web", first)
    report(kubectl, namespace, "web", "Healthy")
    wait_targets(api, namespace, {"Rollout/web": ("Updated", first)})

    settle(kubectl, api, versions=True)
    assert names_in(get(kubectl, namespace, "other")) == ["app-cfg"] * 3
    assert fetch_all(api, pykube.Deployment, namespace)[0]["metadata"]["generation"] == 1


def test_a_missing_key_stops_the_version(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """The template is looked into, as that of a Deployment is."""
    first = started(kubectl, api, namespace, "web")

    patch = json.dumps({"spec": {"data": {"MODE": None, "OTHER": "x"}}})
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--type=merge", "-p", patch)

    def refused() -> str:
        conditions = resource(api, namespace)["status"]["conditions"]
        return next((str(c["message"]) for c in conditions if c["reason"] == "KeyMissing"), "")

    told = wait_until(refused, 30, "the key is missed")
    assert "Rollout web: spec.containers[c].env[MODE] asks for key MODE" in told
    assert current(api, namespace) == first


def test_an_override_is_respected(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = started(kubectl, api, namespace, "web")
    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    wait_moved(kubectl, namespace, "web", second)
    report(kubectl, namespace, "web", "Healthy")
    wait_targets(api, namespace, {"Rollout/web": ("Updated", second)})

    back = rollout("web", first)
    patch = json.dumps({"spec": {"template": back["spec"]["template"]}})
    kubectl("patch", "-n", namespace, f"{ROLLOUT}/web", "--type=merge", "-p", patch)
    wait_targets(api, namespace, {"Rollout/web": ("Overridden", first)})
    settle(kubectl, api, versions=True)
    assert names_in(get(kubectl, namespace, "web")) == [first] * 3


def test_a_version_that_only_a_rollout_uses_stays(
    rollouts: None, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Over a restart of the operator too."""
    elsewhere = {"targets": [{"kind": "Deployment", "name": "none"}]}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=0, rollout=elsewhere))
    first = current(api, namespace)
    kubectl.create(namespace, rollout("web", first))
    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    edit(kubectl, namespace, "three")
    current(api, namespace, second)
    wait_gone(api, namespace, second)
    assert fetch(api, pykube.ConfigMap, namespace, first) is not None

    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    assert fetch(api, pykube.ConfigMap, namespace, first) is not None
    kubectl("delete", "-n", namespace, f"{ROLLOUT}/web")
    wait_gone(api, namespace, first)


# -- Services of Knative ---------------------------------------------------------------------------------------------


def test_a_service_of_knative(
    services: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    chosen = [{"kind": "Service", "selector": {}}]
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout={"targets": chosen}))
    kubectl.create(namespace, knative_service())
    first = current(api, namespace)
    wait_moved(kubectl, namespace, "web", first, SERVICE)
    assert generation(kubectl, namespace, "web", SERVICE) == 2
    report_ready(kubectl, namespace, "web", "Unknown")
    wait_targets(api, namespace, {"Service/web": ("Updating", first)})
    report_ready(kubectl, namespace, "web", "True")
    wait_targets(api, namespace, {"Service/web": ("Updated", first)})

    edit(kubectl, namespace, "two")
    bad = current(api, namespace, first)
    wait_moved(kubectl, namespace, "web", bad, SERVICE)
    report_ready(kubectl, namespace, "web", "False")
    wait_moved(kubectl, namespace, "web", first, SERVICE)
    report_ready(kubectl, namespace, "web", "True")
    wait_targets(api, namespace, {"Service/web": ("Updated", first)})
    (told,) = [v for v in resource(api, namespace)["status"]["versions"] if v["name"] == bad]
    assert told["message"] == "Service web: Ready is False (RevisionFailed: exit code 1)"


# -- rules -----------------------------------------------------------------------------------------------------------


def test_without_the_right_to_patch(
    operator: Operator, no_rules: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """The target says what the API server says, and moves when the right is given."""
    role = example("argo-rollouts", "ClusterRole")
    role["rules"][0]["verbs"] = ["list", "watch"]
    kubectl.apply(namespace, role, example("argo-rollouts", "ClusterRoleBinding"), example("argo-rollouts"))
    wait_rule(kubectl, "argo-rollouts", "True", "Moves")
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), rollout())
    current(api, namespace)
    wait_targets(api, namespace, {"Rollout/web": ("Failed", "app-cfg")})
    told = message(api, namespace, "web")
    assert told.startswith("its template cannot be changed: ")
    assert (
        f'cannot patch resource "rollouts" in API group "argoproj.io" in the namespace "{namespace}"' in told
    )

    kubectl("apply", "-f", str(EXAMPLES / "argo-rollouts.yaml"))
    wait_moved(kubectl, namespace, "web", current(api, namespace))


def test_a_rule_that_comes_later_and_goes(
    operator: Operator, no_rules: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), rollout())
    wait_versioned(api, namespace, "app-cfg")
    first = current(api, namespace)
    assert targets(api, namespace) == {}

    follow(kubectl, "argo-rollouts")
    wait_moved(kubectl, namespace, "web", first)
    report(kubectl, namespace, "web", "Healthy")
    wait_targets(api, namespace, {"Rollout/web": ("Updated", first)})

    kubectl("delete", "referencerule", "argo-rollouts")
    wait_targets(api, namespace, {})
    edit(kubectl, namespace, "two")
    wait_versioned(api, namespace, "app-cfg", besides=first)
    assert names_in(get(kubectl, namespace, "web")) == [first] * 3


def test_targets_stay_while_a_rule_is_edited_and_over_a_restart(
    rollouts: None, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A target that seemed to be gone would begin anew: `since` tells."""
    first = started(kubectl, api, namespace, "web")
    edit(kubectl, namespace, "two")
    second = current(api, namespace, first)
    wait_moved(kubectl, namespace, "web", second)
    report(kubectl, namespace, "web", "Healthy")
    wait_targets(api, namespace, {"Rollout/web": ("Updated", second)})
    before = resource(api, namespace)["status"]["targets"]
    assert before[0]["previous"] == first

    for number in range(3):
        more = [{"path": f".spec.more{number}", "to": "Secret"}]
        patch = json.dumps({"spec": {"references": more}})
        kubectl("patch", "referencerule", "argo-rollouts", "--type=merge", "-p", patch)
    wait_rule(kubectl, "argo-rollouts", "True", "Moves")
    settle(kubectl, api, versions=True)
    assert resource(api, namespace)["status"]["targets"] == before

    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    assert resource(api, namespace)["status"]["targets"] == before
    assert generation(kubectl, namespace, "web") == 3


def test_what_cannot_be_read_any_more_fails_closed(
    rollouts: None, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """The right to read the kind is gone when the operator starts: no version is collected that a Rollout may use."""
    elsewhere = {"targets": [{"kind": "Deployment", "name": "none"}]}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=0, rollout=elsewhere))
    first = current(api, namespace)
    kubectl.create(namespace, rollout("web", first))

    operator.stop()
    kubectl("delete", "clusterrole", "versionedconfig-argo-rollouts")
    operator.start()
    edit(kubectl, namespace, "two")
    current(api, namespace, first)
    # It tried. Failures that go on are errors in the log, so the right comes back soon.
    refused = f"queue=versions key={namespace}/app-cfg keys=1 status=403"
    wait_until(lambda: refused in operator.log, 30, "the live list is refused")
    assert "rollouts.argoproj.io" in wait_rule(kubectl, "argo-rollouts", "False", "Failing")
    assert fetch(api, pykube.ConfigMap, namespace, first) is not None

    kubectl.apply(namespace, example("argo-rollouts", "ClusterRole"))
    wait_rule(kubectl, "argo-rollouts", "True", "Moves")
    settle(kubectl, api, versions=True)
    assert fetch(api, pykube.ConfigMap, namespace, first) is not None
    kubectl("delete", "-n", namespace, f"{ROLLOUT}/web")
    wait_gone(api, namespace, first, timeout=90)


def test_one_rule_for_each_kind(
    rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Another group's kind of the same name could not be told from it."""
    second = example("argo-rollouts")
    second["metadata"]["name"] = "a-second"
    kubectl.create(namespace, second)

    told = wait_rule(kubectl, "a-second", "False", "Invalid")
    assert "rule argo-rollouts tells of kind Rollout already" in told

    kubectl("delete", "referencerule", "argo-rollouts")
    wait_rule(kubectl, "a-second", "True", "Moves")


def test_refs_shows_them(rollouts: None, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    first = started(kubectl, api, namespace, "web")
    question = ("refs", "configmap", first, "-n", namespace, "-o", "json")
    command = [sys.executable, "-m", "versionedconfig", *question, "--kubeconfig", str(kubectl.kubeconfig)]

    told = json.loads(subprocess.run(command, capture_output=True, timeout=120, check=True).stdout)

    assert {(use["kind"], use["name"], use["holds"]) for use in told["uses"]} == {("Rollout", "web", False)}
    assert len(told["uses"]) == 3


PHASE = {"phase": ".status.phase", "healthy": ["Healthy"]}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "StatefulSet"}, "is moved without a rule"),
        ({"scope": "Cluster"}, "scope must be Namespaced"),
        ({"holds": True}, "holds must not be true"),
        ({"include": [{"fragment": "PodSpec", "at": ".spec.jobs[*].spec"}]}, "whose path has no [*]"),
        ({"workload": {}}, 'missing required field "health"'),
        ({"workload": {"health": {}}}, "give either phase"),
        ({"workload": {"health": {**PHASE, "condition": "Ready"}}}, "give either phase"),
        ({"workload": {"health": {"phase": ".status.phase"}}}, "name at least one phase in healthy"),
        ({"workload": {"health": {"condition": "Ready", "failed": ["a"]}}}, "are for a phase"),
        ({"workload": {"health": {**PHASE, "phase": ".spec.phase"}}}, "spec.workload.health.phase"),
        ({"workload": {"health": PHASE, "observedGeneration": ".status.a[*]"}}, "observedGeneration"),
    ],
)
def test_mistakes_are_refused(kubectl: Kubectl, installed: None, spec: Manifest, said: str) -> None:
    bad = example("argo-rollouts")
    bad["metadata"]["name"] = "bad"
    bad["spec"] |= spec

    done = kubectl("create", "-f", "-", stdin=as_list([bad]), check=False)

    assert done.returncode != 0
    assert said in done.stderr


def test_two_lists_with_one_phase(operator: Operator, no_rules: None, kubectl: Kubectl) -> None:
    """What the API server cannot see, the rule's condition says."""
    bad = example("argo-rollouts")
    bad["spec"]["workload"]["health"]["failed"] = ["Healthy"]
    kubectl.create("default", bad)

    assert "stands twice" in wait_rule(kubectl, "argo-rollouts", "False", "Invalid")
