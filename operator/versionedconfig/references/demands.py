"""What a pod template asks of a ConfigMap or Secret beyond its name, and what of that a content does not have. Pure.

A pod that asks for a key which is not there does not start, or starts with an empty directory in a file's place. So one
can look before a workload is moved. Sources are of Kubernetes 1.36 unless another version is named.
"""

import posixpath
from collections.abc import Collection, Iterable, Iterator
from sys import intern
from typing import Any, Final, Literal, TypeAlias

import msgspec

from versionedconfig.model import is_key

MOST_TOLD: Final = 10
"""Sentences in one answer."""

MAX_MODE: Final = 0o777

_MAX_NAME: Final = 253
_MAX_LABEL: Final = 80
"""Characters of a name that are told: the names in a custom kind's template have any length."""
_MAX_PATH: Final = 4096
_MAX_FILE_NAME: Final = 255
"""Both are the kubelet's (pkg/volume/util/atomic_writer.go)."""

# -- What is decoded -------------------------------------------------------------------------------------------------
#
# Any JSON that the API server can store decodes into these (its numbers are 64 bits wide): in a custom kind it stores
# what the schema lets through, and a template that makes no sense must not make its whole list unreadable. What has
# another type than Kubernetes' is taken as absent.

_Scalar: TypeAlias = str | int | float | bool | None
_NoObject: TypeAlias = list[Any] | _Scalar
_NoList: TypeAlias = dict[str, Any] | _Scalar


# gc=False: these are trees that live for one decode; the collector need not walk them.
class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _KeyRef(_Struct, frozen=True):
    name: Any = None
    key: Any = None
    optional: Any = None


class _ValueFrom(_Struct, frozen=True):
    config_map_key_ref: _KeyRef | _NoObject = None
    secret_key_ref: _KeyRef | _NoObject = None


class _Env(_Struct, frozen=True):
    name: Any = None
    value_from: _ValueFrom | _NoObject = None


class _Mount(_Struct, frozen=True):
    name: Any = None
    sub_path: Any = None
    sub_path_expr: Any = None


class _Container(_Struct, frozen=True):
    name: Any = None
    env: list[_Env | _NoObject] | _NoList = None
    volume_mounts: list[_Mount | _NoObject] | _NoList = None


class _Item(_Struct, frozen=True):
    key: Any = None
    path: Any = None
    mode: Any = None


class _Projection(_Struct, frozen=True):
    name: Any = None
    items: list[_Item | _NoObject] | _NoList = None
    optional: Any = None
    default_mode: Any = None


class _SecretVolume(_Struct, frozen=True):
    secret_name: Any = None
    items: list[_Item | _NoObject] | _NoList = None
    optional: Any = None
    default_mode: Any = None


class _DownwardAPI(_Struct, frozen=True):
    items: list[_Item | _NoObject] | _NoList = None


class _File(_Struct, frozen=True):
    path: Any = None


class _ProjectedSource(_Struct, frozen=True):
    config_map: _Projection | _NoObject = None
    secret: _Projection | _NoObject = None
    downward_api: _DownwardAPI | _NoObject = msgspec.field(name="downwardAPI", default=None)
    service_account_token: _File | _NoObject = None


class _Projected(_Struct, frozen=True):
    sources: list[_ProjectedSource | _NoObject] | _NoList = None
    default_mode: Any = None


class _Volume(_Struct, frozen=True):
    name: Any = None
    config_map: _Projection | _NoObject = None
    secret: _SecretVolume | _NoObject = None
    projected: _Projected | _NoObject = None


class TemplateSpec(_Struct, frozen=True):
    """What of a template's pod spec asks for something. Ephemeral containers are not in it: no template has them."""

    init_containers: list[_Container | _NoObject] | _NoList = None
    containers: list[_Container | _NoObject] | _NoList = None
    volumes: list[_Volume | _NoObject] | _NoList = None


AnyTemplateSpec: TypeAlias = TemplateSpec | _NoObject
"""The type to decode a pod spec into: takes whatever JSON there is in its place."""


# -- What is kept ----------------------------------------------------------------------------------------------------


Use: TypeAlias = Literal["variable", "file", "mount"]
"""What a key becomes: an environment variable, made of a ConfigMap's data alone and never of binaryData
(kubelet_pods.go, makeEnvironmentVariables); a file of a volume; a file that a container mounts by itself, by its
subPath."""


