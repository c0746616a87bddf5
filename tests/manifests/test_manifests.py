"""What is shipped, without a cluster: it loads, hangs together, and says the same as the operator's code."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from versionedconfig import custom
from versionedconfig import resource as vcfg
from versionedconfig.model import API_VERSION, FIELD_MANAGER, GROUP, IN_USE_FINALIZER
from versionedconfig.projection import holder_sources
from versionedconfig.references import rules
from versionedconfig.settings import Settings
from versionedconfig.versions import content

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "manifests" / "base"
FILES = sorted([*(ROOT / "crds").rglob("*.yaml"), *(ROOT / "manifests").rglob("*.yaml")])

Manifest = dict[str, Any]


@cache
def documents(path: Path) -> list[Manifest]:
    """The objects in one file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def shipped(kind: str) -> list[Manifest]:
    """Every object of a kind in crds/ and manifests/base."""
    paths = [path for path in FILES if path.parent in (ROOT / "crds", BASE)]
    return [document for path in paths for document in documents(path) if document["kind"] == kind]


def shipped_named(kind: str, name: str) -> Manifest:
    """The one object of that kind and name."""
    (found,) = [document for document in shipped(kind) if document["metadata"]["name"] == name]
    return found


def operator_user() -> str:
    """The name under which the API server knows the operator."""
    (account,) = shipped("ServiceAccount")
    return f"system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}"


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_holds_named_objects(path: Path) -> None:
    for document in documents(path):
        assert document["apiVersion"]
        assert document["kind"] in ("Kustomization", "Component") or document["metadata"]["name"]


@pytest.mark.parametrize("directory", [ROOT / "crds", BASE], ids=["crds", "base"])
def test_kustomization_names_all_files_and_no_other(directory: Path) -> None:
    (kustomization,) = documents(directory / "kustomization.yaml")
    resources = kustomization["resources"]

    files = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
    assert {resource for resource in resources if resource.endswith(".yaml")} == files
    for resource in set(resources) - files:
        assert (directory / resource / "kustomization.yaml").is_file()


# -- CRDs ------------------------------------------------------------------------------------------------------------


def crd() -> Manifest:
    """The CRD of VersionedConfig."""
    return shipped_named("CustomResourceDefinition", f"{vcfg.PLURAL}.{GROUP}")


def rules_crd() -> Manifest:
    """The CRD of ReferenceRule."""
    return shipped_named("CustomResourceDefinition", f"referencerules.{GROUP}")


def schema(*path: str, of: Manifest | None = None) -> Manifest:
    """The schema of a field; of an array's items where the field is one."""
    found: Manifest = (of or crd())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["properties"][name]
        found = found.get("items", found)
    return found


