"""Labels and annotations of versions."""

from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import NAME_ANNOTATION, NAME_LABEL
from versionedconfig.resource import VersionMetadata
from versionedconfig.versions.metadata import label_value, metadata_patch, version_metadata

MAPS = st.dictionaries(st.sampled_from(["team", "tier", "note"]), st.sampled_from(["1", "2"]))
WANTED = st.builds(VersionMetadata, labels=MAPS, annotations=MAPS)


def merged(old: dict[str, str], patch: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**old, **patch}.items() if value is not None}


@given(WANTED, WANTED)
def test_metadata_follows_the_spec_and_spares_other_peoples(
    first: VersionMetadata, then: VersionMetadata
) -> None:
    """V4"""
    stored = version_metadata("app", "d" * 64, first)
    stored["labels"]["argocd.argoproj.io/instance"] = "shop"

    patch = metadata_patch(then, labels=stored["labels"], annotations=stored["annotations"])
    after = {field: merged(stored[field], patch.get(field, {})) for field in ("labels", "annotations")}

    fresh = version_metadata("app", "d" * 64, then)
    assert after["labels"] == {**fresh["labels"], "argocd.argoproj.io/instance": "shop"}
    assert after["annotations"] == fresh["annotations"]
    assert not metadata_patch(then, labels=after["labels"], annotations=after["annotations"])


@given(st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,240}[a-z0-9])?", fullmatch=True))
def test_label_values_are_valid_and_the_annotation_is_whole(name: str) -> None:
    written = version_metadata(name, "d" * 64, VersionMetadata())

    value = written["labels"][NAME_LABEL]
    assert len(value) <= 63
    assert value[-1].isalnum()
    assert written["annotations"][NAME_ANNOTATION] == name


def test_two_long_names_have_two_labels() -> None:
    assert label_value("a" * 100) != label_value("a" * 101)
