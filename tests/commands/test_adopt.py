"""What `adopt` would write, what it says, and the YAML that it prints."""

import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.commands import adopt
from versionedconfig.commands.adoption import (
    Cluster,
    Existing,
    Fixed,
    Named,
    Options,
    Plan,
    Referrer,
    Stored,
    parse,
    plan,
    pods_replaced,
    writers,
)
from versionedconfig.model import ConfigKey, Reference
from versionedconfig.references.demands import Demand
from versionedconfig.resource import Spec, VersionStatus
from versionedconfig.versions.content import Content, config_map_content, secret_content
from versionedconfig.workload import Health, Workload

APP = config_map_content({"MODE": "blue"}, {})
DB = secret_content("", {}, {"TOKEN": "swordfish"})
APP_VERSION, DB_VERSION = APP.version_name("app"), DB.version_name("db")
CONFIG_MAP, SECRET = Named("ConfigMap", "app"), Named("Secret", "db")
FIELD = ("spec", "template", "spec", "volumes", 0)


def referrer(
    name: str,
    *names: Named,
    kind: str = "Deployment",
    demands: tuple[Demand, ...] = (),
    health: Health = Health.DONE,
    pods: int = 1,
    owner: str = "",
) -> Referrer:
    references = tuple(Reference(one.kind, one.name, (*FIELD, one.kind)) for one in names)
    workload = Workload(kind, "shop", name, f"u-{name}", "1", 1, references, health, demands)
    return Referrer(workload, pods, owner=owner)


def stored(content: Content, name: str, **more: Any) -> Stored:
    return Stored(ConfigKey(content.kind, "shop", name), content, **more)


def options(*names: Named, workload: str = "web", **more: Any) -> Options:
    return Options("shop", (Named("Deployment", workload),), names or (CONFIG_MAP,), **more)


def made(
    content: Content = APP,
    name: str = "app",
    *,
    others: tuple[Referrer, ...] = (),
    cluster: Cluster | None = None,
    fixed: tuple[Fixed, ...] | None = (),
    asked: Options | None = None,
    web: Referrer | None = None,
    **more: Any,
) -> Plan:
    """Of one object and Deployment web, which refers to it."""
    named = Named(content.kind, name)
    referrers = [web or referrer("web", named), *others]
    found = [stored(content, name, **more)]
    if cluster is None:
        return plan(asked or options(named), referrers, found, fixed=fixed)
    return plan(asked or options(named), referrers, found, fixed=fixed, cluster=cluster)


def spec_of(found: Plan) -> dict[str, Any]:
    (manifest,) = found.manifests
    assert manifest["apiVersion"] == "versionedconfig.io/v1alpha1"
    assert manifest["kind"] == "VersionedConfig"
    spec: dict[str, Any] = manifest["spec"]
    return spec


# -- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        *((word, "Deployment") for word in ("deploy", "deployment", "Deployments", "deployments.apps")),
        *((word, "StatefulSet") for word in ("sts", "statefulset", "statefulsets.v1.apps")),
        *((word, "DaemonSet") for word in ("ds", "daemonset", "daemonsets")),
        *((word, "CronJob") for word in ("cj", "cronjob", "cronjobs.batch")),
        *((word, "ReplicaSet") for word in ("rs", "replicaset", "replicasets")),
    ],
)
def test_words_for_workloads(word: str, kind: str) -> None:
    assert parse([f"{word}/web", "cm/app"]) == ((Named(kind, "web"),), (CONFIG_MAP,))


