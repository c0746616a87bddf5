"""People's own kinds: a ReferenceRule makes their objects hold, says whether it counts, and never harms what it is not
about."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pykube
import pytest

from e2e.harness import (
    IN_USE,
    OPERATOR_NAMESPACE,
    Kubectl,
    Manifest,
    Operator,
    as_list,
    config_map,
    custom_kind,
    fetch,
    finalizers,
    pod,
    reading_pod_spec,
    secret,
    settle,
    unscheduled,
    wait_gone,
    wait_protected,
    wait_until,
)

GROUP = "e2e.example.com"


@pytest.fixture
def widgets(kubectl: Kubectl, installed: None) -> Iterator[str]:
    """A kind of somebody's own, its plural."""
    kubectl.apply("default", custom_kind(GROUP, "Widget", "widgets", "Namespaced"))
    kubectl("wait", "--for=condition=Established", f"crd/widgets.{GROUP}", "--timeout=60s")
    yield "widgets"
    kubectl("delete", "referencerule", "--all")
    kubectl("delete", "crd", f"widgets.{GROUP}")
    kubectl("delete", "clusterrole,clusterrolebinding", "e2e-widgets", "--ignore-not-found")


def rule(name: str = "widgets", **spec: Any) -> Manifest:
    defaults = {
        "group": GROUP,
        "version": "v1",
        "kind": "Widget",
        "plural": "widgets",
        "holds": True,
        "references": [
            {"path": ".spec.tls[*].secretName", "to": "Secret"},
            {
                "path": ".spec.config.name",
                "kindField": {"default": "ConfigMap"},
                "namespace": ["namespace", "own"],
            },
        ],
    }
    return {
        "apiVersion": "versionedconfig.io/v1alpha1",
        "kind": "ReferenceRule",
        "metadata": {"name": name},
        "spec": {**defaults, **spec},
    }


def widget(name: str = "w", **spec: Any) -> Manifest:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def grant(kubectl: Kubectl) -> None:
    """What the rule's condition asks for."""
    kubectl("create", "clusterrole", "e2e-widgets", "--verb=list,watch", f"--resource=widgets.{GROUP}")
    account = f"--serviceaccount={OPERATOR_NAMESPACE}:versionedconfig"
    kubectl("create", "clusterrolebinding", "e2e-widgets", "--clusterrole=e2e-widgets", account)


def wait_ready(kubectl: Kubectl, status: str, reason: str, name: str = "widgets") -> str:
    """Until the rule says so; its message."""
    path = "{.status.conditions[0].status} {.status.conditions[0].reason}|{.status.conditions[0].message}"

    def told() -> str | None:
        said = kubectl("get", "referencerule", name, "-o", f"jsonpath={path}").stdout
        head, _, message = said.partition("|")
        return message if head == f"{status} {reason}" else None

    return wait_until(told, 60, f"the rule is {reason}")


def test_a_kind_of_ones_own_holds(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    grant(kubectl)
    kubectl.create(namespace, secret("cert"), config_map("conf"), config_map("free"))
    kubectl.create(namespace, widget(tls=[{"secretName": "cert"}], config={"name": "conf"}))
    kubectl.create(namespace, rule())

    wait_ready(kubectl, "True", "InForce")
    wait_protected(api, namespace, "cert", kind=pykube.Secret)
    wait_protected(api, namespace, "conf")
    kubectl("delete", "-n", namespace, "secret/cert", "configmap/conf", "--wait=false")
    settle(kubectl, api)
    assert IN_USE in finalizers(fetch(api, pykube.Secret, namespace, "cert"))

    # The object lets go of one, the rule's deletion of the other.
    kubectl("patch", "-n", namespace, "widget/w", "--type=merge", "-p", '{"spec":{"tls":null}}')
    wait_gone(api, namespace, "cert", kind=pykube.Secret)
    kubectl("delete", "referencerule", "widgets")
    wait_gone(api, namespace, "conf")


def test_a_rule_without_the_right_to_read_its_kind_says_so_and_harms_nobody(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    kubectl.create(namespace, config_map("conf"), widget(config={"name": "conf"}))
    kubectl.create(namespace, rule())

    message = wait_ready(kubectl, "False", "Forbidden")
    assert f"needs list and watch on widgets.{GROUP}" in message
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
    kubectl("delete", "-n", namespace, "pod/holder")
    wait_gone(api, namespace)

    grant(kubectl)
    wait_ready(kubectl, "True", "InForce")
    wait_protected(api, namespace, "conf")


def test_objects_that_are_not_as_the_rule_thinks(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    grant(kubectl)
    odd = [
        widget("odd-1", tls="text"),
        widget("odd-2", tls=[None, 7, {"secretName": {"a": 1}}], config=[]),
        widget("odd-3", config={"name": "x", "kind": "Pod"}),
        widget("good", config={"name": "conf"}),
    ]
    kubectl.create(namespace, config_map("conf"), *odd)
    kubectl.create(namespace, rule())

    wait_protected(api, namespace, "conf")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"references": []}, "there is nothing in it"),
        ({"references": [{"path": "spec.name", "to": "Secret"}]}, "spec.references[0].path"),
        ({"references": [{"path": ".spec.name"}]}, "give either to"),
        ({"references": [{"path": ".spec.name", "to": "Secret", "kindField": {}}]}, "give either to"),
        ({"references": [{"path": ".spec.name", "to": "Pod"}]}, 'supported values: "ConfigMap", "Secret"'),
        (
            {"include": [{"fragment": "Other", "at": ".spec"}]},
            'supported values: "PodSpec", "PersistentVolumeSpec"',
        ),
        ({"plural": "Widgets"}, "spec.plural"),
        ({"group": "a b/../x"}, "spec.group"),
        (
            {"references": [{"path": ".spec.n", "to": "Secret", "namespace": [".spec.items[*].ns"]}]},
            "spec.references[0].namespace[0]",
        ),
    ],
)
def test_mistakes_are_refused(kubectl: Kubectl, installed: None, spec: dict[str, Any], message: str) -> None:
    done = kubectl("create", "-f", "-", stdin=as_list([rule("bad", **spec)]), check=False)

    assert done.returncode != 0
    assert message in done.stderr


