"""The catalogue against what the API server says of its own kinds: every field that may name a ConfigMap or a Secret has
a rule, or a written reason why not. A new version of Kubernetes with a new field makes this fail."""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

from e2e.harness import Kubectl
from versionedconfig.references import CATALOGUE
from versionedconfig.references.rules import EACH, KindRules, Path, expand, parse_path, path_text

Schema = dict[str, Any]

WORD = re.compile(r"secret|config[- ]?map", re.IGNORECASE)
ANY_KIND = re.compile(r"(Reference|Ref|ParamKind)$")
"""Types that can point at an object of any kind."""
FRAGMENTS = {
    "PodSpec": "io.k8s.api.core.v1.PodSpec",
    "PersistentVolumeSpec": "io.k8s.api.core.v1.PersistentVolumeSpec",
}
REASONS = {(unrelated.type, unrelated.field) for unrelated in CATALOGUE.unrelated}
RAW = {"controllerrevisions.apps": "data holds a part of a DaemonSet or StatefulSet"}
"""Kinds whose references the API server knows nothing of."""
OURS = ("versionedconfig.io",)


class OpenAPI:
    """The document of one API server."""

    def __init__(self, document: Schema) -> None:
        self.definitions: dict[str, Schema] = document["definitions"]
        self.reasons_met: set[tuple[str, str]] = set()
        self._paths: Schema = document["paths"]

    @cached_property
    def kinds(self) -> dict[tuple[str, str, str], str]:
        """(group, version, kind) of everything that is stored under a name, to its definition's name."""
        stored = {
            (gvk["group"], gvk["version"], gvk["kind"])
            for path, verbs in self._paths.items()
            if path.endswith("/{name}")
            for verb in verbs.values()
            if isinstance(verb, dict) and (gvk := verb.get("x-kubernetes-group-version-kind"))
        }
        return {
            key: name
            for name, schema in self.definitions.items()
            for gvk in schema.get("x-kubernetes-group-version-kind", ())
            if (key := (gvk["group"], gvk["version"], gvk["kind"])) in stored
        }

    def candidates(self, definition: str) -> Iterator[Path]:
        """Paths from there to every field that may name a config object; a fragment's own place, not what is in it."""
        yield from self._walk(definition, (), (), (definition,))

    def _walk(self, name: str, path: Path, words: tuple[str, ...], seen: tuple[str, ...]) -> Iterator[Path]:
        if path and name in FRAGMENTS.values():
            yield path
            return
        for field, schema in self.definitions[name].get("properties", {}).items():
            if not path and field in ("metadata", "status", "apiVersion", "kind"):
                # Status tells what the system found, metadata's annotations are no part of the schema.
                continue
            reason = (re.sub(r"^io\.k8s\..*\.(\w+\.v\w+\.\w+)$", r"\1", name), field)
            if reason in REASONS:
                self.reasons_met.add(reason)
                continue
            yield from self._field(
                schema, (*path, field), (*words, name, field, schema.get("description", "")), seen
            )

    def _field(
        self, schema: Schema, path: Path, words: tuple[str, ...], seen: tuple[str, ...]
    ) -> Iterator[Path]:
        reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
        if reference:
            name = reference.rpartition("/")[2]
            if name not in seen:
                yield from self._walk(name, path, words, (*seen, name))
        elif schema.get("type") == "array":
            yield from self._field(schema["items"], (*path, EACH), words, seen)
        elif schema.get("type") == "string":
            # What is said of the field, of the object that it stands in, and of the field that holds that one.
            said = words[-6:]
            named = path[-1] == "name" or WORD.search(path[-1]) or path[-1] == EACH
            if (named and any(WORD.search(text) for text in (said[-1], said[-2], *said[:3]))) or (
                path[-1] == "name" and ANY_KIND.search(said[-3])
            ):
                yield path


@pytest.fixture(scope="module")
def openapi(kubectl: Kubectl) -> OpenAPI:
    return OpenAPI(json.loads(kubectl("get", "--raw", "/openapi/v2").stdout))


def known(rules: KindRules) -> set[Path]:
    """Fields with a rule, the places of fragments among them."""
    fields = {parse_path(rule.path) for rule in rules.references} | {parse_path(i.at) for i in rules.include}
    return fields | {("spec", "paramRef", "name")} if rules.binds else fields


def test_every_field_of_every_kind_has_a_rule_or_a_reason(openapi: OpenAPI) -> None:
    catalogue = {(kind.group, kind.version, kind.kind): kind for kind in CATALOGUE.kinds}
    missing: list[str] = []
    for key, definition in sorted(openapi.kinds.items()):
        if key[0] not in OURS:
            fields = known(catalogue[key]) if key in catalogue else set()
            missing += [
                f"{'/'.join(key)} {path_text(path)}"
                for path in openapi.candidates(definition)
                if path not in fields
            ]
    assert not missing, "no rule and no reason in catalogue.yaml:\n" + "\n".join(missing)


def test_every_reason_is_of_use(openapi: OpenAPI) -> None:
    for definition in [*openapi.kinds.values(), *FRAGMENTS.values()]:
        list(openapi.candidates(definition))

    assert sorted(REASONS - openapi.reasons_met) == []


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_every_field_of_a_fragment_has_a_rule(openapi: OpenAPI, fragment: str) -> None:
    rules = {parse_path(rule.path) for rule in CATALOGUE.fragments[fragment]}

    found = set(openapi.candidates(FRAGMENTS[fragment]))

    assert not {path_text(path) for path in found - rules}


def test_every_rule_for_a_kind_of_kubernetes_names_a_field_that_exists(openapi: OpenAPI) -> None:
    """A misspelt path would find nothing for ever."""
    builtin = {(group, version, kind) for group, version, kind in openapi.kinds if group not in OURS}
    checked = 0
    for kind in CATALOGUE.kinds:
        definition = openapi.kinds.get((kind.group, kind.version, kind.kind))
        if (kind.group, kind.version, kind.kind) not in builtin or definition is None or kind.resource in RAW:
            continue
        for root, rule in expand(kind, CATALOGUE.fragments):
            path = (*root, *parse_path(rule.path))
            if path[0] not in ("metadata", "parameters"):
                assert exists(openapi, definition, path), f"{kind.kind} {path_text(path)}"
                checked += 1
    assert checked > 100


def exists(openapi: OpenAPI, definition: str, path: Path) -> bool:
    schema = openapi.definitions[definition]
    for step in path:
        reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
        if reference:
            schema = openapi.definitions[reference.rpartition("/")[2]]
        schema = schema.get("items", {}) if step == EACH else schema.get("properties", {}).get(step, {})
    return schema.get("type") == "string"