# gc=False: nothing but strings, so no cycles; demands are kept for every workload.
class Demand(msgspec.Struct, frozen=True, gc=False):
    """One key that a template asks for, or one field of it that no content can satisfy."""

    kind: str
    name: str
    """Of the object."""
    path: str
    """Of the field, as people know it: `spec.containers[web].env[MODE]`."""
    key: str
    """Empty in one with a fault."""
    optional: bool = False
    """Nothing is amiss without the key."""
    use: Use = "file"
    fault: str = ""
    """Why it cannot be met, whatever the content, with what to do. Kubernetes' own kinds are refused with such a
    template, but for a subPath that is not in the volume; of custom kinds it is the pods that are refused."""


def demands(spec: AnyTemplateSpec) -> tuple[Demand, ...]:
    """Everything that the template asks of config objects, each once, in the template's order."""
    if type(spec) is not TemplateSpec:
        return ()
    found: dict[Demand, None] = {}
    mounted: set[str] = set()
    sub_paths: dict[str, list[tuple[str, str]]] = {}
    for where, container in _containers(spec):
        for index, env in _each(container.env):
            # Most variables have a plain value.
            if type(env) is _Env and type(env.value_from) is _ValueFrom:
                source = env.value_from
                path = f"{where}.env[{_label(env.name, index)}]"
                if type(source.config_map_key_ref) is _KeyRef:
                    _variable(found, "ConfigMap", source.config_map_key_ref, path)
                if type(source.secret_key_ref) is _KeyRef:
                    _variable(found, "Secret", source.secret_key_ref, path)
        for index, mount in _each(container.volume_mounts):
            if type(mount) is _Mount and type(mount.name) is str:
                mounted.add(mount.name)
                # subPathExpr comes first where both are given (kubelet_pods.go, makeMounts).
                if sub_path := mount.sub_path_expr or mount.sub_path:
                    path = f"{where}.volumeMounts[{_label(mount.name, index)}].subPath"
                    sub_paths.setdefault(mount.name, []).append((path, sub_path))
    for index, volume in _each(spec.volumes):
        if type(volume) is _Volume:
            sources = _volume(found, volume, f"spec.volumes[{_label(volume.name, index)}]", mounted)
            for path, sub_path in sub_paths.get(volume.name, ()) if type(volume.name) is str else ():
                if sources and type(sub_path) is str:
                    _mount(found, path, sub_path, sources)
    return tuple(found)


# -- What is amiss ---------------------------------------------------------------------------------------------------


def missing(
    demands: Iterable[Demand],
    names: Collection[str],
    kind: str,
    keys: Collection[str],
    *,
    binary_keys: Collection[str] = (),
    most: int = MOST_TOLD,
) -> tuple[str, ...]:
    """What a template would miss if what it asks of these objects had these keys: sentences that name field and key and
    say what to do, in the template's order.

    Args:
        demands: of one template.
        names: of the objects that the content stands for: the logical name and all versions.
        kind: of those objects.
        keys: what the content has, in data.
        binary_keys: and in a ConfigMap's binaryData: files, but never environment variables.
        most: sentences; one more says how many were left out.
    """
    told: dict[str, None] = {}
    for demand in demands:
        if demand.kind == kind and demand.name in names and not demand.optional:
            sentence = _sentence(demand, keys, binary_keys)
            if sentence:
                told[sentence] = None
    return _first(list(told), most)


def _sentence(demand: Demand, keys: Collection[str], binary_keys: Collection[str]) -> str:
    if demand.fault:
        return f"{demand.path} {demand.fault}"
    if demand.key in keys:
        return ""
    if demand.use == "mount":
        if demand.key in binary_keys:
            return ""
        return (
            f"{demand.path} mounts key {demand.key} and would be an empty directory: "
            "add it, or take the mount out first"
        )
    if demand.key in binary_keys:
        if demand.use == "file":
            return ""
        return (
            f"{demand.path} asks for key {demand.key}, which is in binaryData, and variables come from data alone: "
            "move it to data, or take the reference out first"
        )
    return f"{demand.path} asks for key {demand.key}: add it, or take the reference out first"


def _first(sentences: list[str], most: int) -> tuple[str, ...]:
    rest = len(sentences) - most
    return (*sentences[:most], f"and {rest} more") if rest > 0 else tuple(sentences)


# -- Walking ---------------------------------------------------------------------------------------------------------


