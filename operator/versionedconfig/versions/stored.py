"""A config object with its content, as the API server has it: read for one moment, written, and never kept."""

from collections.abc import Mapping

import msgspec

from versionedconfig.kube.api import Api, ApiError
from versionedconfig.model import ConfigKey
from versionedconfig.projection import api_path
from versionedconfig.versions.content import Content


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of any of them."""

    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Written(msgspec.Struct, frozen=True):
    """The answer to a write of which the metadata alone is asked."""

    metadata: Metadata


class Stored(msgspec.Struct, frozen=True, rename="camel"):
    """A ConfigMap or Secret; its repr shows nothing of it."""

    metadata: Metadata
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    type: str = ""
    immutable: bool = False

    def __repr__(self) -> str:
        return "<Stored>"

    def content(self, kind: str) -> Content:
        """What it holds."""
        return Content(kind, self.data or {}, self.binary_data or {}, self.type)


async def read_stored(api: Api, key: ConfigKey) -> Stored | None:
    """The object; None where there is none."""
    try:
        return await api.get(api_path(key), type=Stored)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def manifest(content: Content, metadata: Mapping[str, object]) -> dict[str, object]:
    """The object that holds the content, for a POST."""
    body: dict[str, object] = {
        "apiVersion": "v1",
        "kind": content.kind,
        "metadata": metadata,
        "data": dict(content.data),
    }
    if content.kind == "Secret":
        body["type"] = content.type
    else:
        body["binaryData"] = dict(content.binary_data)
    return body
