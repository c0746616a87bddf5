"""Rewriting references in a pod template, leaf by leaf. Pure.

A JSON patch of the leaves alone, each behind a `test` of what it replaces: nothing else of the workload can change,
and where somebody was faster the API server refuses the whole patch.
"""

from collections.abc import Iterable, Mapping

from versionedconfig.model import Reference


def rewrite(
    references: Iterable[Reference], names: Mapping[tuple[str, str], str], uid: str
) -> list[dict[str, object]]:
    """JSON patch operations that turn each reference whose (kind, name) is in `names` into that name.

    Exact names only. Empty where nothing is to do. The uid is tested too, so that a namesake is never changed.
    """
    operations: list[dict[str, object]] = []
    for reference in references:
        new = names.get((reference.kind, reference.name), reference.name)
        if new != reference.name:
            path = pointer(reference.path)
            operations.append({"op": "test", "path": path, "value": reference.name})
            operations.append({"op": "replace", "path": path, "value": new})
    if operations:
        operations.insert(0, {"op": "test", "path": "/metadata/uid", "value": uid})
    return operations


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
