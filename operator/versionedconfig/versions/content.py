"""Content and its names: what a version holds, the hash that kubectl gives it, and what Kubernetes refuses. Pure.

The hash is kubectl's (pkg/util/hash/hash.go in k8s.io/kubectl), so that people can predict a version's name with
`kubectl create configmap NAME … --append-hash`. It is taken with `immutable` unset, as kubectl does there.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from versionedconfig.model import is_key

MAX_BYTES: Final = 1 << 20
"""Sum of the values in bytes, decoded (pkg/apis/core/validation, ValidateConfigMap; core.MaxSecretSize)."""

HASH_LENGTH: Final = 10
MAX_NAME: Final = 253
MAX_BASE_NAME: Final = MAX_NAME - HASH_LENGTH - 1

OPAQUE: Final = "Opaque"
"""The type that the API server stores where none is given (pkg/apis/core/v1/defaults.go)."""

REFUSED_TYPES: Final = {
    # tokens_controller.go fills it in after the POST, which an immutable Secret would not allow, and deletes it with
    # its ServiceAccount.
    "kubernetes.io/service-account-token": "its controller fills it in and deletes it with the ServiceAccount",
    # pkg/controller/bootstrap/tokencleaner.go
    "bootstrap.kubernetes.io/token": "its controller deletes it when the token expires",
    "helm.sh/release.v1": "Helm writes and deletes it by itself",
}
"""Types that are somebody else's, and why."""

_GO_HTML_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
# kubectl swaps the characters that could spell words or be misread (encodeHash in hash.go).
_HEX_TO_NAME: Final = str.maketrans("013ae", "ghkmt")


MOST_NAMED: Final = 5
"""Keys that one sentence names."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one version holds. Values never show in its repr: it may end in a log or a traceback."""

    kind: str
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    """ConfigMap: text; Secret: base64."""
    binary_data: Mapping[str, str] = field(default_factory=dict, repr=False)
    """ConfigMap only, base64 in one line as Go writes it."""
    type: str = ""
    """Secret only, as stored (`Opaque` where the user named none)."""

    def digest(self) -> str:
        """SHA-256 of the whole content in hex, without the name."""
        return hashlib.sha256(_go_json({"kind": self.kind, "type": self.type, **self._values()})).hexdigest()

    def hash(self, name: str, attempt: int = 0) -> str:
        """The ten characters that kubectl's --append-hash gives this content under `name`.

        An `attempt` above zero gives another, equally stable hash: for the case that two contents of one name share
        their 40 bits.
        """
        identity: dict[str, object] = {"kind": self.kind, "name": name, **self._values()}
        if self.kind == "Secret":
            identity["type"] = self.type
        if attempt:
            identity["attempt"] = attempt
        return encode_hash(hashlib.sha256(_go_json(identity)).hexdigest())

    def version_name(self, name: str, attempt: int = 0) -> str:
        """`<name>-<hash>`: the name of the version that holds this content."""
        return f"{name}-{self.hash(name, attempt)}"

    def _values(self) -> dict[str, object]:
        values: dict[str, object] = {"data": dict(self.data)}
        if self.binary_data:
            values["binaryData"] = dict(self.binary_data)
        return values


def config_map_content(data: Mapping[str, str], binary_data: Mapping[str, str]) -> Content:
    """A ConfigMap's content; base64 is brought to one form, so that line wrapping does not change the hash.

    Raises:
        ValueError: a value of binaryData is no base64; names the key, never the value.
    """
    return Content(
        "ConfigMap",
        dict(data),
        {
            key: _base64(value, f"the value of key {key!r} in binaryData is not base64")
            for key, value in binary_data.items()
        },
    )