def walk(node: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    """Every schema in a schema, with the path that leads to it."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for word, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.get(word), dict):
            yield from walk(node[word], path + suffix)


def test_crd_names() -> None:
    names = crd()["spec"]["names"]
    (version,) = crd()["spec"]["versions"]

    assert (crd()["spec"]["group"], version["name"]) == (GROUP, API_VERSION)
    assert (names["kind"], names["plural"], names["shortNames"]) == (vcfg.KIND, vcfg.PLURAL, ["vcfg"])
    assert crd()["spec"]["scope"] == "Namespaced"
    assert version["subresources"] == {"status": {}}


def schemas(crd: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Every schema of a CRD."""
    return walk(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize(
    "crd", shipped("CustomResourceDefinition"), ids=lambda crd: str(crd["spec"]["names"]["kind"])
)
def test_every_field_says_what_it_does(crd: Manifest) -> None:
    silent = [
        path
        for path, node in schemas(crd)
        # The API server takes no description of metadata; a map's values are described by the map.
        if path != ".metadata" and not path.endswith("{}") and not node.get("description", "").endswith(".")
    ]
    assert silent == []


def test_every_rule_says_what_to_do() -> None:
    found = [rule for _, node in walk(schema()) for rule in node.get("x-kubernetes-validations", [])]

    assert len(found) > 10
    assert [rule["rule"] for rule in found if len(rule.get("message", "")) < 20] == []


@pytest.mark.parametrize(
    ("struct", "path"),
    [
        (vcfg.Spec, ["spec"]),
        (vcfg.VersionMetadata, ["spec", "metadata"]),
        (vcfg.Rollout, ["spec", "rollout"]),
        (vcfg.Status, ["status"]),
        (vcfg.VersionStatus, ["status", "versions"]),
        (vcfg.TargetStatus, ["status", "targets"]),
        (vcfg.Condition, ["status", "conditions"]),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, list) else value.__name__,
)
def test_crd_and_structs_agree(struct: type[msgspec.Struct], path: list[str]) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    properties = schema(*path)["properties"]

    assert fields.keys() == properties.keys()
    for name, property_ in properties.items():
        if "default" in property_ and property_["default"] != {}:
            assert fields[name].default == property_["default"], name


@pytest.mark.parametrize(
    ("struct", "path", "without"),
    [
        (rules.KindRules, ["spec"], {"chooses", "binds"}),
        (rules.WorkloadRules, ["spec", "workload"], set()),
        (rules.HealthRules, ["spec", "workload", "health"], set()),
        (rules.FieldRule, ["spec", "references"], set()),
        (rules.KindField, ["spec", "references", "kindField"], set()),
        (rules.Include, ["spec", "include"], {"namespace"}),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, list) else getattr(value, "__name__", ""),
)
def test_rules_crd_and_structs_agree(
    struct: type[msgspec.Struct], path: list[str], without: set[str]
) -> None:
    """But for what only the operator's own catalogue has."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    properties = schema(*path, of=rules_crd())["properties"]

    assert fields.keys() - without == properties.keys()
    for name, property_ in properties.items():
        if isinstance(property_.get("default"), str):
            assert fields[name].default == property_["default"], name


def test_kinds_that_need_no_rule_are_those_of_the_code() -> None:
    said = " ".join(rule["rule"] for rule in schema("spec", of=rules_crd())["x-kubernetes-validations"])

    assert set(re.findall(r"'([A-Z][A-Za-z]+)'", said)) - {"Namespaced", "PodSpec"} == custom.TAKEN


# -- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_examples_make_targets_with_no_more_rights_than_that_needs(path: Path) -> None:
    role, binding, rule = documents(path)
    kind = custom.CustomKind(msgspec.convert(rule["spec"], rules.KindRules))
    group, _, plural = kind.resource.path.removeprefix("/apis/").partition("/")

    assert grants(role) == {(group, plural.rpartition("/")[2]): {"list", "watch", "patch"}}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == operator_user()
    # A rule looks for its rights at once, and for missing ones again later.
    assert rule["kind"] == "ReferenceRule"


def test_limits_are_those_of_the_code() -> None:
    rules = "\n".join(
        rule["rule"] for _, node in walk(schema()) for rule in node.get("x-kubernetes-validations", [])
    )

    assert f"self.metadata.name.size() <= {content.MAX_BASE_NAME}" in rules
    assert f"<= {content.MAX_BYTES}" in " ".join(rules.split())
    assert re.fullmatch(schema("spec", "pin")["pattern"], content.encode_hash("0123456789abcdef"))


# -- roles -----------------------------------------------------------------------------------------------------------

OPERATOR_MAY = {
    ("", "pods"): {"list", "watch"},
    ("", "namespaces"): {"list", "watch"},
    ("", "nodes"): {"list", "watch"},
    ("", "configmaps"): {"get", "list", "watch", "create", "patch", "delete"},
    ("", "secrets"): {"get", "list", "watch", "create", "patch", "delete"},
    ("", "events"): {"get", "create", "patch"},
    **{
        ("apps", plural): {"list", "watch", "patch"}
        for plural in ("deployments", "statefulsets", "daemonsets", "replicasets")
    },
    ("batch", "cronjobs"): {"list", "watch", "patch"},
    ("batch", "jobs"): {"list", "watch"},
    ("apps", "controllerrevisions"): {"list", "watch"},
    (GROUP, "versionedconfigs"): {"get", "list", "watch"},
    (GROUP, "versionedconfigs/status"): {"patch"},
    (GROUP, "versionmaps"): {"list", "watch", "create", "patch", "delete"},
    (GROUP, "staleconfigs"): {"list", "watch", "create", "delete"},
    (GROUP, "staleconfigs/status"): {"patch"},
    (GROUP, "referencerules"): {"list", "watch"},
    (GROUP, "referencerules/status"): {"patch"},
}


def grants(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """(group, resource) to verbs; fails on a rule that says more than these three."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_operator_may_do_this_and_nothing_else() -> None:
    bound = [
        binding
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in shipped(kind)
        if {"kind": "ServiceAccount", "name": "versionedconfig", "namespace": Settings().own_namespace}
        in binding["subjects"]
    ]

    assert [binding["roleRef"]["name"] for binding in bound] == ["versionedconfig"]
    reads = {(source.rules.group, source.rules.plural): {"list", "watch"} for source in holder_sources()}
    assert grants(shipped_named("ClusterRole", "versionedconfig")) == OPERATOR_MAY | reads


def test_every_rule_of_the_role_has_a_reason() -> None:
    lines = (BASE / "rbac.yaml").read_text().splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]

    assert rules
    assert [lines[number] for number in rules if not lines[number - 1].startswith("  # ")] == []


def test_people_get_no_more_than_versioned_configs() -> None:
    assert grants(shipped_named("ClusterRole", "versionedconfig-edit")).keys() == {
        (GROUP, "versionedconfigs")
    }


def test_no_wildcards() -> None:
    for role in [*shipped("ClusterRole"), *shipped("Role")]:
        for (group, resource), verbs in grants(role).items():
            assert not any("*" in word for word in (group, resource, *verbs))


def test_who_may_view_a_namespace_does_not_see_content() -> None:
    """A VersionedConfig may hold what a Secret would, and the view role shows no Secrets."""
    for role in shipped("ClusterRole"):
        assert "rbac.authorization.k8s.io/aggregate-to-view" not in role["metadata"].get("labels", {})


# -- admission policies ----------------------------------------------------------------------------------------------

DELETION = "versionedconfig-in-use-deletion"
GUARD = "versionedconfig-finalizer-guard"


@pytest.mark.parametrize(
    ("name", "operation", "actions", "failure_policy"),
    [(DELETION, "DELETE", ["Warn"], "Ignore"), (GUARD, "UPDATE", ["Deny"], "Fail")],
)
def test_policy_is_narrow(name: str, operation: str, actions: list[str], failure_policy: str) -> None:
    policy = shipped_named("ValidatingAdmissionPolicy", name)["spec"]
    binding = shipped_named("ValidatingAdmissionPolicyBinding", name)["spec"]
    conditions = " ".join(condition["expression"] for condition in policy["matchConditions"])

    assert binding == {"policyName": name, "validationActions": actions}
    assert policy["failurePolicy"] == failure_policy
    assert policy["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": [operation],
            "resources": ["configmaps", "secrets"],
        }
    ]
    assert f"'{IN_USE_FINALIZER}' in oldObject" in conditions
    assert f"request.userInfo.username != '{operator_user()}'" in conditions


