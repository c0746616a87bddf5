"""The catalogue that we ship, read once, and the pod spec's rules compiled from it. Pure, but for reading its own file."""

from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

from versionedconfig.model import Reference
from versionedconfig.references.compiled import Compiled
from versionedconfig.references.rules import Catalogue

CATALOGUE: Final = msgspec.yaml.decode(
    files("versionedconfig.references").joinpath("catalogue.yaml").read_bytes(), type=Catalogue
)

_POD_SPEC: Final = Compiled([((), rule) for rule in CATALOGUE.fragments["PodSpec"]], [("nodeName",)])

if TYPE_CHECKING:

    class PodSpec(msgspec.Struct):
        """What of a pod spec can name a config object, and where it runs; decode pods and pod templates into it."""

        nodeName: str | None = None
else:
    PodSpec = _POD_SPEC.type


def pod_references(spec: PodSpec) -> list[Reference]:
    """Every reference of the pod spec. All of them are names in the pod's own namespace."""
    return _POD_SPEC.references(spec)


def referenced_names(spec: PodSpec) -> tuple[tuple[str, str], ...]:
    """The distinct (kind, name) pairs of the pod spec, sorted: what an index needs of a pod."""
    return _POD_SPEC.names(spec)