def test_words_for_objects() -> None:
    words = ["deploy/web", "cm/app", "configmap/app", "configmaps/app", "secret/db", "secrets/db"]
    assert parse(words) == ((Named("Deployment", "web"),), (CONFIG_MAP, SECRET))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["deploy/web"], "name a ConfigMap or Secret"),
        (["cm/app"], "name a workload"),
        (["web", "cm/app"], "write kind/name"),
        (["deploy/", "cm/app"], "write kind/name"),
        (["ingress/web", "cm/app"], "'ingress' is none of configmap, cronjob, "),
        (["pods/web", "cm/app"], "a pod cannot change"),
        (["jobs.batch/web", "cm/app"], "a Job's template cannot change"),
        (["deploy/web", "cm/app", "secret/app"], "have one name"),
    ],
)
def test_words_that_mean_nothing(words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(words)


# -- manifests -------------------------------------------------------------------------------------------------------


def test_a_copy_and_a_reference() -> None:
    assert spec_of(made()) == {"data": {"MODE": "blue"}}
    binary = config_map_content({}, {"b": "AAE="})
    assert spec_of(made(binary)) == {"binaryData": {"b": "AAE="}}
    by_reference = options(CONFIG_MAP, by_reference=True)
    assert spec_of(made(asked=by_reference)) == {"from": [{"kind": "ConfigMap", "name": "app"}]}
    assert spec_of(made(DB, "db")) == {"kind": "Secret", "from": [{"kind": "Secret", "name": "db"}]}
    inline = options(SECRET, by_reference=False)
    assert spec_of(made(DB, "db", asked=inline)) == {"kind": "Secret", "data": {"TOKEN": "c3dvcmRmaXNo"}}
    keys = secret_content("kubernetes.io/tls", {}, {"tls.crt": "a", "tls.key": "b"})
    assert spec_of(made(keys, "db"))["type"] == "kubernetes.io/tls"


def test_others_stay_unless_all_are_asked_for() -> None:
    others = (referrer("api", CONFIG_MAP), referrer("db", kind="StatefulSet"))
    found = made(others=others)
    assert spec_of(found)["rollout"] == {"targets": [{"kind": "Deployment", "name": "web"}]}
    assert [move.workload.name for move in found.moves] == ["web"]
    assert (
        "Deployment/api refers to ConfigMap/app too and stays as it is; --all takes it along" in found.notes
    )

    found = made(others=others, asked=options(everyone=True))
    assert "rollout" not in spec_of(found)
    assert [(move.workload.name, move.asked) for move in found.moves] == [("web", True), ("api", False)]


def test_who_else_refers_may_be_unknown() -> None:
    found = made(cluster=Cluster(unseen=("no right to list daemonsets",)))

    assert spec_of(found)["rollout"] == {"targets": [{"kind": "Deployment", "name": "web"}]}
    assert "no right to list daemonsets: who else refers" in "".join(found.warnings)


@pytest.mark.parametrize(
    ("everyone", "rollout"),
    [
        (False, {"settleSeconds": 5}),
        (True, {"settleSeconds": 5}),
    ],
)
def test_what_has_objects_in_common_moves_once(everyone: bool, rollout: dict[str, Any]) -> None:
    """Turns that are taken for each object by itself would be two restarts."""
    referrers = [referrer("web", CONFIG_MAP, SECRET, pods=3), referrer("api", CONFIG_MAP, pods=2)]
    asked = options(CONFIG_MAP, SECRET, everyone=everyone)
    found = plan(asked, referrers, [stored(APP, "app"), stored(DB, "db")])

    for manifest in found.manifests:
        written = manifest["spec"]["rollout"]
        assert {k: v for k, v in written.items() if k != "targets"} == rollout
    assert len(found.moves) == (2 if everyone else 1)
    assert [(old, new) for _, old, new in found.moves[0].fields] == [
        ("app", APP_VERSION),
        ("db", DB_VERSION),
    ]
    assert f"in all {5 if everyone else 3} pods restart, once each" in adopt.told(found)


def test_objects_of_different_workloads_need_no_time() -> None:
    asked = Options(
        "shop", (Named("Deployment", "web"), Named("Deployment", "api")), (CONFIG_MAP, SECRET), everyone=True
    )
    referrers = [referrer("web", CONFIG_MAP), referrer("api", SECRET)]
    found = plan(asked, referrers, [stored(APP, "app"), stored(DB, "db")])

    assert not any("rollout" in manifest["spec"] for manifest in found.manifests)


# -- what is refused -------------------------------------------------------------------------------------------------

MISSING = Demand("ConfigMap", "app", "spec.containers[c].env[X]", "X")
TOKEN = secret_content("kubernetes.io/service-account-token", {}, {"token": "x"})


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (made(web=referrer("web", SECRET)), "does not refer to ConfigMap/app, refers to Secret/db"),
        (made(web=referrer("web")), "refers to nothing"),
        (made(web=referrer("web", Named("Secret", "app"))), "does not refer to ConfigMap/app"),
        (
            made(web=referrer("web", CONFIG_MAP, demands=(MISSING,))),
            r"spec.containers\[c\].env\[X\] asks for key X",
        ),
        (made(config_map_content({}, {})), "ConfigMap/app: there is nothing in it"),
        (made(TOKEN, "db"), "service-account-token cannot be a version"),
        (made(owner="app"), "is a version already, of VersionedConfig app"),
        (made(taken=True), f"ConfigMap {APP_VERSION} exists and is no version"),
        (made(existing=Existing(Spec(data={"MODE": "blue"}), deleting=True)), "being deleted"),
        (made(existing=Existing(Spec(data={"MODE": "red"}))), "with another data: change"),
        (made(existing=Existing(Spec(kind="Secret"))), "of kind Secret exists already"),
        (made(DB, "db", existing=Existing(Spec(kind="Secret", type="x"))), "another type and from"),
        (
            plan(Options("kube-system", (Named("Deployment", "web"),), (CONFIG_MAP,)), [], []),
            "makes nothing in namespace kube-system",
        ),
    ],
)
def test_what_is_refused(found: Plan, why: str) -> None:
    (problem,) = found.problems
    assert msgspec.json.encode(found.manifests) == b"[]"
    assert re.search(why, problem), problem