def test_policies_are_all_bound() -> None:
    policies = {policy["metadata"]["name"] for policy in shipped("ValidatingAdmissionPolicy")}
    bound = {binding["spec"]["policyName"] for binding in shipped("ValidatingAdmissionPolicyBinding")}

    assert policies == bound == {DELETION, GUARD}


REWRITE = "versionedconfig-rewrite"
REWRITING = ROOT / "manifests" / "components" / "rewrite-at-admission"


def rewriting() -> tuple[Manifest, Manifest]:
    """The policy that rewrites logical names, and its binding."""
    policy, binding = documents(REWRITING / "policy.yaml")
    assert (policy["kind"], binding["kind"]) == ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    assert {document["metadata"]["name"] for document in (policy, binding)} == {REWRITE}
    return policy["spec"], binding["spec"]


def test_rewriting_is_bound_to_the_version_map_of_the_namespace() -> None:
    policy, binding = rewriting()
    version_map = shipped_named("CustomResourceDefinition", f"versionmaps.{GROUP}")
    rule = version_map["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"][0]

    kind = version_map["spec"]["names"]["kind"]
    assert policy["paramKind"] == {"apiVersion": f"{GROUP}/{API_VERSION}", "kind": kind}
    assert binding == {
        "policyName": REWRITE,
        "paramRef": {"name": "versionedconfig", "parameterNotFoundAction": "Allow"},
    }
    assert rule["rule"] == f"self.metadata.name == '{binding['paramRef']['name']}'"


