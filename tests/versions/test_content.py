"""Content, its hash and what is refused."""

import base64
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.versions.content import (
    MAX_BYTES,
    Content,
    config_map_content,
    content_problems,
    content_size,
)


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.parametrize(
    ("name", "data", "binary", "expected"),
    [
        ("app", {"k": "v"}, {}, "app-87m5g5hd76"),
        ("app", {}, {}, "app-bc6th5h6d9"),
        ("app", {"index.html": '<a href="x?a=1&b=2">\u2028é\n</a>'}, {}, "app-6756cm5d65"),
        ("app", {"k": "v"}, {"bin": b"\xff\x00\x01"}, "app-5gdmt45gg8"),
        ("app", {}, {"bin": b"\xff\x00\x01"}, "app-7mg5g44824"),
        ("example-configmap-2", {"FOO": "Bar"}, {}, "example-configmap-2-g2hdhfc6tk"),
        ("app", {"k": "a\b\f\x01\x7f\tz"}, {}, "app-5cmbdt8f79"),
        ("app", {"f.ini": "x=1\r\ny=2\r\n"}, {}, "app-g4k78k9ctm"),
    ],
)
def test_config_map_names_are_kubectls(
    name: str, data: dict[str, str], binary: dict[str, bytes], expected: str
) -> None:
    """Vectors printed by kubectl create configmap --append-hash."""
    content = config_map_content(data, {key: b64(value) for key, value in binary.items()})

    assert content.version_name(name) == expected


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (b"hunter2", "", "db-7f54gbhmd2"),
        (b"hunter2", "Opaque", "db-t65c87g27b"),
    ],
)
def test_secret_names_are_kubectls(value: bytes, type_: str, expected: str) -> None:
    """Without --type kubectl hashes an empty type, though `Opaque` is stored."""
    assert Content("Secret", {"password": b64(value)}, type=type_).version_name("db") == expected


@pytest.mark.parametrize(("length", "expected"), [(51, "db-48528f2b96"), (52, "db-h4k4t5d4bk")])
def test_long_secret_values_are_not_folded(length: int, expected: str) -> None:
    """kustomize folds base64 at 70 columns and so hashes differently; kubectl does not."""
    assert Content("Secret", {"k": b64(b"a" * length)}, type="Opaque").version_name("db") == expected


def test_empty_secret() -> None:
    assert Content("Secret", {}, type="Opaque").version_name("db") == "db-2mk6cc895d"


AMBIGUOUS = [
    Content("ConfigMap", {"a": "1;b=2"}),
    Content("ConfigMap", {"a": "1", "b": "2"}),
    Content("ConfigMap", {"ab": "c"}),
    Content("ConfigMap", {"a": "bc"}),
    Content("ConfigMap", {"a": ""}),
    Content("ConfigMap", {}),
    Content("ConfigMap", {"a": "MQ=="}),
    Content("ConfigMap", {}, {"a": "MQ=="}),
    Content("Secret", {"a": "MQ=="}, type="Opaque"),
    Content("Secret", {"a": "MQ=="}, type="kubernetes.io/tls"),
    Content("ConfigMap", {"a": "\u00e9"}),
    Content("ConfigMap", {"a": "e\u0301"}),
]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(AMBIGUOUS, 2)))
def test_different_content_has_different_names(one: Content, other: Content) -> None:
    """V2, V3"""
    assert one.hash("app") != other.hash("app")
    assert one.digest() != other.digest()


VALUES = st.dictionaries(st.text("abc._-", min_size=1, max_size=5), st.text(st.characters(codec="utf-8")))
BINARY = st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.binary())


@given(VALUES, BINARY, st.integers(1, 76))
def test_order_and_line_wrapping_do_not_matter(
    data: dict[str, str], binary: dict[str, bytes], width: int
) -> None:
    plain = {key: b64(value) for key, value in binary.items()}
    wrapped = {key: "\r\n".join(re.findall(f".{{1,{width}}}", text)) for key, text in plain.items()}
    one = config_map_content(data, plain)
    other = config_map_content(dict(reversed(data.items())), dict(reversed(wrapped.items())))

    assert (one.version_name("app"), one.digest()) == (other.version_name("app"), other.digest())
    assert re.fullmatch(r"app-[b-df-hk-m2-9t-z4-9]{10}", one.version_name("app").replace("g", "b"))


@given(VALUES, BINARY)
def test_size_is_what_kubernetes_counts(data: dict[str, str], binary: dict[str, bytes]) -> None:
    content = config_map_content(data, {key: b64(value) for key, value in binary.items()})

    assert content_size(content) == sum(len(v.encode()) for v in data.values()) + sum(
        map(len, binary.values())
    )


def test_another_attempt_is_another_stable_name() -> None:
    content = Content("ConfigMap", {"k": "v"})

    assert content.version_name("app", 1) not in (content.version_name("app"), content.version_name("app", 2))
    assert content.version_name("app", 1) == Content("ConfigMap", {"k": "v"}).version_name("app", 1)


def test_values_never_show() -> None:
    content = Content("Secret", {"k": "c2VjcmV0"}, {"b": "c2VjcmV0"})

    assert "c2VjcmV0" not in repr(content)


def test_what_is_not_base64_is_told_by_key_only() -> None:
    with pytest.raises(ValueError, match="'cert'") as caught:
        config_map_content({}, {"cert": "c2VjcmV0!"})

    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("app", Content("ConfigMap"), "at least one key"),
        ("a" * 243, Content("ConfigMap", {"k": "v"}), "at most 242"),
        ("app", Content("ConfigMap", {"a/b": "v"}), "'a/b' cannot be a file name"),
        ("app", Content("ConfigMap", {"..x": "v"}), "cannot be a file name"),
        ("app", Content("ConfigMap", {".": "v"}), "cannot be a file name"),
        ("app", Content("ConfigMap", {"k" * 254: "v"}), "at most 253"),
        ("app", Content("ConfigMap", {"k": "v"}, {"k": "dg=="}), "in both data and binaryData"),
        ("app", Content("ConfigMap", {"k": "é" * (MAX_BYTES // 2), "l": "x"}), "1048577 bytes"),
    ],
)
def test_problems_say_what_to_change(name: str, content: Content, words: str) -> None:
    (problem,) = content_problems(name, content)

    assert words in problem


@pytest.mark.parametrize("key", ["a", "...".replace("...", ".a"), ".hidden", "a..b", "-", "_", "k" * 253])
def test_good_content_has_no_problem(key: str) -> None:
    assert content_problems("a" * 242, Content("ConfigMap", {key: "x" * MAX_BYTES})) == ()
