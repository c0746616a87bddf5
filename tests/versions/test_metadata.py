"""Labels and annotations of versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import (
    ALIAS_ANNOTATION,
    NAME_ANNOTATION,
    NAME_LABEL,
    PROPAGATED_ANNOTATION,
    ObjectKey,
)
from versionedconfig.resource import Spec, VersionMetadata
from versionedconfig.versions.metadata import alias_metadata, label_value, metadata_patch, version_metadata

APP = ObjectKey("shop", "app")
MAPS = st.dictionaries(st.sampled_from(["team", "tier", "note"]), st.sampled_from(["1", "2"]))
WANTED = st.builds(
    Spec,
    metadata=st.builds(VersionMetadata, labels=MAPS, annotations=MAPS),
    deletion_policy=st.sampled_from(["RetainInUse", "Delete"]),
)


def merged(old: dict[str, str], patch: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**old, **patch}.items() if value is not None}


@given(WANTED, WANTED)
def test_metadata_follows_the_spec_and_spares_other_peoples(first: Spec, then: Spec) -> None:
    """V4"""
    stored = version_metadata(APP, "d" * 64, first)
    stored["labels"]["argocd.argoproj.io/instance"] = "shop"

    fresh = version_metadata(APP, "d" * 64, then)
    patch = metadata_patch(fresh, labels=stored["labels"], annotations=stored["annotations"])
    after = {field: merged(stored[field], patch.get(field, {})) for field in ("labels", "annotations")}

    assert after["labels"] == {**fresh["labels"], "argocd.argoproj.io/instance": "shop"}
    assert after["annotations"] == fresh["annotations"]
    assert not metadata_patch(fresh, labels=after["labels"], annotations=after["annotations"])


@given(st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,240}[a-z0-9])?", fullmatch=True))
def test_label_values_are_valid_and_the_annotation_is_whole(name: str) -> None:
    written = version_metadata(ObjectKey("shop", name), "d" * 64, Spec())

    value = written["labels"][NAME_LABEL]
    assert len(value) <= 63
    assert value[-1].isalnum()
    assert written["annotations"][NAME_ANNOTATION] == f"shop/{name}"


@pytest.mark.parametrize("spoilt", ["garbage", "[]", "null", "7", '{"labels": 3}', ""])
def test_a_spoilt_annotation_is_written_anew(spoilt: str) -> None:
    wanted = Spec(metadata=VersionMetadata(labels={"team": "1"}))
    fresh = version_metadata(APP, "d" * 64, wanted)
    annotations = {**fresh["annotations"], PROPAGATED_ANNOTATION: spoilt}

    patch = metadata_patch(fresh, labels={}, annotations=annotations)

    assert merged({}, patch["labels"]) == fresh["labels"]
    assert merged(annotations, patch["annotations"]) == fresh["annotations"]


def test_what_makes_it_ours_is_restored() -> None:
    fresh = version_metadata(APP, "d" * 64, Spec())

    patch = metadata_patch(fresh, labels={}, annotations={"other": "x"})

    assert merged({"other": "x"}, patch["annotations"]) == {"other": "x", **fresh["annotations"]}


@given(WANTED, WANTED)
def test_an_alias_is_no_version_and_is_not_waiting_to_go(first: Spec, then: Spec) -> None:
    stored = alias_metadata(APP, first)
    stored["annotations"]["versionedconfig.io/unused-since"] = "2026-01-01T00:00:00Z"

    fresh = alias_metadata(APP, then)
    patch = metadata_patch(fresh, labels=stored["labels"], annotations=stored["annotations"])

    assert {field: merged(stored[field], patch.get(field, {})) for field in fresh} == fresh
    assert NAME_LABEL not in fresh["labels"]
    assert NAME_ANNOTATION not in fresh["annotations"]
    assert fresh["annotations"][ALIAS_ANNOTATION] == "shop/app"


def test_two_long_names_have_two_labels() -> None:
    assert label_value("a" * 100) != label_value("a" * 101)