def test_rewriting_refuses_nothing_and_touches_workloads_alone() -> None:
    policy, _ = rewriting()
    rules = policy["matchConstraints"]["resourceRules"]

    assert policy["failurePolicy"] == "Ignore"
    assert {(rule["apiGroups"][0], resource) for rule in rules for resource in rule["resources"]} == {
        ("", "pods"),
        *(("apps", kind) for kind in ("deployments", "statefulsets", "daemonsets", "replicasets")),
        *(("batch", kind) for kind in ("jobs", "cronjobs")),
    }
    assert all(len(rule["apiGroups"]) == 1 and rule["apiVersions"] == ["v1"] for rule in rules)


def test_rewriting_uses_the_names_of_the_code() -> None:
    text = (REWRITING / "policy.yaml").read_text()
    (pattern,) = re.findall(r"matches\('\.(-\[\w+\]\{\d+\})\$'\)", text)

    assert f"request.userInfo.username == '{operator_user()}'" in text
    assert f"entry.?manager.orValue('') != '{FIELD_MANAGER}'" in text
    for number in range(20):
        name = f"app-{content.encode_hash(f'{number:x}123456789abcdef')}"
        assert re.fullmatch("app" + pattern, name)
        assert len(name) - len("app") == 11, "the policy cuts that many characters off"


def test_admission_uses_the_names_of_the_code() -> None:
    text = (BASE / "admission.yaml").read_text()

    assert set(re.findall(rf"{re.escape(GROUP)}/[-\w]+", text)) == {IN_USE_FINALIZER, f"{GROUP}/release"}
    assert set(re.findall(r"system:serviceaccount:[-\w]+:[-\w]+", text)) == {operator_user()}


# -- the operator's Deployment ---------------------------------------------------------------------------------------


def deployment() -> Manifest:
    """The operator's Deployment."""
    (found,) = shipped("Deployment")
    return found


def container() -> Manifest:
    """Its only container."""
    (found,) = deployment()["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_one_operator_at_a_time() -> None:
    assert deployment()["spec"]["replicas"] == 1
    assert deployment()["spec"]["strategy"] == {"type": "Recreate"}


def test_runs_as_its_own_account_in_its_own_namespace() -> None:
    (namespace,) = shipped("Namespace")
    account = deployment()["spec"]["template"]["spec"]["serviceAccountName"]

    assert operator_user() == f"system:serviceaccount:{deployment()['metadata']['namespace']}:{account}"
    assert namespace["metadata"]["name"] == Settings().own_namespace == deployment()["metadata"]["namespace"]


def test_ports_are_those_that_the_operator_opens() -> None:
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}

    assert ports == {"metrics": Settings().metrics_port, "health": Settings().health_port}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_restricted() -> None:
    """The namespace enforces the restricted Pod Security Standard."""
    pod = deployment()["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (kustomization,) = documents(BASE / "kustomization.yaml")

    assert container()["image"] == f"versionedconfig:{version}"
    assert kustomization["labels"][0]["pairs"]["app.kubernetes.io/version"] == version