class _Files(msgspec.Struct, gc=False):
    """What one source of a volume puts into it."""

    kind: str = ""
    """Empty: it is no config object."""
    name: str = ""
    optional: bool = False
    paths: tuple[str, ...] = ()
    whole: bool = False
    """Every key is a file."""
    unknown: bool = False
    """It may put further files there."""


def _containers(spec: TemplateSpec) -> Iterator[tuple[str, _Container]]:
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in _each(containers):
            if type(container) is _Container:
                yield f"spec.{field}[{_label(container.name, index)}]", container


def _each(value: object) -> Iterable[tuple[int, Any]]:
    return enumerate(value) if type(value) is list else ()


def _label(name: object, index: int) -> str:
    return name[:_MAX_LABEL] if type(name) is str and name else str(index)


def _is_name(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= _MAX_NAME


def _variable(found: dict[Demand, None], kind: str, ref: _KeyRef, path: str) -> None:
    if _is_name(ref.name):
        _ask(found, kind, ref.name, path, ref.key, ref.optional is True, "variable")


def _ask(
    found: dict[Demand, None], kind: str, name: str, path: str, key: object, optional: bool, use: Use
) -> None:
    # What cannot be a key is refused by the API server, or it is to be replaced before a pod is made, as in
    # `{{parameters.key}}`: nobody knows what will be asked for.
    if type(key) is str and is_key(key):
        found[Demand(kind, intern(name), intern(path), intern(key), optional, use)] = None


def _refuse(found: dict[Demand, None], files: _Files, path: str, fault: str) -> None:
    found[Demand(files.kind, intern(files.name), intern(path), "", fault=intern(fault))] = None


def _volume(found: dict[Demand, None], volume: _Volume, where: str, mounted: Collection[str]) -> list[_Files]:
    """Add what the volume asks for; what is in it, empty where it is none of config objects."""
    # A volume that no container mounts is not set up (volumemanager/populator/desired_state_of_world_populator.go).
    used = type(volume.name) is str and volume.name in mounted
    sources: list[_Files] = []
    if type(volume.config_map) is _Projection and _is_name(volume.config_map.name):
        config_map = volume.config_map
        sources.append(
            _source(found, "ConfigMap", config_map.name, config_map, f"{where}.configMap", used=used)
        )
    if type(volume.secret) is _SecretVolume and _is_name(volume.secret.secret_name):
        secret = volume.secret
        sources.append(_source(found, "Secret", secret.secret_name, secret, f"{where}.secret", used=used))
    if type(volume.projected) is _Projected:
        for index, source in _each(volume.projected.sources):
            path = f"{where}.projected.sources[{index}]"
            sources.append(_projected(found, source, path, used))
        for files in sources:
            if files.kind:
                _check_mode(found, files, f"{where}.projected.defaultMode", volume.projected.default_mode)
    return sources if any(files.kind for files in sources) else []


def _projected(found: dict[Demand, None], source: object, path: str, used: bool) -> _Files:
    if type(source) is _ProjectedSource:
        # The first of them counts (pkg/volume/projected/projected.go, collectData).
        if type(source.secret) is _Projection:
            if _is_name(source.secret.name):
                return _source(
                    found, "Secret", source.secret.name, source.secret, f"{path}.secret", used=used
                )
        elif type(source.config_map) is _Projection:
            if _is_name(source.config_map.name):
                config_map = source.config_map
                return _source(
                    found, "ConfigMap", config_map.name, config_map, f"{path}.configMap", used=used
                )
        elif type(source.downward_api) is _DownwardAPI:
            paths, unknown = _paths(source.downward_api.items)
            return _Files(paths=paths, unknown=unknown)
        elif type(source.service_account_token) is _File:
            token = source.service_account_token.path
            return _Files(paths=(token,)) if type(token) is str else _Files(unknown=True)
    # Certificates, and what later versions of Kubernetes bring.
    return _Files(unknown=True)


def _source(
    found: dict[Demand, None],
    kind: str,
    name: str,
    source: _Projection | _SecretVolume,
    path: str,
    *,
    used: bool,
) -> _Files:
    """Add what one object in a volume is asked for: with items each of their keys, unless it is optional (MakePayload
    in pkg/volume/configmap and pkg/volume/secret)."""
    files = _Files(kind, name, source.optional is True)
    _check_mode(found, files, f"{path}.defaultMode", source.default_mode)
    for index, item in _each(source.items):
        if type(item) is not _Item:
            continue
        where = f"{path}.items[{_label(item.key, index)}]"
        if used:
            _ask(found, kind, name, where, item.key, files.optional, "file")
        _check_mode(found, files, f"{where}.mode", item.mode)
        if item.path is None or type(item.path) is str:
            fault = _path_fault(item.path or "")
            if fault:
                _refuse(found, files, f"{where}.path", fault)
    files.paths, files.unknown = _paths(source.items)
    files.whole = not source.items
    return files


def _paths(items: object) -> tuple[tuple[str, ...], bool]:
    """Where the items put files, and whether there may be more than is known."""
    paths = tuple(item.path for _, item in _each(items) if type(item) is _Item and type(item.path) is str)
    odd = bool(items) and (type(items) is not list or len(paths) < len(items))
    return paths, odd or any(map(_is_pattern, paths))


def _mount(found: dict[Demand, None], path: str, sub_path: str, sources: list[_Files]) -> None:
    """Add what a container asks for that mounts only this of a volume.

    Where it is not there, nothing fails: the kubelet makes an empty directory of that name and mounts it
    (kubelet_pods.go, makeMounts: PathExists, then SafeMakeDir; k/k #54514, #126186). Where a file is in the way of that
    directory, the container is not made. Whoever made an object optional expects the empty directory.
    """
    if _is_pattern(sub_path):
        return
    if fault := _sub_path_fault(sub_path):
        for files in sources:
            if files.kind:
                _refuse(found, files, path, fault)
        return
    # The files stand in the directory that the link ..data points to (atomic_writer.go), and may be named through it.
    wanted = posixpath.normpath(sub_path).removeprefix("..data/")
    if wanted in (".", "..data") or wanted.startswith(".."):
        return
    whole: list[_Files] = []
    for files in sources:
        if files.unknown or any(_is_at(file, wanted) for file in files.paths):
            # A directory on the way to files will do. The items ask for the keys.
            return
        if files.whole:
            whole.append(files)
    if whole and is_key(wanted):
        # Of several objects each may have it, and only the keys of one are known when it is asked.
        if len(whole) == 1:
            (one,) = whole
            _ask(found, one.kind, one.name, path, wanted, one.optional, "mount")
        return
    if any(files.optional for files in sources):
        return
    for files in sources:
        if files.kind:
            _refuse(
                found,
                files,
                path,
                f"mounts {wanted[:_MAX_LABEL]!r}, which the volume has not under any content: "
                "correct it, or add an item with that path",
            )


def _is_at(file: str, wanted: str) -> bool:
    there = posixpath.normpath(file)
    return there == wanted or there.startswith(f"{wanted}/")


def _is_pattern(path: str) -> bool:
    """What subPathExpr takes from the container's variables, and what custom kinds replace before they make a pod."""
    return "$" in path or "{{" in path


def _check_mode(found: dict[Demand, None], files: _Files, path: str, mode: object) -> None:
    """As pkg/apis/core/validation (validateKeyToPath). Other types than whole numbers are taken as absent."""
    if type(mode) is int and not 0 <= mode <= MAX_MODE:
        _refuse(
            found,
            files,
            path,
            f"is {mode} and the mode of a file is from 0 to {MAX_MODE}: correct it (octal 0644 is 420)",
        )


def _path_fault(path: str) -> str:
    """As pkg/apis/core/validation (ValidateLocalNonReservedPath) and the kubelet (atomic_writer.go, validatePath)."""
    if not path:
        return "is empty: name the file"
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return f"{path[:_MAX_LABEL]!r} leads out of the volume: use a relative path without '..'"
    if path.startswith("..") or posixpath.normpath(path) == ".":
        return (
            f"{path[:_MAX_LABEL]!r} cannot be a file's: use one that is not '.' and does not start with '..'"
        )
    if len(path.encode(errors="replace")) > _MAX_PATH or any(
        len(part.encode(errors="replace")) > _MAX_FILE_NAME for part in parts
    ):
        return f"{path[:_MAX_LABEL]!r}… is too long: use at most {_MAX_PATH} bytes, {_MAX_FILE_NAME} in each part"
    return ""


def _sub_path_fault(path: str) -> str:
    """As pkg/apis/core/validation (validateLocalDescendingPath) and the kubelet (makeMounts)."""
    if path.startswith("/") or ".." in path.split("/"):
        return f"{path[:_MAX_LABEL]!r} leads out of the volume: use a relative path without '..'"
    return ""
