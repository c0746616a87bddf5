"""A version's name is the one that the real kubectl gives the same content with --append-hash.

The content is generated. E2E_SEED repeats a run; E2E_HASHES says how many objects are tried.
"""

import base64
import os
import random
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pykube

from e2e import harness
from e2e.harness import Cluster, Kubectl, Operator, fetch, wait_versioned
from versionedconfig.versions.content import Content, config_map_content

SEED: Final = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(2**32))
COUNT: Final = int(os.environ.get("E2E_HASHES", "500"))
END_TO_END: Final = 12
"""So many of them become versions on the cluster."""
AT_ONCE: Final = 4
"""kubectl waits for nothing here; more than the cores only takes turns."""

KEY_CHARACTERS: Final = "-._abcXYZ019"
ALPHABETS: Final[Sequence[str]] = (
    "abc xyz\n",
    "<>&\"'\\/=;,{}[]:",
    "".join(map(chr, range(0x20))) + "\x7f\x80\x9f",
    "äßéñ Ωж中日本語한글עברית\u0301\u200d\ufeff\ufffd\ufffe",
    "\u2027\u2028\u2029\u202a\U0001f600\U0010ffff",
)


@dataclass(frozen=True)
class Sample:
    """One object: its name, its values in the order in which kubectl is told of them."""

    number: int
    name: str
    secret_type: str
    """Empty: a ConfigMap."""
    values: dict[str, bytes]

    def split(self) -> tuple[dict[str, str], dict[str, bytes]]:
        """Text and the rest, as kubectl decides: valid UTF-8 is text."""
        text, binary = {}, {}
        for key, value in self.values.items():
            try:
                text[key] = value.decode()
            except UnicodeDecodeError:
                binary[key] = value
        return text, binary

    def content(self, order: random.Random) -> Content:
        """As the operator sees it: keys in any order, base64 with line breaks as people's tools write it."""
        if self.secret_type:
            encoded = {
                key: base64.b64encode(self.values[key]).decode() for key in shuffled(self.values, order)
            }
            return Content("Secret", encoded, type=self.secret_type)
        text, binary = self.split()
        return config_map_content(
            {key: text[key] for key in shuffled(text, order)},
            {key: base64.encodebytes(binary[key]).decode() for key in shuffled(binary, order)},
        )


def shuffled(keys: dict[str, Any], order: random.Random) -> list[str]:
    return order.sample(list(keys), len(keys))


def generated(number: int) -> Sample:
    """The same for the same SEED and number."""
    rng = random.Random(f"{SEED}/{number}")
    kinds = ["", "", "Opaque", "example.com/<&>"]
    values = {key(rng): value(rng) for _ in range(rng.choice([0, 1, 1, 2, 3, 8]))}
    return Sample(number, f"s{number}", rng.choice(kinds), values)


def key(rng: random.Random) -> str:
    length = rng.choice([1, 2, 3, 8, 20, 253])
    found = "".join(rng.choices(KEY_CHARACTERS, k=length))
    return "k" + found[1:] if found == "." or found.startswith("..") else found


def value(rng: random.Random) -> bytes:
    length = rng.choice([0, 1, 2, 3, 10, 51, 52, 57, 300])
    if rng.random() < 0.25:
        return rng.randbytes(length)
    alphabet = rng.choice([*ALPHABETS, "".join(ALPHABETS)])
    text = "".join(rng.choices(alphabet, k=length)).encode()
    # Sometimes cut within a character: nearly UTF-8.
    return text[:-1] if rng.random() < 0.1 else text


def kubectl_says(program: Path, folder: Path, sample: Sample) -> str:
    """The name; needs no cluster."""
    folder.mkdir()
    files = []
    for index, (name, content) in enumerate(sample.values.items()):
        file = folder / str(index)
        file.write_bytes(content)
        files.append(f"--from-file={name}={file}")
    kind = ("secret", "generic", f"--type={sample.secret_type}") if sample.secret_type else ("configmap",)
    command = [str(program), "create", kind[0], *kind[1:2], sample.name, *kind[2:], *files]
    done = subprocess.run(
        [*command, "--append-hash", "--dry-run=client", "--output=name"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{sample}: {done.stderr}"
    return done.stdout.strip().partition("/")[2]


def test_names_are_kubectls(cluster: Cluster, tmp_path: Path) -> None:
    """For text with HTML characters, control characters and any script, for binary, empty values and objects."""
    print(f"E2E_SEED={SEED}")
    samples = [generated(number) for number in range(COUNT)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = list(pool.map(lambda s: kubectl_says(cluster.kubectl, tmp_path / s.name, s), samples))

    order = random.Random(SEED)
    differ = [
        (sample, theirs, ours)
        for sample, theirs in zip(samples, names, strict=True)
        if (ours := sample.content(order).version_name(sample.name)) != theirs
    ]
    assert not differ, f"E2E_SEED={SEED}: {len(differ)} of {COUNT} names differ, first {differ[0]}"
    assert len(set(names)) == COUNT
    # Nothing of what was promised was left out by chance.
    assert {sample.secret_type for sample in samples} == {"", "Opaque", "example.com/<&>"}
    assert any(not sample.values for sample in samples)
    assert any(b"" in sample.values.values() for sample in samples)
    assert any(all(sample.split()) for sample in samples if not sample.secret_type)


def test_versions_are_named_so(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    tmp_path: Path,
) -> None:
    """The same through VersionedConfigs: the object of kubectl's name holds the content, byte for byte."""
    print(f"E2E_SEED={SEED}")
    usable = (s for number in range(COUNT) if (s := generated(number)).values and not s.secret_type)
    samples = [next(usable) for _ in range(END_TO_END)]
    manifests = []
    for sample in samples:
        text, binary = sample.split()
        wrapped = {key: base64.encodebytes(value).decode() for key, value in binary.items()}
        manifests.append(harness.versioned_config(sample.name, text, binaryData=wrapped))
    kubectl.create(namespace, *manifests)

    for sample in samples:
        expected = kubectl_says(cluster.kubectl, tmp_path / sample.name, sample)
        found = wait_versioned(api, namespace, sample.name)
        assert found["status"]["currentVersion"] == expected, f"E2E_SEED={SEED}: {sample}"
        stored = fetch(api, pykube.ConfigMap, namespace, expected) or {}
        values = {name: content.encode() for name, content in stored.get("data", {}).items()}
        values |= {name: base64.b64decode(content) for name, content in stored.get("binaryData", {}).items()}
        assert values == sample.values, f"E2E_SEED={SEED}: {sample}"
        assert stored["immutable"] is True
