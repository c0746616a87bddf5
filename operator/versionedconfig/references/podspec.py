"""The rules for a pod spec: every field that names a ConfigMap or a Secret.

The structs name only those fields, so that a decoder skips the rest of a pod unread. The list of fields is the
kubelet's own (pkg/api/v1/pod/util.go, VisitPodConfigmapNames and VisitPodSecretNames): what is found here is what a
node counts as a user of the object, optional or not. All of them are names in the pod's own namespace.
"""

from collections.abc import Iterator
from sys import intern
from typing import Final

import msgspec

from versionedconfig.model import Reference

CONFIG_MAP: Final = "ConfigMap"
SECRET: Final = "Secret"  # noqa: S105 - the kind's name


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """gc=False: these are trees that live for one decode; the collector need not walk them."""


class _Named(_Struct, frozen=True):
    name: str | None = None
    optional: bool | None = None


class _ValueFrom(_Struct, frozen=True):
    config_map_key_ref: _Named | None = None
    secret_key_ref: _Named | None = None


class _EnvVar(_Struct, frozen=True):
    value_from: _ValueFrom | None = None


class _EnvFrom(_Struct, frozen=True):
    config_map_ref: _Named | None = None
    secret_ref: _Named | None = None


class _Container(_Struct, frozen=True):
    env: list[_EnvVar] | None = None
    env_from: list[_EnvFrom] | None = None


class _SecretVolume(_Struct, frozen=True):
    secret_name: str | None = None
    optional: bool | None = None


class _ProjectedSource(_Struct, frozen=True):
    config_map: _Named | None = None
    secret: _Named | None = None


class _Projected(_Struct, frozen=True):
    sources: list[_ProjectedSource] | None = None


class _SecretRefVolume(_Struct, frozen=True):
    """flexVolume, iscsi, cephfs, cinder, rbd, scaleIO and storageos have this shape in common."""

    secret_ref: _Named | None = None


class _CSIVolume(_Struct, frozen=True):
    node_publish_secret_ref: _Named | None = None


class _AzureFile(_Struct, frozen=True):
    secret_name: str | None = None


class _Volume(_Struct, frozen=True):
    config_map: _Named | None = None
    secret: _SecretVolume | None = None
    projected: _Projected | None = None
    csi: _CSIVolume | None = None
    azure_file: _AzureFile | None = None
    flex_volume: _SecretRefVolume | None = None
    iscsi: _SecretRefVolume | None = None
    cephfs: _SecretRefVolume | None = None
    cinder: _SecretRefVolume | None = None
    rbd: _SecretRefVolume | None = None
    scale_io: _SecretRefVolume | None = msgspec.field(name="scaleIO", default=None)
    storageos: _SecretRefVolume | None = None


_SECRET_REF_VOLUMES: Final = (
    ("flex_volume", "flexVolume"),
    ("iscsi", "iscsi"),
    ("cephfs", "cephfs"),
    ("cinder", "cinder"),
    ("rbd", "rbd"),
    ("scale_io", "scaleIO"),
    ("storageos", "storageos"),
)


class PodSpec(_Struct, frozen=True):
    """What of a pod spec can name a config object; decode pods and pod templates into it."""

    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    image_pull_secrets: list[_Named] | None = None


def pod_references(spec: PodSpec) -> Iterator[Reference]:
    """Every reference of the pod spec, in the order of its fields; empty names are no references
    (the kubelet skips them too, pkg/api/v1/pod/util.go)."""
    for i, pull_secret in enumerate(spec.image_pull_secrets or ()):
        if pull_secret.name:
            yield Reference(SECRET, pull_secret.name, ("imagePullSecrets", i, "name"))
    for field, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for i, container in enumerate(containers or ()):
            yield from _container_references((field, i), container)
    for i, volume in enumerate(spec.volumes or ()):
        yield from _volume_references(("volumes", i), volume)


def referenced_names(spec: PodSpec) -> tuple[tuple[str, str], ...]:
    """The distinct (kind, name) pairs of the pod spec, sorted: what an index needs of a pod."""
    return tuple(sorted({(ref.kind, intern(ref.name)) for ref in pod_references(spec)}))


def _container_references(prefix: tuple[str | int, ...], container: _Container) -> Iterator[Reference]:
    for i, source in enumerate(container.env_from or ()):
        yield from _named(CONFIG_MAP, source.config_map_ref, (*prefix, "envFrom", i, "configMapRef", "name"))
        yield from _named(SECRET, source.secret_ref, (*prefix, "envFrom", i, "secretRef", "name"))
    for i, variable in enumerate(container.env or ()):
        value = variable.value_from
        if value is not None:
            path = (*prefix, "env", i, "valueFrom")
            yield from _named(CONFIG_MAP, value.config_map_key_ref, (*path, "configMapKeyRef", "name"))
            yield from _named(SECRET, value.secret_key_ref, (*path, "secretKeyRef", "name"))


def _volume_references(prefix: tuple[str | int, ...], volume: _Volume) -> Iterator[Reference]:
    yield from _named(CONFIG_MAP, volume.config_map, (*prefix, "configMap", "name"))
    if volume.secret is not None and volume.secret.secret_name:
        optional = bool(volume.secret.optional)
        yield Reference(SECRET, volume.secret.secret_name, (*prefix, "secret", "secretName"), optional)
    if volume.projected is not None:
        for i, source in enumerate(volume.projected.sources or ()):
            path = (*prefix, "projected", "sources", i)
            yield from _named(CONFIG_MAP, source.config_map, (*path, "configMap", "name"))
            yield from _named(SECRET, source.secret, (*path, "secret", "name"))
    if volume.csi is not None:
        yield from _named(
            SECRET, volume.csi.node_publish_secret_ref, (*prefix, "csi", "nodePublishSecretRef", "name")
        )
    if volume.azure_file is not None and volume.azure_file.secret_name:
        yield Reference(SECRET, volume.azure_file.secret_name, (*prefix, "azureFile", "secretName"))
    for attribute, field in _SECRET_REF_VOLUMES:
        source_volume: _SecretRefVolume | None = getattr(volume, attribute)
        if source_volume is not None:
            yield from _named(SECRET, source_volume.secret_ref, (*prefix, field, "secretRef", "name"))


def _named(kind: str, ref: _Named | None, path: tuple[str | int, ...]) -> Iterator[Reference]:
    if ref is not None and ref.name:
        yield Reference(kind, ref.name, path, bool(ref.optional))
