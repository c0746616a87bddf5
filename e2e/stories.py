"""What scenarios about VersionedConfigs ask the cluster, and what they do to it: the words in which they are told."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pykube

from e2e import harness
from e2e.harness import (
    IN_USE,
    Cluster,
    Kubectl,
    Manifest,
    deployment,
    fetch,
    fetch_all,
    live_pods,
    plain_pod_spec,
    pods_read,
    reading_pod_spec,
    versioned_config,
    wait_for_rollout,
    wait_until,
    wait_versioned,
)

# -- what there is ---------------------------------------------------------------------------------------------------


def get(api: pykube.HTTPClient, namespace: str, name: str, kind: type[Any]) -> Manifest:
    """The object, which must exist."""
    found = fetch(api, kind, namespace, name)
    assert found is not None, f"there is no {kind.__name__} {name}"
    return found


def resource(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> Manifest:
    """The VersionedConfig."""
    return get(api, namespace, name, harness.versioned_configs(api))


def version_of(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg", *, besides: str = "") -> str:
    """Waits until the VersionedConfig is ready; the version that is current then."""
    return str(wait_versioned(api, namespace, name, besides=besides)["status"]["currentVersion"])


def wait_condition(
    api: pykube.HTTPClient, namespace: str, kind: str, reason: str, name: str = "app-cfg"
) -> Manifest:
    """Until that condition is true for that reason, about the VersionedConfig as it stands now."""

    def told() -> Manifest | None:
        found = resource(api, namespace, name)
        about = found["metadata"]["generation"]
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["observedGeneration"] == about:
                wanted = (condition["status"], condition["reason"]) == ("True", reason)
                return dict(condition) if wanted else None
        return None

    return wait_until(told, 30, f"{name} has {kind}=True, {reason}")


def wait_ready_reason(api: pykube.HTTPClient, namespace: str, reason: str) -> None:
    """Until the condition Ready gives that reason."""

    def told() -> bool:
        conditions = resource(api, namespace).get("status", {}).get("conditions", [])
        return any((c["type"], c["reason"]) == ("Ready", reason) for c in conditions)

    wait_until(told, 30, f"Ready tells {reason}")


def edit(kubectl: Kubectl, namespace: str, **spec: Any) -> None:
    """Change fields of the VersionedConfig; null removes one."""
    patch = json.dumps({"spec": spec}, ensure_ascii=False)
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--type=merge", "--patch-file=/dev/stdin", stdin=patch)


def change(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, mode: str, before: str = "") -> str:
    """Other content; waits until every target is through. The new version."""
    edit(kubectl, namespace, data={"MODE": mode})
    return version_of(api, namespace, besides=before)


def template(api: pykube.HTTPClient, namespace: str, name: str = "web") -> Manifest:
    """The pod spec of a Deployment's template."""
    found: Manifest = get(api, namespace, name, pykube.Deployment)["spec"]["template"]["spec"]
    return found


def names_in(pod_spec: Manifest) -> set[str]:
    """The ConfigMaps that a pod spec as made by `reading_pod_spec` refers to."""
    (container,) = pod_spec["containers"]
    keys = [env["valueFrom"]["configMapKeyRef"] for env in container.get("env", []) if "valueFrom" in env]
    sources = [volume["configMap"] for volume in pod_spec.get("volumes", []) if "configMap" in volume]
    return {str(found["name"]) for found in (*keys, *sources)}


def replica_sets(api: pykube.HTTPClient, namespace: str, app: str = "web") -> dict[str, int]:
    """Name to revision."""
    found = fetch_all(api, pykube.ReplicaSet, namespace, {"app": app})
    return {one["metadata"]["name"]: revision(one) for one in found}


