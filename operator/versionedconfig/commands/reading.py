"""Reading a cluster for a person: every kind of the catalogue that is there and may be read."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from versionedconfig.kube.api import Api, ApiError, accept_list, path_of
from versionedconfig.references import CATALOGUE, Source
from versionedconfig.rulebook import REFERENCE_RULES

ESSENTIAL: Final = frozenset({"pods", "configmaps", "secrets"})


@dataclass
class Unseen:
    """What could not be looked at, and why: an answer without it may be incomplete."""

    reasons: list[str] = field(default_factory=list)
    essential: bool = False
    """Without it nothing can be concluded."""

    def note(self, what: str, error: ApiError) -> None:
        """Remember it; raises the error where nothing can be read at all."""
        if error.status in (0, 401) and error.reason != "Undecodable":
            raise error
        why = "no right to list" if error.status == 403 else f"error {error.status} {error.reason} of"
        self.reasons.append(f"{why} {what}")
        self.essential |= what in ESSENTIAL


async def all_sources(api: Api, unseen: Unseen) -> list[Source]:
    """Of the catalogue, and of the cluster's own ReferenceRules."""
    sources = [Source(kind, CATALOGUE.fragments) for kind in CATALOGUE.kinds]
    try:
        async for page in api.list_pages(REFERENCE_RULES.path, item=REFERENCE_RULES.item):
            made = [REFERENCE_RULES.project(item).source for item in page.items]
            sources += [source for source in made if source is not None]
    except ApiError as error:
        if error.status != 404:
            unseen.note("referencerules", error)
    return sources


async def items(
    api: Api,
    source: Source,
    unseen: Unseen,
    *,
    namespace: str = "",
    elsewhere: bool = False,
    field_selector: str = "",
) -> AsyncIterator[Any]:
    """Every object of a kind; none where the kind is not served.

    Args:
        namespace: the one that is asked for; empty: all.
        elsewhere: objects of other namespaces count too, as far as they may be read.
    """
    rules = source.rules
    places = [namespace] if rules.scope == "Namespaced" else [""]
    if elsewhere and places != [""]:
        places.insert(0, "")
    for place in places:
        try:
            path = path_of(rules.api_path, place)
            async for page in api.list_pages(
                path,
                item=source.item,
                field_selector=field_selector,
                accept=accept_list(source.metadata_only),
            ):
                for item in page.items:
                    yield item
        except ApiError as error:
            if error.status == 404:
                return
            unseen.note(rules.resource + (" in other namespaces" if place != places[-1] else ""), error)
        else:
            return
