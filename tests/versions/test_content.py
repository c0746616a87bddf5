"""Content, its hash and what is refused."""

import base64
import itertools
import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.projection import NEVER_TOUCHED
from versionedconfig.versions.content import (
    MAX_BYTES,
    REFUSED_TYPES,
    Content,
    Source,
    config_map_content,
    content_problems,
    content_size,
    merge,
    secret_content,
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


@pytest.mark.parametrize(
    ("data", "string_data", "expected"),
    [
        ({"password": "aHVudGVyMg=="}, {}, "db-t65c87g27b"),
        ({}, {"password": "hunter2"}, "db-t65c87g27b"),
        ({"password": "aHVu\r\ndGVy\nMg==\n"}, {}, "db-t65c87g27b"),
        ({"password": "b3RoZXI="}, {"password": "hunter2"}, "db-t65c87g27b"),
        # kustomize folds base64 at 70 columns and so hashes differently; kubectl does not.
        ({}, {"k": "a" * 51}, "db-48528f2b96"),
        ({}, {"k": "a" * 52}, "db-h4k4t5d4bk"),
        # What is read back has no data instead of empty data, and another hash (db-mkgdgkbddt): there is one form here.
        ({}, {}, "db-2mk6cc895d"),
    ],
)
def test_opaque_secret_names_are_kubectls(
    data: dict[str, str], string_data: dict[str, str], expected: str
) -> None:
    """Vectors printed by kubectl create secret generic --type=Opaque --append-hash, or by its hash package."""
    for type_ in ("", "Opaque"):
        assert secret_content(type_, data, string_data).version_name("db") == expected


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


# -- Secrets ---------------------------------------------------------------------------------------------------------

TEXTS = st.dictionaries(st.text("abc._-", min_size=1, max_size=5), st.text(st.characters(codec="utf-8")))
BYTES = st.dictionaries(st.text("abc._-", min_size=1, max_size=5), st.binary())


def decoded(content: Content) -> dict[str, bytes]:
    """All of the content in bytes, wherever a key stands."""
    text = {} if content.kind == "Secret" else {key: value.encode() for key, value in content.data.items()}
    encoded = {**content.binary_data, **(content.data if content.kind == "Secret" else {})}
    return text | {key: base64.b64decode(value, validate=True) for key, value in encoded.items()}


@given(BYTES, TEXTS, st.integers(1, 76))
def test_a_secret_is_what_the_api_server_stores(
    data: dict[str, bytes], string_data: dict[str, str], width: int
) -> None:
    wrapped = {
        key: "\r\n".join(re.findall(f".{{1,{width}}}", b64(value))) + "\n" for key, value in data.items()
    }

    content = secret_content("", wrapped, string_data)

    assert decoded(content) == data | {key: value.encode() for key, value in string_data.items()}
    assert content.data == {key: b64(value) for key, value in decoded(content).items()}
    assert content_size(content) == sum(map(len, decoded(content).values()))
    assert (content.kind, content.type, content.binary_data) == ("Secret", "Opaque", {})


@pytest.mark.parametrize(
    "value", ["c2VjcmV0!", "c2VjcmV", "c2VjcmV0=c2Vj", "c2Vj cmV0", "c2Vjcm_-", "é", "="]
)
def test_a_secrets_value_that_is_not_base64_is_told_by_key_only(value: str) -> None:
    """Also where stringData would win: the API server reads both."""
    with pytest.raises(ValueError, match="stringData") as caught:
        secret_content("", {"cert": value}, {"cert": "text"})

    assert str(caught.value) == (
        "the value of key 'cert' in data is not base64: encode it, or move the text to stringData"
    )
    assert caught.value.__suppress_context__


def test_what_is_no_text_is_told_by_key_only() -> None:
    with pytest.raises(ValueError, match="'half' in stringData") as caught:
        secret_content("", {}, {"half": "hunter2\ud800"})

    assert type(caught.value) is ValueError
    assert "hunter2" not in str(caught.value)


JSON_TYPES = [
    ("kubernetes.io/dockercfg", ".dockercfg"),
    ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("", {"k": "v"}),
        ("example.com/own", {"k": "v"}),
        ("kubernetes.io/basic-auth", {"username": ""}),
        ("kubernetes.io/basic-auth", {"password": "p", "more": ""}),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": "x"}),
        ("kubernetes.io/tls", {"tls.crt": "", "tls.key": "no key at all"}),
    ],
)
def test_secrets_that_kubernetes_takes(type_: str, values: dict[str, str]) -> None:
    assert content_problems("db", secret_content(type_, {}, values)) == ()