def secret_content(type_: str, data: Mapping[str, str], string_data: Mapping[str, str]) -> Content:
    """A Secret's content as the API server stores it: stringData wins over data, key by key (pkg/apis/core/v1,
    conversion.go), the type is never empty, and base64 has one form.

    Raises:
        ValueError: a value of data is no base64, one of stringData no text; names the key, never the value.
    """
    encoded = {
        key: _base64(
            value,
            f"the value of key {key!r} in data is not base64: encode it, or move the text to stringData",
        )
        for key, value in data.items()
    }
    for key, value in string_data.items():
        try:
            encoded[key] = base64.b64encode(value.encode()).decode()
        except UnicodeEncodeError:
            # Half of a surrogate pair; the error itself would carry the value.
            raise ValueError(
                f"the value of key {key!r} in stringData is no Unicode text: correct it"
            ) from None
    return Content("Secret", encoded, type=type_ or OPAQUE)


@dataclass(frozen=True, slots=True)
class Source:
    """An object that content is taken from, as `spec.from` names it. The content's repr is masked, and so is this."""

    kind: str
    name: str
    content: Content | None
    """None: there is no such object."""
    optional: bool = False
    """The object, and each of the keys, may be absent."""
    keys: tuple[str, ...] = ()
    """What to take; empty: everything."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What `merge` made."""

    content: Content
    problems: tuple[str, ...]
    """Why it is not whole, each with what to do; no version may be made of it then."""


def merge(sources: Iterable[Source], own: Content) -> Merged:
    """The content of all sources and the VersionedConfig's own, which decides about kind and type.

    Later sources win over earlier ones and `own` over all, key by key, whether a key is in data or in binaryData: in a
    ConfigMap it is in one of them only. A ConfigMap never takes from a Secret: more people may read ConfigMaps.
    """
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    problems: list[str] = []
    for source in sources:
        if own.kind != "Secret" and source.kind == "Secret":
            problems.append(
                f"from: a ConfigMap cannot take from Secret {source.name}, it would show it to whoever reads "
                "ConfigMaps: leave the entry out, or make a VersionedConfig of kind Secret"
            )
        elif source.content is None:
            if not source.optional:
                problems.append(
                    f"from: there is no {source.kind} {source.name}: create it, or set optional: true"
                )
        else:
            _take(own.kind, source.content, source.keys, data, binary)
            there = source.content.data.keys() | source.content.binary_data.keys()
            missing = [key for key in source.keys if key not in there]
            if missing and not source.optional:
                problems.append(
                    f"from: {source.kind} {source.name} has no key {_listed(missing)}: "
                    "add it there, take it out of keys, or set optional: true"
                )
    _take(own.kind, own, (), data, binary)
    return Merged(replace(own, data=data, binary_data=binary), tuple(problems))


def content_problems(name: str, content: Content) -> tuple[str, ...]:
    """Why Kubernetes would refuse a version with this content, in words that say what to change; values are not told.

    The rules are those of pkg/apis/core/validation (ValidateConfigMap, ValidateSecret) and apimachinery's
    IsConfigMapKey.
    """
    problems = []
    if reason := REFUSED_TYPES.get(content.type):
        problems.append(
            f"a Secret of type {content.type} cannot be a version, {reason}: "
            f"set another type, such as {OPAQUE}, in a new VersionedConfig, or refer to that Secret itself"
        )
    if len(name) > MAX_BASE_NAME:
        problems.append(
            f"the name has {len(name)} characters and a version's name adds {HASH_LENGTH + 1}: "
            f"use at most {MAX_BASE_NAME}"
        )
    if not content.data and not content.binary_data:
        other = "stringData" if content.kind == "Secret" else "binaryData"
        problems.append(f"there is nothing in it: give spec.data or spec.{other} at least one key")
    for key in (*content.data, *content.binary_data):
        if not is_key(key):
            problems.append(
                f"key {key[:80]!r} cannot be a file name in a pod: use letters, digits, '-', '_' and '.', "
                "at most 253, and not '.' or '..' at the start"
            )
    for key in sorted(content.data.keys() & content.binary_data.keys()):
        problems.append(f"key {key!r} is in both data and binaryData: keep one of them")
    size = content_size(content)
    if size > MAX_BYTES:
        problems.append(
            f"the values have {size} bytes together and Kubernetes takes {MAX_BYTES}: "
            "split the content over several VersionedConfigs"
        )
    elif content.data:
        problems.extend(_type_problems(content))
    return tuple(problems)