def test_a_contradiction_that_only_the_operator_can_see(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    both = [{"path": ".spec.a", "to": "Secret"}, {"path": ".spec.a[*]", "to": "Secret"}]
    kubectl.create(namespace, rule(references=both))

    assert "list" in wait_ready(kubectl, "False", "Invalid")


def test_what_was_in_force_fails_closed_over_a_restart(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    """The right to read the kind is gone when the operator starts: nothing is released that the rule may hold."""
    grant(kubectl)
    kubectl.create(namespace, config_map("conf"), widget(config={"name": "conf"}), rule())
    wait_ready(kubectl, "True", "InForce")
    wait_protected(api, namespace, "conf")

    operator.kill()
    kubectl("delete", "clusterrole", "e2e-widgets")
    operator.start()
    kubectl("delete", "-n", namespace, "configmap/conf", "--wait=false")
    wait_ready(kubectl, "False", "Failing")
    time.sleep(3 * operator.linger_seconds)
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "conf"))

    kubectl("create", "clusterrole", "e2e-widgets", "--verb=list,watch", f"--resource=widgets.{GROUP}")
    wait_ready(kubectl, "True", "InForce")
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "conf"))
    kubectl("delete", "-n", namespace, "widget/w")
    wait_gone(api, namespace, "conf", timeout=60)


def test_an_edited_rule_holds_all_the_while(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    grant(kubectl)
    kubectl.create(namespace, config_map("conf"), widget(config={"name": "conf"}), rule())
    wait_ready(kubectl, "True", "InForce")
    wait_protected(api, namespace, "conf")
    kubectl("delete", "-n", namespace, "configmap/conf", "--wait=false")

    for number in range(5):
        labels = [{"path": f".spec.more{number}.name", "to": "Secret"}, *rule()["spec"]["references"]]
        kubectl(
            "patch",
            "referencerule",
            "widgets",
            "--type=merge",
            "-p",
            json.dumps({"spec": {"references": labels}}),
        )
    broken = {
        "spec": {"references": [{"path": ".spec.a", "to": "Secret"}, {"path": ".spec.a[*]", "to": "Secret"}]}
    }
    kubectl("patch", "referencerule", "widgets", "--type=merge", "-p", json.dumps(broken))
    assert "the rule before stays in force" in wait_ready(kubectl, "False", "Invalid")

    settle(kubectl, api)
    # What became of the edits before it does not hide it.
    wait_ready(kubectl, "False", "Invalid")
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "conf"))
    kubectl("delete", "-n", namespace, "widget/w")
    wait_gone(api, namespace, "conf")


def test_a_kind_that_does_not_exist_is_told(
    operator: Operator, kubectl: Kubectl, namespace: str, widgets: str
) -> None:
    reading = {"apiGroups": [GROUP], "resources": ["gadgets"], "verbs": ["list", "watch"]}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "e2e-widgets"},
        "rules": [reading],
    }
    account = f"--serviceaccount={OPERATOR_NAMESPACE}:versionedconfig"
    kubectl.create(namespace, role)
    kubectl("create", "clusterrolebinding", "e2e-widgets", "--clusterrole=e2e-widgets", account)
    kubectl.create(namespace, rule("gadgets", kind="Gadget", plural="gadgets"))

    message = wait_ready(kubectl, "False", "KindNotFound", "gadgets")

    assert f"no kind gadgets.{GROUP} v1" in message


def test_odd_paths_and_deep_fields_end_nothing(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, widgets: str
) -> None:
    grant(kubectl)
    deep = {"name": json.loads("[" * 900 + "]" * 900)}
    references = [
        {"path": f".spec.{name}", "to": "Secret"} for name in ("__dict__", "__init__", "class", "f0")
    ]
    kubectl.create(
        namespace, config_map("conf"), widget(config={"name": "conf"}), widget("deep", config=deep)
    )
    kubectl.create(namespace, rule("odd", references=references), rule())

    wait_ready(kubectl, "True", "InForce", "odd")
    wait_ready(kubectl, "True", "InForce")
    wait_protected(api, namespace, "conf")
    kubectl("delete", "-n", namespace, "configmap/conf", "--wait=false")
    settle(kubectl, api)
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "conf"))