def test_only_those_that_move_have_to_find_their_keys() -> None:
    other = referrer("api", CONFIG_MAP, demands=(MISSING,))

    assert not made(others=(other,)).problems
    assert made(others=(other,), asked=options(everyone=True)).problems


def test_what_is_there_already_is_left_alone() -> None:
    same = Existing(Spec(data={"MODE": "blue"}), versions=(VersionStatus(APP_VERSION),))
    moved = referrer("web", Named("ConfigMap", APP_VERSION))
    found = made(existing=same, web=moved)

    assert (found.problems, found.manifests, found.moves) == ((), [], ())
    assert found.notes == ("VersionedConfig app exists already and says the same: nothing to do",)
    assert made(web=moved).problems

    rollout = msgspec.convert({"targets": [{"kind": "Deployment", "name": "api"}]}, type=type(Spec().rollout))
    narrow = Existing(Spec(data={"MODE": "blue"}, rollout=rollout))
    (problem,) = made(existing=narrow).problems
    assert "add {kind: Deployment, name: web} to its spec.rollout.targets" in problem


# -- what is said ----------------------------------------------------------------------------------------------------

WRITTEN: dict[str, Any] = {"writers": ("Helm (meta.helm.sh/release-name)",)}
BY_REFERENCE = options(CONFIG_MAP, by_reference=True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (made(), f"VersionedConfig shop/app takes over ConfigMap app .* 1 key, 4 bytes, as version {APP_VERSION}"),
        (made(), r"Deployment/web is moved: 1 pod restarts"),
        (made(), rf"  \.spec.*\.ConfigMap: app -> {APP_VERSION}"),
        (made(), "note: ConfigMap/app stays as it is, .* may be deleted once nothing refers to it: versionedconfig refs"),
        (made(DB, "db"), "note: Secret/db stays, and content is changed there"),
        (made(DB, "db", asked=options(SECRET, by_reference=False)), "warning: the values of Secret/db stand in"),
        (made(immutable=True), "note: ConfigMap/app is immutable already, which is fine"),
        (made(immutable=True, asked=BY_REFERENCE), "warning: ConfigMap/app is immutable, .* or .* no --from"),
        (made(DB, "db", immutable=True), "warning: Secret/db is immutable, .* with --inline"),
        (made(extras=("team", "tier")), r"note: labels .* not taken over \(team, tier\)"),
        (made(**WRITTEN), "warning: ConfigMap/app is written by Helm .* --from makes it follow"),
        (
            made(fixed=(Fixed(Named("Job", "one"), (CONFIG_MAP,)), Fixed(Named("Pod", "two"), ()))),
            "note: Job/one refers to ConfigMap/app and is never changed",
        ),
        (made(fixed=None), "note: whether pods or Jobs without a controller refer to it could not be seen"),
        (made(web=referrer("web", CONFIG_MAP, owner="Widget/w")), "warning: Deployment/web is written by Widget/w"),
        (made(web=referrer("web", CONFIG_MAP, health=Health.FAILED)), "warning: Deployment/web is not through"),
        (made(cluster=Cluster(installed=False)), "warning: this cluster does not know VersionedConfigs"),
        (made(cluster=Cluster(running=False)), "warning: no operator was seen to run"),
        (made(cluster=Cluster(rewrites=True)), "note: manifests of workloads can be applied again"),
        (made(cluster=Cluster(rewrites=False)), "note: applying a workload's manifest again writes the old"),
        (made(cluster=Cluster(rewrites=None)), "note: whether applying .* could not be seen"),
        (made(config_map_content({"big": "x" * 300_000}, {})), "warning: .* use `kubectl apply --server-side`"),
        (made(config_map_content({"big": "\n" * 800_000}, {})), "warning: .* may be too large to be stored"),
        (made(name="app-87m5g5hd76"), "warning: the name app-87m5g5hd76 ends with a hash"),
    ],
)  # fmt: skip
def test_what_is_said(found: Plan, said: str) -> None:
    assert not found.problems
    lines = adopt.told(found)
    assert "Job/two" not in "".join(lines)
    assert any(re.match(said, line) for line in lines), lines


