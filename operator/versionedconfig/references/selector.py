"""Label selectors as Kubernetes reads them (apimachinery pkg/labels/selector.go). Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

EXISTS: Final = "Exists"
IN: Final = "In"


class Requirement(NamedTuple):
    """One condition on labels, as in matchExpressions."""

    key: str
    operator: str
    """In, NotIn, Exists or DoesNotExist; another one never holds."""
    values: tuple[str, ...] = ()


Selector = tuple[Requirement, ...]
"""All must hold; without any, everything matches."""

_KEY: Final = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?|"
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_THERE: Final = re.compile(rf"(!?)\s*({_KEY})")


def parse_selector(text: str) -> Selector:
    """`a=b,c!=d,e in (f,g),h,!i`, as `kubectl get -l` takes it.

    Raises:
        ValueError: it is none.
    """
    found: list[Requirement] = []
    for part in re.split(r",(?![^()]*\))", text) if text.strip() else ():
        part = part.strip()
        if match := _SET.fullmatch(part):
            values = tuple(value.strip() for value in match.group(3).split(","))
            found.append(Requirement(match.group(1), IN if match.group(2) == "in" else "NotIn", values))
        elif match := _EQUAL.fullmatch(part):
            operator = "NotIn" if match.group(2) == "!=" else IN
            found.append(Requirement(match.group(1), operator, (match.group(3),)))
        elif match := _THERE.fullmatch(part):
            found.append(Requirement(match.group(2), "DoesNotExist" if match.group(1) else EXISTS))
        else:
            raise ValueError(f"{part!r} is no label selector: write it like app=web,tier!=db,owner,!legacy")
    return tuple(found)


def matches(selector: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Every requirement holds. One that an object does not have the label for is met by NotIn, as in Kubernetes."""
    return all(_holds(requirement, labels.get(requirement.key)) for requirement in selector)


def _holds(requirement: Requirement, value: str | None) -> bool:
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
