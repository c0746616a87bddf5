"""Label selectors, as `kubectl get -l` takes them."""

import pytest

from versionedconfig.references.selector import Requirement, matches, parse_selector

LABELS = {"app": "web", "example.com/tier": "front"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , example.com/tier=front", True),
        ("app=api", False),
        ("app!=api", True),
        ("missing!=x", True),
        ("app", True),
        ("!app", False),
        ("!missing", True),
        ("missing", False),
        ("app in (api, web)", True),
        ("app in (api,db),app", False),
        ("app notin (api,db)", True),
        ("missing notin (x)", True),
        ("missing in (x)", False),
        ("app=", False),
    ],
)
def test_selectors_match_as_in_kubernetes(text: str, holds: bool) -> None:
    assert matches(parse_selector(text), LABELS) is holds


@pytest.mark.parametrize("text", ["a b", "=x", "app in web", "a=b=c", ",", "app=web,", "-a=b", "a=b c"])
def test_what_is_no_selector_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no label selector"):
        parse_selector(text)


def test_an_operator_of_tomorrow_matches_nothing() -> None:
    assert not matches([Requirement("app", "Like", ("w*",))], LABELS)