@pytest.mark.parametrize(
    ("type_", "values", "words"),
    [
        ("", {}, ["spec.stringData"]),
        ("", {"a/b": "v"}, ["'a/b' cannot be a file name"]),
        ("", {"k": "é" * (MAX_BYTES // 2), "l": "x"}, ["1048577 bytes"]),
        ("kubernetes.io/dockercfg", {".dockerconfigjson": "{}"}, ["'.dockercfg': add it"]),
        ("kubernetes.io/dockerconfigjson", {".dockercfg": "{}"}, ["'.dockerconfigjson': add it"]),
        ("kubernetes.io/basic-auth", {"user": "u"}, ["'username' or 'password'"]),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": ""}, ["not empty"]),
        ("kubernetes.io/ssh-auth", {"key": "k"}, ["'ssh-privatekey'"]),
        ("kubernetes.io/tls", {"tls.crt": "c"}, ["'tls.key'"]),
        ("kubernetes.io/tls", {"tls.key": "k"}, ["'tls.crt'"]),
        ("kubernetes.io/tls", {"k": "v"}, ["'tls.crt'", "'tls.key'"]),
        ("kubernetes.io/service-account-token", {"token": "t"}, ["fills it in"]),
        ("bootstrap.kubernetes.io/token", {"token-id": "t"}, ["expires"]),
        ("helm.sh/release.v1", {"release": "r"}, ["Helm"]),
    ],
)
def test_secrets_that_kubernetes_refuses(type_: str, values: dict[str, str], words: list[str]) -> None:
    problems = content_problems("db", secret_content(type_, {}, values))

    assert [word in problem for word, problem in zip(words, problems, strict=True)] == [True] * len(words)


def test_what_is_not_touched_is_never_made() -> None:
    assert frozenset(REFUSED_TYPES) == NEVER_TOUCHED


JSON = [
    (b"{}", True),
    (b' {"auths": {"r": {"auth": "x", "n": [1, -2.5e3, true, null]}}}\n', True),
    (b"null", True),
    (b'{"a": 1, "a": 2}', True),
    (b'{"a": "\xff"}', True),
    (b'{"a": "\\ud800"}', True),
    (b"", False),
    (b"[]", False),
    (b'"hunter2"', False),
    (b"{} {}", False),
    (b"{'a': 1}", False),
    (b'{"a": NaN}', False),
    (b'{"a": -Infinity}', False),
    (b'{"a": 1e999}', False),
    (b'{"a": ' + b"9" * 5000 + b"}", False),
    (b'{"a": "\t"}', False),
    (b"\xef\xbb\xbf{}", False),
    (b"{\xff}", False),
    (b'{"a":' * 100_000, False),
]


@pytest.mark.parametrize(("type_", "key"), JSON_TYPES)
@pytest.mark.parametrize(("value", "good"), JSON, ids=[repr(value[:20]) for value, _ in JSON])
def test_registry_credentials_are_judged_as_go_does(type_: str, key: str, value: bytes, good: bool) -> None:
    """Checked against json.Unmarshal into a map[string]any."""
    problems = content_problems("db", secret_content(type_, {key: b64(value)}, {}))

    assert problems == (
        () if good else (f"the value of key {key!r} is no JSON object, which type {type_} needs: correct it",)
    )


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_every_json_object_is_one(value: object) -> None:
    content = secret_content("kubernetes.io/dockercfg", {}, {".dockercfg": json.dumps(value)})

    assert (content_problems("db", content) == ()) == (value is None or isinstance(value, dict))


@given(
    st.sampled_from(["", "kubernetes.io/tls", *(type_ for type_, _ in JSON_TYPES), *REFUSED_TYPES, "x"]),
    st.dictionaries(
        st.sampled_from(["tls.crt", ".dockercfg", ".dockerconfigjson", "username", "a/b"]), st.just(b"CANARY")
    ),
)
def test_no_problem_shows_a_value(type_: str, data: dict[str, bytes]) -> None:
    content = secret_content(type_, {key: b64(value) for key, value in data.items()}, {})
    told = " ".join(content_problems("db" * 200, content)) + repr(content)

    assert "CANARY" not in told
    assert b64(b"CANARY") not in told


# -- Merging ---------------------------------------------------------------------------------------------------------


def config_map(data: Mapping[str, str], binary: Mapping[str, bytes] | None = None) -> Content:
    return config_map_content(data, {key: b64(value) for key, value in (binary or {}).items()})


def secret(**values: str) -> Content:
    return secret_content("", {}, values)


def base(content: Content | None, optional: bool = False, keys: tuple[str, ...] = ()) -> Source:
    kind = content.kind if content is not None else "ConfigMap"
    return Source(kind, "base", content, optional, keys)


@pytest.mark.parametrize(
    ("sources", "own", "expected"),
    [
        ([], config_map({"a": "1"}), config_map({"a": "1"})),
        ([base(config_map({"a": "1", "b": "1"}))], config_map({"b": "2"}), config_map({"a": "1", "b": "2"})),
        (
            [base(config_map({"a": "1", "b": "1"})), base(config_map({"b": "2", "c": "2"}))],
            config_map({"c": "3"}),
            config_map({"a": "1", "b": "2", "c": "3"}),
        ),
        # A key is in data or in binaryData, whatever stood below.
        ([base(config_map({"a": "1"}))], config_map({}, {"a": b"\xff"}), config_map({}, {"a": b"\xff"})),
        ([base(config_map({}, {"a": b"\xff"}))], config_map({"a": "1"}), config_map({"a": "1"})),
        (
            [base(config_map({"a": "1"})), base(config_map({}, {"a": b"2"})), base(config_map({"a": "3"}))],
            config_map({}),
            config_map({"a": "3"}),
        ),
        ([base(config_map({"a": "1", "b": "1"}, {"c": b"1"}), keys=("a", "c"))], config_map({}), config_map({"a": "1"}, {"c": b"1"})),
        ([base(config_map({"a": "1"}), True, ("a", "b"))], config_map({}), config_map({"a": "1"})),
        ([base(None, True)], config_map({"a": "1"}), config_map({"a": "1"})),
        ([base(None, True, ("a",))], config_map({}), config_map({})),
        ([base(secret(a="1", b="1"))], secret(b="2"), secret(a="1", b="2")),
        ([base(config_map({"a": "é"}, {"b": b"\xff"}))], secret(), secret_content("", {"a": "w6k=", "b": "/w=="}, {})),
        ([base(config_map({"a": "1"})), base(secret(a="2"))], secret(), secret(a="2")),
        # Only the content of a source counts, not its type.
        (
            [Source("Secret", "token", secret_content("kubernetes.io/service-account-token", {}, {"token": "t"}))],
            secret_content("example.com/own", {}, {}),
            secret_content("example.com/own", {}, {"token": "t"}),
        ),
    ],
)  # fmt: skip
def test_merging(sources: list[Source], own: Content, expected: Content) -> None:
    merged = merge(sources, own)

    assert (merged.content, merged.problems) == (expected, ())
    assert merged.content.version_name("app") == expected.version_name("app")


@pytest.mark.parametrize(
    ("source", "own", "words"),
    [
        (base(None), config_map({"a": "1"}), ["no ConfigMap base", "create it", "optional: true"]),
        (base(None, keys=("a",)), config_map({}), ["no ConfigMap base"]),
        (Source("Secret", "db", None), secret(), ["no Secret db"]),
        (base(config_map({"a": "1"}), keys=("b", "a", "c")), config_map({}), ["ConfigMap base has no key 'b', 'c':"]),
        (
            base(secret(), keys=tuple("abcdefgh")),
            secret(),
            ["Secret base has no key 'a', 'b', 'c', 'd', 'e' and 3 more: add it there"],
        ),
        (base(secret(a="CANARY")), config_map({}), ["cannot take from Secret base", "VersionedConfig of kind Secret"]),
        (base(secret(a="CANARY"), True), config_map({}), ["cannot take from Secret base"]),
        (Source("Secret", "base", None), config_map({}), ["cannot take from Secret base"]),
    ],
)  # fmt: skip
def test_what_cannot_be_merged(source: Source, own: Content, words: list[str]) -> None:
    merged = merge([source], own)

    (problem,) = merged.problems
    assert [word for word in words if word not in problem] == []
    assert "CANARY" not in str(decoded(merged.content))


def test_every_source_is_told_of() -> None:
    merged = merge([base(None), Source("ConfigMap", "more", None)], config_map({}))

    assert ["base" in merged.problems[0], "more" in merged.problems[1]] == [True, True]


CONTENTS = st.builds(
    lambda data, binary: config_map(data, {key: v for key, v in binary.items() if key not in data}),
    TEXTS,
    BYTES,
)
SECRETS = st.builds(lambda data: secret_content("", {key: b64(v) for key, v in data.items()}, {}), BYTES)


@given(st.lists(CONTENTS, max_size=4), CONTENTS)
def test_the_last_one_that_has_a_key_gives_it(contents: list[Content], own: Content) -> None:
    merged = merge([base(content) for content in contents], own).content

    expected: dict[str, bytes] = {}
    for content in (*contents, own):
        expected |= decoded(content)
    assert decoded(merged) == expected
    assert merged.data.keys().isdisjoint(merged.binary_data)


@given(
    st.lists(CONTENTS | SECRETS, max_size=4),
    SECRETS,
    st.frozensets(st.text("abc._-", min_size=1, max_size=2)),
)
def test_a_secret_takes_from_both(contents: list[Content], own: Content, keys: frozenset[str]) -> None:
    merged = merge([base(content, True, tuple(keys)) for content in contents], own).content

    expected: dict[str, bytes] = {}
    for content in contents:
        expected |= {key: value for key, value in decoded(content).items() if not keys or key in keys}
    assert decoded(merged) == expected | decoded(own)
    assert (merged.kind, merged.binary_data) == ("Secret", {})


def test_sources_are_left_as_they_are_and_never_show() -> None:
    content = secret(a="CANARY")
    own = secret(b="CANARY")
    merged = merge([base(content)], own)

    assert (dict(content.data), dict(own.data)) == ({"a": b64(b"CANARY")}, {"b": b64(b"CANARY")})
    assert b64(b"CANARY") not in repr(base(content)) + repr(merged)
