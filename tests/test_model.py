"""Whose version an object is: an annotation that anybody can write is not enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, owner_by_name, owner_of
from versionedconfig.versions.content import Content

VERSION = ConfigKey("ConfigMap", "shop", "app-87m5g5hd76")


def test_a_version_is_its_owners() -> None:
    assert owner_of(VERSION, True, "shop/app") == "app"
    assert owner_of(VERSION._replace(kind="Secret"), True, "shop/app") == "app"


@pytest.mark.parametrize(
    ("why", "key", "immutable", "annotation"),
    [
        ("no annotation", VERSION, True, ""),
        ("mutable", VERSION, False, "shop/app"),
        ("copied under another name", VERSION._replace(name="backup"), True, "shop/app"),
        ("copied into another namespace", VERSION._replace(namespace="other"), True, "shop/app"),
        ("another owner", VERSION, True, "shop/web"),
        ("another owner's prefix", VERSION, True, "shop/ap"),
        ("a path", VERSION, True, "shop/../../victim/app"),
        ("a path alone", VERSION, True, "../../../apis/versionedconfig.io/v1alpha1/namespaces/victim/x"),
    ],
)
def test_what_only_says_so_is_not(why: str, key: ConfigKey, immutable: bool, annotation: str) -> None:
    assert owner_of(key, immutable, annotation) == "", why


@given(st.text(max_size=300))
def test_a_name_never_gives_a_path(name: str) -> None:
    assert not set(owner_by_name(name)) & set("/?#%")


@given(
    st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,240}[a-z0-9])?", fullmatch=True),
    st.dictionaries(st.text("abc", min_size=1), st.text()),
    st.integers(0, 3),
)
def test_every_version_name_leads_back(name: str, data: dict[str, str], attempt: int) -> None:
    assert owner_by_name(Content("ConfigMap", data).version_name(name, attempt)) == name