def test_who_follows_needs_no_warning() -> None:
    assert not made(DB, "db", **WRITTEN).warnings
    assert not made().warnings


def test_no_value_is_told() -> None:
    for found in (made(DB, "db"), made(DB, "db", asked=options(SECRET, by_reference=False))):
        said = "".join(adopt.told(found)) + repr(found)
        assert "swordfish" not in said
        assert "c3dvcmRmaXNo" not in said
    assert "swordfish" not in repr(stored(DB, "db", existing=Existing(Spec(data={"a": "swordfish"}))))


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        (pods_replaced("Deployment", 3), (3, "")),
        (pods_replaced("Deployment", 3, paused=True), (0, "it is paused: its pods (3) restart when it is resumed")),
        (pods_replaced("StatefulSet", 3, partition=2), (1, "pods with a number below 2 keep what they have")),
        (pods_replaced("StatefulSet", 3, on_delete=True), (0, "its pods get it when somebody deletes them")),
        (pods_replaced("DaemonSet", 2), (2, "")),
        (pods_replaced("ReplicaSet", 2), (0, "its pods get it when somebody deletes them")),
        (pods_replaced("CronJob", 1), (0, "its next Job gets it")),
    ],
)  # fmt: skip
def test_pods(given: tuple[int, str], replaced: tuple[int, str]) -> None:
    assert given == replaced


@pytest.mark.parametrize(
    ("found", "who"),
    [
        (writers((), ("kubectl-create", "kubectl", "before-first-apply", ""), {}, {"a": "b"}), ()),
        (writers(("ExternalSecret/db",), (), {}, {}), ("ExternalSecret/db (ownerReferences)",)),
        (writers((), ("external-secrets",), {}, {}), ("external-secrets (managedFields)",)),
        (
            writers((), (), {"app.kubernetes.io/managed-by": "Helm"}, {"meta.helm.sh/release-name": "x"}),
            ("Helm (meta.helm.sh/release-name)",),
        ),
        (
            writers((), (), {"app.kubernetes.io/managed-by": "pulumi"}, {"argocd.argoproj.io/tracking-id": "x"}),
            ("Argo CD (argocd.argoproj.io/tracking-id)", "pulumi (app.kubernetes.io/managed-by)"),
        ),
        (
            writers((), (), {"kustomize.toolkit.fluxcd.io/name": "x"}, {}),
            ("Flux (kustomize.toolkit.fluxcd.io/name)",),
        ),
    ],
)  # fmt: skip
def test_who_writes_it(found: tuple[str, ...], who: tuple[str, ...]) -> None:
    assert found == who


# -- YAML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("blue", "blue"),
        ("y", '"y"'),
        ("Off", '"Off"'),
        ("1e3", '"1e3"'),
        ("0o17", '"0o17"'),
        ("", '""'),
        ("a b", '"a b"'),
        ("a: b\n # c\n\nd\n", "|\n  a: b\n   # c\n\n  d"),
        ("a\nb", "|-\n  a\n  b"),
        ("a\n\n", '"a\\n\\n"'),
        ("a \nb", '"a \\nb"'),
        ("a\r\nb", '"a\\r\\nb"'),
        ("\n", '"\\n"'),
        ("x " * 200, f'"{"x " * 200}"'),
    ],
)
def test_what_is_written(text: str, written: str) -> None:
    assert adopt.to_yaml([{"data": text}]) == f"---\ndata: {written}\n"


@given(st.dictionaries(st.text(), st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_written_is_read_again(data: dict[str, str]) -> None:
    assert yaml.safe_load(adopt.to_yaml([{"data": data}])) == {"data": data}
