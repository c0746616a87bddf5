"""Content and its names: what a version holds, the hash that kubectl gives it, and what Kubernetes refuses. Pure.

The hash is kubectl's (pkg/util/hash/hash.go in k8s.io/kubectl), so that people can predict a version's name with
`kubectl create configmap NAME … --append-hash`. It is taken with `immutable` unset, as kubectl does there.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_BYTES: Final = 1 << 20
"""Sum of the values in bytes, decoded (pkg/apis/core/validation, ValidateConfigMap; core.MaxSecretSize)."""

HASH_LENGTH: Final = 10
MAX_NAME: Final = 253
MAX_BASE_NAME: Final = MAX_NAME - HASH_LENGTH - 1

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_GO_HTML_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
# kubectl swaps the characters that could spell words or be misread (encodeHash in hash.go).
_HEX_TO_NAME: Final = str.maketrans("013ae", "ghkmt")


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
    return Content("ConfigMap", dict(data), {key: _base64(key, value) for key, value in binary_data.items()})


def content_problems(name: str, content: Content) -> tuple[str, ...]:
    """Why Kubernetes would refuse a version with this content, in words that say what to change; values are not told.

    The rules are those of pkg/apis/core/validation (ValidateConfigMap) and apimachinery's IsConfigMapKey.
    """
    problems = []
    if len(name) > MAX_BASE_NAME:
        problems.append(
            f"the name has {len(name)} characters and a version's name adds {HASH_LENGTH + 1}: "
            f"use at most {MAX_BASE_NAME}"
        )
    if not content.data and not content.binary_data:
        problems.append("there is nothing in it: give spec.data or spec.binaryData at least one key")
    for key in (*content.data, *content.binary_data):
        if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
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
    return tuple(problems)


def content_size(content: Content) -> int:
    """Sum of the decoded values in bytes: what Kubernetes limits."""
    encoded = [*content.binary_data.values(), *(content.data.values() if content.kind == "Secret" else ())]
    text = () if content.kind == "Secret" else content.data.values()
    return sum(map(_decoded_size, encoded)) + sum(len(value.encode()) for value in text)


def encode_hash(hex_digest: str) -> str:
    """kubectl's encoding of a SHA-256 in hex: ten characters that are safe in a name."""
    return hex_digest[:HASH_LENGTH].translate(_HEX_TO_NAME)


def _base64(key: str, value: str) -> str:
    try:
        decoded = base64.b64decode(value.translate({10: None, 13: None}), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the value of key {key!r} in binaryData is not base64") from None
    return base64.b64encode(decoded).decode()


def _decoded_size(value: str) -> int:
    return len(value) * 3 // 4 - value[-2:].count("=")


def _go_json(value: Mapping[str, object]) -> bytes:
    """JSON as Go's encoding/json writes a map: sorted keys, no spaces, HTML characters and U+2028/9 escaped."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.translate(_GO_HTML_ESCAPES).encode()
