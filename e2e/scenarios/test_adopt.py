"""`versionedconfig adopt`: what runs with plain ConfigMaps and Secrets goes on with versions of them, and restarts once."""

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pykube
import yaml

from e2e import harness
from e2e.harness import (
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    fetch,
    fetch_all,
    live_pods,
    plain_pod_spec,
    pod,
    pods_read,
    reading_pod_spec,
    secret,
    versioned_config,
    versioned_configs,
    wait_for_rollout,
    wait_until,
)
from e2e.stories import (
    edit,
    generation,
    get,
    identity,
    names_in,
    replica_sets,
    resource,
    template,
    version_of,
)

TOKEN: Final = "swordfish"
BOTH: Final = ("configmap/app-cfg", "secret/db")


def run(
    kubectl: Kubectl, namespace: str, *arguments: str, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`versionedconfig adopt` in that namespace, as an administrator or with that kubeconfig."""
    command = [sys.executable, "-m", "versionedconfig", "adopt", *arguments, "-n", namespace]
    command += ["--kubeconfig", str(kubeconfig or kubectl.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def adopt(kubectl: Kubectl, namespace: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same; it must succeed."""
    done = run(kubectl, namespace, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def refusal(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """What it said, with nothing to apply."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


def spec_of_both() -> Manifest:
    """A pod that reads app-cfg, and db as environment variables."""
    spec = reading_pod_spec()
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": "db"}}]
    return spec


def run_plain(kubectl: Kubectl, namespace: str, *names: str, replicas: int = 1) -> None:
    """app-cfg and db, mutable, and Deployments of those names that read both; waits until they run."""
    kubectl.create(
        namespace,
        config_map(immutable=False),
        secret("db", {"TOKEN": TOKEN}, immutable=False),
        *(deployment(name, spec_of_both(), replicas=replicas) for name in names),
    )
    for name in names:
        wait_for_rollout(kubectl, namespace, name)


def secret_of(found: Manifest) -> str:
    """The Secret in a pod spec as made above."""
    return str(found["containers"][0]["envFrom"][0]["secretRef"]["name"])


def pods_ever(api: pykube.HTTPClient, namespace: str, app: str) -> set[str]:
    """Every pod of a Deployment that was ever created, as its ReplicaSets tell."""
    return {
        event["message"].rpartition(" ")[2]
        for event in fetch_all(api, pykube.Event, namespace)
        if event["reason"] == "SuccessfulCreate"
        and event["involvedObject"]["kind"] == "ReplicaSet"
        and event["involvedObject"]["name"].startswith(f"{app}-")
    }


def read_by(cluster: Cluster, api: pykube.HTTPClient, namespace: str, app: str = "web") -> list[Any]:
    """What the pods have of it."""
    return [
        (
            {key: reading.environment.get(key) for key in ("MODE", "TOKEN")},
            {path: text for path, text in reading.files.items() if path.startswith("v/")},
        )
        for reading in pods_read(cluster, api, namespace, app)
    ]


def assert_restarted_once(api: pykube.HTTPClient, namespace: str, app: str, replicas: int) -> None:
    assert len(replica_sets(api, namespace, app)) == 2
    assert len(pods_ever(api, namespace, app)) == 2 * replicas


# -- adopting --------------------------------------------------------------------------------------------------------


def test_what_runs_goes_on_with_versions_and_restarts_once(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web", "api", replicas=3)
    old = {pod["metadata"]["uid"] for pod in live_pods(api, namespace)}
    content = read_by(cluster, api, namespace)
    others = generation(api, namespace, "api"), replica_sets(api, namespace, "api")
    plain = identity(api, namespace, "app-cfg"), identity(api, namespace, "db", pykube.Secret)

    done = adopt(kubectl, namespace, "deploy/web", "cm/app-cfg", "secret/db", "--apply", "--wait")
    wait_for_rollout(kubectl, namespace)

    assert done.stdout.splitlines()[:2] == [
        "versionedconfig/app-cfg created",
        "versionedconfig/db created",
    ]
    assert "Deployment/web is moved: 3 pods restart\n" in done.stderr
    assert "in all 3 pods restart, once each" in done.stderr
    assert "Deployment/api refers to ConfigMap/app-cfg too and stays as it is; --all" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    first = {name: version_of(api, namespace, name) for name in ("app-cfg", "db")}
    assert all(f"as version {version}" in done.stderr for version in first.values())
    spec = template(api, namespace)
    assert (names_in(spec), secret_of(spec)) == ({first["app-cfg"]}, first["db"])
    assert_restarted_once(api, namespace, "web", 3)
    new = {pod["metadata"]["uid"] for pod in live_pods(api, namespace)}
    assert len(new) == 3
    assert not new & old
    assert read_by(cluster, api, namespace) == content
    # What was not asked for is as it was.
    assert (generation(api, namespace, "api"), replica_sets(api, namespace, "api")) == others
    assert plain == (identity(api, namespace, "app-cfg"), identity(api, namespace, "db", pykube.Secret))
    found = resource(api, namespace)
    assert "kubectl-versionedconfig" in {one["manager"] for one in found["metadata"]["managedFields"]}
    assert found["spec"]["rollout"]["targets"] == [{"kind": "Deployment", "name": "web"}]

    again = adopt(kubectl, namespace, "deploy/web", *BOTH, "--apply")
    assert again.stdout == ""
    assert again.stderr.count("says the same: nothing to do") == 2
    said = refusal(run(kubectl, namespace, "deploy/api", *BOTH, "--apply"))
    assert "does not move Deployment/api: add {kind: Deployment, name: api} to its spec.rollout" in said

    # From now on content rolls: that of the ConfigMap in the VersionedConfig, that of the Secret in the Secret.
    edit(kubectl, namespace, data={"MODE": "two"})
    version_of(api, namespace, besides=first["app-cfg"])
    assert {environment["MODE"] for environment, _ in read_by(cluster, api, namespace)} == {"two"}
    patch = json.dumps({"stringData": {"TOKEN": "changed"}})
    kubectl("patch", "secret", "db", "-n", namespace, "--type=merge", "-p", patch)
    version_of(api, namespace, "db", besides=first["db"])
    assert {environment["TOKEN"] for environment, _ in read_by(cluster, api, namespace)} == {"changed"}
    assert "exists already, with another data" in refusal(run(kubectl, namespace, "deploy/web", *BOTH))


def test_all_that_refer_to_it_restart_once(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web", "api", "web2")
    only_one = reading_pod_spec(containers=[{**plain_pod_spec()["containers"][0]}])
    kubectl.create(namespace, deployment("other", only_one, replicas=1))
    wait_for_rollout(kubectl, namespace, "other")

    done = adopt(kubectl, namespace, "deployments.apps/web", *BOTH, "--all", "--apply", "--wait")

    assert "Deployment/api (comes along) is moved" in done.stderr
    assert "in all 4 pods restart, once each" in done.stderr
    for name in ("web", "api", "web2", "other"):
        wait_for_rollout(kubectl, namespace, name)
        assert_restarted_once(api, namespace, name, 1)
    assert resource(api, namespace)["status"]["targetsSummary"] == "4/4"
    assert "targets" not in resource(api, namespace)["spec"]["rollout"]


AWKWARD: Final = {
    "MODE": "blue",
    "y": "y",
    "1e3": "1e3",
    "octal": "0o17",
    "null": "null",
    "empty": "",
    "lines": "a: b\n  # c\n\nd\n",
    "no-end": "a\nb",
    "ends": "a\n\n\n",
    "blanks": " a \n\tb \n",
    "returns": "a\r\nb\u0085c\u2028d\n",
    "long": "word " * 60,
    "quotes": "\"'\\ \U0001f600 {{ x }}",
}


def test_the_printed_manifests_can_be_applied(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """With content that readers of YAML understand in different ways."""
    found = config_map(data=AWKWARD, immutable=True)
    found["binaryData"] = {"bytes": base64.b64encode(bytes(range(256))).decode()}
    keys = {
        **secret("db", {"tls.crt": "a", "tls.key": "b"}, immutable=False),
        "type": "kubernetes.io/tls",
    }
    kubectl.create(namespace, found, keys, deployment(spec=spec_of_both(), replicas=2))
    wait_for_rollout(kubectl, namespace)

    done = adopt(kubectl, namespace, "deployment/web", *BOTH)
    assert "ConfigMap/app-cfg is immutable already, which is fine" in done.stderr
    assert "rollout.settleSeconds is 5" in done.stderr
    printed = list(yaml.safe_load_all(done.stdout))
    assert [one["metadata"] for one in printed] == [
        {"name": name, "namespace": namespace} for name in ("app-cfg", "db")
    ]
    assert printed[1]["spec"] == {
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "from": [{"kind": "Secret", "name": "db"}],
        "rollout": {"settleSeconds": 5},
    }
    assert fetch(api, versioned_configs(api), namespace, "app-cfg") is None

    # As a client far away would, or one that is held back.
    for document in done.stdout.split("---\n")[1:]:
        kubectl("apply", "-f", "-", stdin=document)
        time.sleep(1.5)
    for name, kind in (("app-cfg", pykube.ConfigMap), ("db", pykube.Secret)):
        version = version_of(api, namespace, name)
        assert f"as version {version}" in done.stderr
        before, after = (get(api, namespace, each, kind) for each in (name, version))
        assert [before.get(f) for f in ("data", "binaryData", "type")] == [
            after.get(f) for f in ("data", "binaryData", "type")
        ]
        assert after["immutable"] is True
    wait_for_rollout(kubectl, namespace)
    assert_restarted_once(api, namespace, "web", 2)
    again = adopt(kubectl, namespace, "deployment/web", *BOTH)
    assert again.stdout == ""


def test_other_kinds_of_workloads(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl.create(namespace, *(config_map(name, immutable=False) for name in ("cj", "sts", "ds", "rs")))
    spec = {name: reading_pod_spec(name) for name in ("cj", "sts", "ds", "rs")}
    base = {
        name: {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec[name]},
        }
        for name in spec
    }
    job = {"template": {"spec": {**spec["cj"], "restartPolicy": "Never"}}}
    kubectl.create(
        namespace,
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "cj"},
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}},
        },
        *(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": {"name": name},
                "spec": {**base[name], **more},
            }
            for kind, name, more in (
                ("StatefulSet", "sts", {"replicas": 2, "serviceName": "sts"}),
                ("DaemonSet", "ds", {}),
                ("ReplicaSet", "rs", {"replicas": 1}),
            )
        ),
    )
    for name in ("statefulset/sts", "daemonset/ds"):
        kubectl("rollout", "status", "-n", namespace, name, "--timeout=90s")
    old = {
        name: {p["metadata"]["uid"] for p in live_pods(api, namespace, name)} for name in ("sts", "ds", "rs")
    }

    expected = {
        "cj": "CronJob/cj is moved: its next Job gets it",
        "sts": "StatefulSet/sts is moved: 2 pods restart",
        "ds": f"DaemonSet/ds is moved: {len(old['ds'])} pods restart",
        "rs": "ReplicaSet/rs is moved: its pods get it when somebody deletes them",
    }
    for name, said in expected.items():
        done = adopt(kubectl, namespace, f"{name}/{name}", f"configmap/{name}", "--apply", "--wait")
        assert said in done.stderr
        version = version_of(api, namespace, name)
        kinds = {"cj": "cronjob", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset"}
        found = json.loads(kubectl("get", kinds[name], name, "-n", namespace, "-o", "json").stdout)
        inner = found["spec"]["jobTemplate"]["spec"] if name == "cj" else found["spec"]
        assert names_in(inner["template"]["spec"]) == {version}
    for name in ("sts", "ds"):
        new = {p["metadata"]["uid"] for p in live_pods(api, namespace, name)}
        assert len(new) == len(old[name])
        assert not new & old[name]
        assert (
            len(
                fetch_all(
                    api, pykube.object_factory(api, "apps/v1", "ControllerRevision"), namespace, {"app": name}
                )
            )
            == 2
        )
    assert {p["metadata"]["uid"] for p in live_pods(api, namespace, "rs")} == old["rs"]


def test_content_of_secrets_is_shown_where_it_was_asked_for(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web")
    encoded = base64.b64encode(TOKEN.encode()).decode()

    by_default = adopt(kubectl, namespace, "deploy/web", "secret/db")
    assert encoded not in by_default.stdout + by_default.stderr
    inline = adopt(kubectl, namespace, "deploy/web", "secret/db", "--inline")
    (printed,) = yaml.safe_load_all(inline.stdout)
    assert printed["spec"] == {"kind": "Secret", "data": {"TOKEN": encoded}}
    assert "warning: the values of Secret/db stand in the manifest" in inline.stderr
    assert encoded not in inline.stderr
    referred = adopt(kubectl, namespace, "deploy/web", "cm/app-cfg", "--from")
    (printed,) = yaml.safe_load_all(referred.stdout)
    assert printed["spec"] == {"from": [{"kind": "ConfigMap", "name": "app-cfg"}]}

    applied = adopt(kubectl, namespace, "deploy/web", "secret/db", "--inline", "--apply", "--wait")
    assert encoded not in applied.stdout + applied.stderr
    wait_for_rollout(kubectl, namespace)
    assert secret_of(template(api, namespace)) == version_of(api, namespace, "db")


# -- what it says ----------------------------------------------------------------------------------------------------


def test_what_is_to_be_known_is_told(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    annotations = {"meta.helm.sh/release-name": "shop"}
    kubectl.create(
        namespace,
        config_map(immutable=False, annotations=annotations),
        deployment(spec=spec_of_both(), replicas=0),
        secret("db", immutable=True),
        pod("alone", harness.unscheduled(reading_pod_spec())),
    )
    wait_for_rollout(kubectl, namespace)

    said = adopt(kubectl, namespace, "deploy/web", *BOTH).stderr

    assert "warning: ConfigMap/app-cfg is written by Helm (meta.helm.sh/release-name)" in said
    assert "--from makes it follow the object" in said
    assert "note: Pod/alone refers to ConfigMap/app-cfg and is never changed" in said
    assert "warning: Secret/db is immutable, and so will be what is taken from it" in said
    # The operator of these tests runs beside the cluster.
    assert "warning: no operator was seen to run" in said
    # They rewrite names at admission, where the cluster can.
    again = "manifests of workloads can be applied again as they are"
    assert (f"note: {again}" in said) == harness.rewrites_at_admission(kubectl)
    assert "Deployment/web is moved: no pods now" in said
    assert (
        ".spec.template.spec.containers[0].env[0].valueFrom.configMapKeyRef.name: app-cfg -> app-cfg-" in said
    )


def test_what_cannot_be_adopted_is_refused(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web")
    wants = reading_pod_spec("short")
    token = {**secret("token", immutable=False), "type": "helm.sh/release.v1"}
    kubectl.create(
        namespace,
        config_map("short", {"OTHER": "x"}, immutable=False),
        config_map("unused"),
        {**config_map("void"), "data": {}},
        token,
        versioned_config("same-kind", {"MODE": "other"}),
        config_map("same-kind"),
        versioned_config("as-config-map", {"MODE": "x"}),
        secret("as-config-map"),
        *(
            deployment(name, spec, replicas=0)
            for name, spec in (
                ("short", {**wants, "containers": [wants["containers"][0]]}),
                ("void", reading_pod_spec("void", containers=plain_pod_spec()["containers"])),
                ("same", reading_pod_spec("same-kind")),
            )
        ),
        deployment(
            "secrets", plain_pod_spec(imagePullSecrets=[{"name": "token"}, {"name": "as-config-map"}])
        ),
    )
    version = version_of(api, namespace, "same-kind")
    (revision,) = replica_sets(api, namespace)

    cases: dict[tuple[str, ...], str] = {
        ("deploy/none", "cm/app-cfg"): "there is no Deployment/none in namespace",
        ("deploy/web", "cm/none"): "there is no ConfigMap/none in namespace",
        (
            "deploy/web",
            "cm/unused",
        ): "Deployment/web does not refer to ConfigMap/unused, refers to ConfigMap/app-cfg",
        (
            "deploy/short",
            "cm/short",
        ): "asks for key MODE: add it, or take the reference out first, in ConfigMap/short",
        ("deploy/void", "cm/void"): "there is nothing in it",
        ("deploy/secrets", "secret/token"): "type helm.sh/release.v1 cannot be a version",
        (
            "deploy/secrets",
            "secret/as-config-map",
        ): "a VersionedConfig as-config-map of kind ConfigMap exists already",
        (
            "deploy/same",
            "cm/same-kind",
        ): "a VersionedConfig same-kind exists already, with another data: change",
        ("deploy/same", f"cm/{version}"): "is a version already, of VersionedConfig same-kind",
        (f"rs/{revision}", "cm/app-cfg"): "is a revision of Deployment/web: name that instead",
        ("deploy/..", "cm/app-cfg"): "cannot be a name",
    }
    before = {one["metadata"]["name"] for one in fetch_all(api, versioned_configs(api), namespace)}
    for words, why in cases.items():
        assert why in refusal(run(kubectl, namespace, *words, "--apply")), words
    usage: dict[tuple[str, ...], str] = {
        ("deploy/web",): "name a ConfigMap or Secret",
        ("deploy/web", "cm/app-cfg", "--name", "x"): "must be that of the object",
        ("deploy/web", "cm/app-cfg", "--wait"): "goes with --apply",
    }
    for words, why in usage.items():
        assert why in refusal(run(kubectl, namespace, *words), code=2), words
    assert "nothing in namespace kube-system" in refusal(
        run(kubectl, "kube-system", "deploy/web", "cm/kube-root-ca.crt")
    )

    # The name of the version is taken; and what the API server refuses of two leaves nothing behind.
    name = adopt(kubectl, namespace, "deploy/web", "cm/app-cfg").stderr.partition("as version ")[2].split()[0]
    kubectl.create(namespace, config_map(name))
    said = refusal(run(kubectl, namespace, "deploy/web", *BOTH, "--apply"))
    assert f"ConfigMap {name} exists and is no version" in said
    kubectl("delete", "configmap", name, "-n", namespace)
    kubectl(
        "create",
        "quota",
        "one",
        "-n",
        namespace,
        f"--hard=count/versionedconfigs.versionedconfig.io={len(before)}",
    )
    wait_until(
        lambda: get(api, namespace, "one", pykube.ResourceQuota).get("status", {}).get("used"), 30, "quota"
    )
    said = refusal(run(kubectl, namespace, "deploy/web", *BOTH, "--apply"))
    assert "exceeded quota" in said
    assert "nothing was written" in said
    assert {one["metadata"]["name"] for one in fetch_all(api, versioned_configs(api), namespace)} == before
    assert len(replica_sets(api, namespace)) == 1


def test_rights_that_suffice_and_those_that_do_not(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, tmp_path: Path
) -> None:
    run_plain(kubectl, namespace, "web")
    accounts = {}
    for account in ("edit", "narrow"):
        kubectl("create", "serviceaccount", account, "-n", namespace)
        accounts[account] = harness.account_kubeconfig(kubectl, tmp_path / account, account, namespace)
    kubectl(
        *("create", "rolebinding", "edit", "-n", namespace, "--clusterrole=edit"),
        f"--serviceaccount={namespace}:edit",
    )
    kubectl(
        *("create", "role", "narrow", "-n", namespace, "--verb=get"),
        "--resource=deployments.apps,configmaps,versionedconfigs.versionedconfig.io",
    )
    kubectl(
        *("create", "rolebinding", "narrow", "-n", namespace, "--role=narrow"),
        f"--serviceaccount={namespace}:narrow",
    )

    narrow = run(kubectl, namespace, "deploy/web", "cm/app-cfg", kubeconfig=accounts["narrow"])
    assert narrow.returncode == 0, narrow.stderr
    assert "no right to list cronjobs" in narrow.stderr
    assert "whether pods or Jobs without a controller refer to it could not be seen" in narrow.stderr
    (printed,) = yaml.safe_load_all(narrow.stdout)
    assert printed["spec"]["rollout"] == {"targets": [{"kind": "Deployment", "name": "web"}]}
    said = refusal(run(kubectl, namespace, "deploy/web", "secret/db", kubeconfig=accounts["narrow"]))
    assert "you may not get secrets" in said
    said = run(
        kubectl, namespace, "deploy/web", "cm/app-cfg", "--apply", kubeconfig=accounts["narrow"]
    ).stderr
    assert "you may not create versionedconfigs" in said

    done = run(kubectl, namespace, "deploy/web", *BOTH, "--apply", "--wait", kubeconfig=accounts["edit"])
    assert done.returncode == 0, done.stderr
    assert "could not be seen" in done.stderr


def test_a_failed_rollout_ends_the_wait(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web")
    kubectl("create", "quota", "none", "-n", namespace, "--hard=configmaps=2")
    wait_until(
        lambda: get(api, namespace, "none", pykube.ResourceQuota).get("status", {}).get("used"), 30, "quota"
    )

    done = run(kubectl, namespace, "deploy/web", "cm/app-cfg", "--apply", "--wait")

    assert done.returncode == 1
    assert "VersionRefused" in done.stdout


def test_a_cluster_that_does_not_know_the_kind(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    run_plain(kubectl, namespace, "web")
    kubectl("delete", "crd", "versionedconfigs.versionedconfig.io")
    try:
        done = adopt(kubectl, namespace, "deploy/web", *BOTH)
        assert "warning: this cluster does not know VersionedConfigs" in done.stderr
        assert len(list(yaml.safe_load_all(done.stdout))) == 2
        done = run(kubectl, namespace, "deploy/web", *BOTH, "--apply")
        assert (done.returncode, done.stdout) == (1, "")
        assert "error: this cluster does not know VersionedConfigs" in done.stderr
    finally:
        harness.install(kubectl, api)