def revision(found: Manifest) -> int:
    return int(found["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def revision_with(api: pykube.HTTPClient, namespace: str, version: str) -> int:
    """The revision of `web` whose template refers to that version."""
    found = fetch_all(api, pykube.ReplicaSet, namespace, {"app": "web"})
    (one,) = [rs for rs in found if names_in(rs["spec"]["template"]["spec"]) == {version}]
    return revision(one)


def versions(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> set[str]:
    """The version objects that exist."""
    found = fetch_all(api, pykube.ConfigMap, namespace, {"versionedconfig.io/name": name})
    return {str(one["metadata"]["name"]) for one in found}


def targets(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> dict[str, tuple[str, str]]:
    """Name of each target to its state and version, as the status tells."""
    told = resource(api, namespace, name).get("status", {}).get("targets", [])
    return {one["name"]: (one["state"], one.get("version", "")) for one in told}


def modes(cluster: Cluster, api: pykube.HTTPClient, namespace: str, app: str = "web") -> list[set[str]]:
    """What MODE is in each pod's environment and volume."""
    return [reading.mode() for reading in pods_read(cluster, api, namespace, app)]


def identity(api: pykube.HTTPClient, namespace: str, name: str, kind: type[Any] = pykube.ConfigMap) -> str:
    """Changes with every write to the object, and with the object."""
    meta = get(api, namespace, name, kind)["metadata"]
    return f"{meta['uid']} {meta['resourceVersion']}"


def generation(api: pykube.HTTPClient, namespace: str, name: str = "web") -> tuple[str, int]:
    """Of a Deployment: changes with every write to its spec, and with the Deployment."""
    meta = get(api, namespace, name, pykube.Deployment)["metadata"]
    return str(meta["uid"]), int(meta["generation"])


def wait_released(api: pykube.HTTPClient, namespace: str, version: str) -> None:
    """Until no pod uses the version any more, and the operator has seen it."""

    def released() -> bool:
        return IN_USE not in harness.finalizers(get(api, namespace, version, pykube.ConfigMap))

    wait_until(released, 30, f"{version} is released")


def predicted(kubectl: Kubectl, mode: str, name: str = "app-cfg") -> str:
    """What kubectl calls a ConfigMap with that content."""
    literal = f"--from-literal=MODE={mode}"
    done = kubectl("create", "configmap", name, literal, "--append-hash", "--dry-run=client", "-o", "name")
    return done.stdout.strip().removeprefix("configmap/")


def start(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, *, replicas: int = 1, **spec: Any) -> str:
    """A VersionedConfig `app-cfg` and a Deployment `web` that uses it; waits until all is well. The version."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, **spec))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=replicas))
    wait_moved(kubectl, api, namespace, first)
    return first


def wait_moved(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, version: str, name: str = "web"
) -> None:
    """Until the Deployment refers to that version alone, and has rolled out."""
    wait_until(lambda: names_in(template(api, namespace, name)) == {version}, 30, f"{name} is at {version}")
    wait_for_rollout(kubectl, namespace, name)


def versioned_secret(name: str = "app-cfg", text: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    """A VersionedConfig of Secrets; text goes to stringData."""
    made = versioned_config(name, spec.pop("data", {}), **spec)
    if text is not None:
        made["spec"]["stringData"] = dict(text)
    made["spec"]["kind"] = "Secret"
    return made


def wait_refused(
    api: pykube.HTTPClient, namespace: str, reason: str, *words: str, name: str = "app-cfg"
) -> Manifest:
    """Until the VersionedConfig is stalled and not ready for that reason, in a message with these words."""

    def told() -> Manifest | None:
        found = resource(api, namespace, name)
        about = found["metadata"]["generation"]
        now = {c["type"]: c for c in found.get("status", {}).get("conditions", [])}
        is_so = [
            (c["status"], c["reason"], c["observedGeneration"])
            for c in (now.get("Ready"), now.get("Stalled"))
            if c is not None
        ] == [("False", reason, about), ("True", reason, about)]
        return now["Ready"] if is_so and all(word in now["Ready"]["message"] for word in words) else None

    return wait_until(told, 30, f"{name} is refused for {reason} with {words}")


# -- several targets -------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """Every state that the Deployments of a namespace went through, in the order of the API server."""

    old: str
    seen: list[Mapping[str, Manifest]] = field(default_factory=list)

    def moved(self) -> list[str]:
        """Names in the order in which they left the old version."""
        order: list[str] = []
        for state in self.seen:
            order += sorted(name for name, found in state.items() if self._left(found) and name not in order)
        return order

    def most_on_the_move(self) -> int:
        """How many were neither at the old version nor rolled out, at most, at one time."""
        return max(
            sum(self._left(found) and not rolled_out(found) for found in state.values())
            for state in self.seen
        )

    def _left(self, found: Manifest) -> bool:
        return names_in(found["spec"]["template"]["spec"]) != {self.old}


def rolled_out(found: Manifest) -> bool:
    """As `kubectl rollout status` has it."""
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    return bool(
        status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        and status.get("updatedReplicas", 0) >= wanted
        and status.get("replicas", 0) <= status.get("updatedReplicas", 0)
        and status.get("availableReplicas", 0) >= status.get("updatedReplicas", 0)
    )


@contextlib.contextmanager
def watched(api: pykube.HTTPClient, namespace: str, old: str) -> Iterator[Watched]:
    """Watches the Deployments of the namespace from now on; complete when the context ends."""
    first = pykube.Deployment.objects(api, namespace=namespace)
    now = {found.name: found.obj for found in first}
    record = Watched(old, [dict(now)])
    stream = first.watch(since=first.response["metadata"]["resourceVersion"])
    end = f"end-{namespace}"

    def follow() -> None:
        for event in stream:
            if event.object.name == end:
                return
            now[event.object.name] = event.object.obj
            record.seen.append(dict(now))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    yield record
    # One more object: when the watch shows it, it has shown all that was before.
    last = deployment(end, plain_pod_spec(), replicas=0)
    pykube.Deployment(api, {**last, "metadata": {"name": end, "namespace": namespace}}).create()
    thread.join(30)
    assert not thread.is_alive(), "the watch did not get to its end"


def start_several(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, spec: Manifest, names: str, **config: Any
) -> str:
    """A VersionedConfig and Deployments of one pod each; the version that all of them have rolled out."""
    rollout = {"maxConcurrent": 1, **config.pop("rollout", {})}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout=rollout))
    version = version_of(api, namespace)
    kubectl.create(namespace, *(deployment(name, spec, replicas=1, **config) for name in names))
    for name in names:
        wait_moved(kubectl, api, namespace, version, name)
    updated = dict.fromkeys(names, ("Updated", version))
    wait_until(lambda: targets(api, namespace) == updated, 30, "the status tells so")
    assert version_of(api, namespace) == version
    return version


# -- versions that fail ----------------------------------------------------------------------------------------------

BAD: dict[str, Any] = {"MODE": "two", "CRASH": "1"}
"""Every container that takes CRASH from it exits a moment after it has started."""


def crashing_pod_spec(where: str = "containers") -> Manifest:
    """A pod that reads app-cfg, and fails when it says CRASH."""
    spec = reading_pod_spec()
    crash = {"name": "app-cfg", "key": "CRASH", "optional": True}
    env = {"name": "CRASH", "valueFrom": {"configMapKeyRef": crash}}
    if where == "containers":
        spec["containers"][0]["env"].append(env)
    else:
        spec[where] = [{"name": "i", "image": "busybox", "command": ["true"], "env": [env]}]
    return spec


def told_of(api: pykube.HTTPClient, namespace: str, version: str) -> Manifest:
    """What the status tells of a version."""
    found = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == version]
    assert len(found) == 1, f"{version} is told {len(found)} times"
    return dict(found[0])


def wait_rolled_back(api: pykube.HTTPClient, namespace: str) -> Manifest:
    """Until everything is back."""
    return wait_condition(api, namespace, "Stalled", "RolledBack")


# -- names that are used again ---------------------------------------------------------------------------------------


def stale(api: pykube.HTTPClient, namespace: str, name: str = "configmap-app-cfg") -> dict[str, Any] | None:
    """Its status."""
    kind = pykube.object_factory(api, "versionedconfig.io/v1alpha1", "StaleConfig")
    found = fetch(api, kind, namespace, name)
    return found.get("status") if found is not None else None


def wait_read(api: pykube.HTTPClient, namespace: str, app: str = "web") -> None:
    """Until the pods have run so long that nobody can doubt that their nodes have read what is there: clocks differ, events
    are late, and a volume is read again once in a while."""

    def old() -> bool:
        starts = [one["status"]["conditions"] for one in live_pods(api, namespace, app)]
        ready = [one["lastTransitionTime"] for all_ in starts for one in all_ if one["type"] == "Ready"]
        youngest = max(datetime.fromisoformat(one) for one in ready)
        return datetime.now(UTC) - youngest > timedelta(seconds=15)

    wait_until(old, 60, "the pods are old enough")


def vanish(kubectl: Kubectl, namespace: str, name: str = "app-cfg", resource: str = "configmap") -> None:
    """Delete an object in use, and strip it."""
    kubectl("annotate", "-n", namespace, resource, name, "versionedconfig.io/release=a test")
    kubectl("delete", "-n", namespace, resource, name)