def content_size(content: Content) -> int:
    """Sum of the decoded values in bytes: what Kubernetes limits."""
    encoded = [*content.binary_data.values(), *(content.data.values() if content.kind == "Secret" else ())]
    text = () if content.kind == "Secret" else content.data.values()
    return sum(map(_decoded_size, encoded)) + sum(len(value.encode()) for value in text)


def encode_hash(hex_digest: str) -> str:
    """kubectl's encoding of a SHA-256 in hex: ten characters that are safe in a name."""
    return hex_digest[:HASH_LENGTH].translate(_HEX_TO_NAME)


def _take(
    kind: str, content: Content, keys: tuple[str, ...], data: dict[str, str], binary: dict[str, str]
) -> None:
    """Lay the content, or those of its keys, over what is there."""
    wanted = frozenset(keys)
    for key, value in content.data.items():
        if not wanted or key in wanted:
            binary.pop(key, None)
            text = kind == "Secret" and content.kind != "Secret"
            data[key] = base64.b64encode(value.encode()).decode() if text else value
    for key, value in content.binary_data.items():
        if not wanted or key in wanted:
            data.pop(key, None)
            (data if kind == "Secret" else binary)[key] = value


def _type_problems(content: Content) -> list[str]:
    """What the type asks of a Secret (ValidateSecret in pkg/apis/core/validation), no more: it does not look into
    certificates or keys either, and unknown types are free."""
    needed = f"a Secret of type {content.type} needs the key"
    match content.type:
        case "kubernetes.io/dockercfg":
            return _json_problems(content, ".dockercfg")
        case "kubernetes.io/dockerconfigjson":
            return _json_problems(content, ".dockerconfigjson")
        case "kubernetes.io/basic-auth":
            if content.data.keys().isdisjoint(("username", "password")):
                return [f"{needed} 'username' or 'password': add one of them"]
        case "kubernetes.io/ssh-auth":
            if not content.data.get("ssh-privatekey"):
                return [f"{needed} 'ssh-privatekey', and not empty: add it"]
        case "kubernetes.io/tls":
            return [f"{needed} {key!r}: add it" for key in ("tls.crt", "tls.key") if key not in content.data]
    return []


def _json_problems(content: Content, key: str) -> list[str]:
    if key not in content.data:
        return [f"a Secret of type {content.type} needs the key {key!r}: add it"]
    if _is_json_object(base64.b64decode(content.data[key])):
        return []
    return [f"the value of key {key!r} is no JSON object, which type {content.type} needs: correct it"]


def _is_json_object(value: bytes) -> bool:
    """As Go's json.Unmarshal into a map: null is one, bytes that are no UTF-8 are replaced, and numbers must be those
    that a float64 can hold."""
    try:
        decoded = json.loads(
            value.decode(errors="replace"), parse_int=_number, parse_float=_number, parse_constant=_number
        )
    except (ValueError, RecursionError):
        return False
    return decoded is None or isinstance(decoded, dict)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _listed(keys: list[str]) -> str:
    named = ", ".join(map(repr, keys[:MOST_NAMED]))
    return f"{named} and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else named


def _base64(value: str, refusal: str) -> str:
    # Line breaks are skipped, as Go does (encoding/base64).
    try:
        decoded = base64.b64decode(value.translate({10: None, 13: None}), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(refusal) from None
    return base64.b64encode(decoded).decode()


def _decoded_size(value: str) -> int:
    return len(value) * 3 // 4 - value[-2:].count("=")


def _go_json(value: Mapping[str, object]) -> bytes:
    """JSON as Go's encoding/json writes a map: sorted keys, no spaces, HTML characters and U+2028/9 escaped."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.translate(_GO_HTML_ESCAPES).encode()
