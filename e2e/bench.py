"""Speed and memory on a real API server, each as a ratio to a floor that is measured in the same run.

`python -m e2e.bench [--row start|rollout|protect|admission] [--scale 0.1]`. The floor is what nobody can beat by much: the bare
requests that the work needs, sent by plain aiohttp. Exits non-zero where a row misses its bound.
"""

import asyncio
import base64
import contextlib
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
import yaml
from rich.console import Console
from rich.table import Table

from e2e import cluster as clusters
from e2e import harness
from e2e.harness import Kubectl, Manifest, Operator

console = Console()
IN_FLIGHT = 20
FLOOR_FINALIZER = "floor.versionedconfig.test/in-use"
"""Not the operator's, which would have to release it."""
Json = dict[str, Any]


class Bare:
    """Requests without any client library: the floor, and the observer."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        server = document["clusters"][0]["cluster"]
        user = document["users"][0]["user"]
        self._url: str = server["server"]

        def pem(part: Json, name: str) -> str:
            if name in part:
                return str(part[name])
            path = directory / f"{name}.pem"
            path.touch(mode=0o600)
            path.write_bytes(base64.b64decode(part[f"{name}-data"]))
            return str(path)

        self._tls = ssl.create_default_context(cafile=pem(server, "certificate-authority"))
        self._tls.load_cert_chain(pem(user, "client-certificate"), pem(user, "client-key"))

    async def __aenter__(self) -> "Bare":
        # As plain as it gets: no compression, which costs both sides more than loopback does.
        self._session = aiohttp.ClientSession(
            self._url,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            headers={"Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**21,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, method: str, path: str, body: object = None, kind: str = "json") -> Json:
        """One request; raises for a status that is no success."""
        headers = {"Content-Type": f"application/{kind}"}
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(method, path, data=data, headers=headers) as response:
            text = await response.read()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {text[:300]!r}")
            found: Json = json.loads(text)
            return found

    async def page_through(self, path: str, selector: str = "") -> int:
        """The bare paged GETs of a collection, unread; how many bytes came."""
        token, size = "", 0
        while True:
            query = f"{path}?limit=500" + (f"&fieldSelector={selector}" if selector else "")
            async with self._session.get(query + (f"&continue={token}" if token else "")) as response:
                text = await response.read()
            size += len(text)
            head = text[:400].decode()
            token = head.partition('"continue":"')[2].partition('"')[0]
            if not token:
                return size

    async def watch(self, path: str, ready: asyncio.Event | None = None) -> AsyncIterator[Json]:
        """Events from now on."""
        listed = await self.send("GET", f"{path}?limit=1")
        version = listed["metadata"]["resourceVersion"]
        async with self._session.get(f"{path}?watch=1&resourceVersion={version}") as response:
            if ready is not None:
                ready.set()
            async for line in response.content:
                yield json.loads(line)


@dataclass(frozen=True)
class Row:
    """One measured thing against its floor."""

    name: str
    measured: float
    floor: float
    bound: float
    unit: str = "s"
    rule: str = ""

    @property
    def holds(self) -> bool:
        """It is within its bound."""
        return self.measured <= self.bound


async def in_parallel(jobs: Iterable[Awaitable[object]], limit: int = IN_FLIGHT) -> None:
    """Await all, so many at a time. `jobs` may be a generator: each is made when its turn comes."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(work())


def config_map(name: str) -> Manifest:
    """Immutable, with a value of a usual size."""
    return harness.config_map(name, {"app.properties": f"name={name}\n" + "x=1\n" * 100})


def pod(name: str, config: str) -> Manifest:
    """Nobody schedules it. Two containers and a volume: what a rendered pod has after defaulting is some kB."""
    spec = harness.reading_pod_spec(config, schedulerName="nobody")
    return harness.pod(name, spec)


@contextlib.asynccontextmanager
async def namespace(bare: Bare, name: str) -> AsyncIterator[str]:
    """A fresh one that takes pods."""
    await bare.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    for _ in range(300):
        try:
            await bare.send("GET", account)
            break
        except RuntimeError:
            await asyncio.sleep(0.1)
    yield name
    # Until it is gone: its end would weigh on what is measured next.
    with contextlib.suppress(RuntimeError):
        await bare.send("DELETE", f"/api/v1/namespaces/{name}")
        while True:
            await bare.send("GET", f"/api/v1/namespaces/{name}")
            await asyncio.sleep(0.5)


async def fill(bare: Bare, space: str, pods: int, configs: int) -> None:
    """Create what a large namespace holds."""
    path = f"/api/v1/namespaces/{space}"
    await in_parallel(
        (bare.send("POST", f"{path}/configmaps", config_map(f"c{i}")) for i in range(configs)), 40
    )
    await in_parallel(
        (bare.send("POST", f"{path}/pods", pod(f"p{i}", f"c{i % configs}")) for i in range(pods)),
        40,
    )


LISTED = (
    ("/api/v1/namespaces", ""),
    ("/api/v1/configmaps", ""),
    ("/api/v1/secrets", ""),
    ("/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed"),
    ("/apis/apps/v1/deployments", ""),
    ("/apis/apps/v1/replicasets", ""),
)


async def row_start(bare: Bare, operator: Operator, scale: float) -> list[Row]:
    """Start to synced with many pods and immutable objects, and the memory at its highest."""
    pods, configs = int(10_000 * scale), int(2_000 * scale)
    async with namespace(bare, "bench-start") as space:
        console.print(f"creating {pods} pods and {configs} ConfigMaps …")
        await fill(bare, space, pods, configs)
        times, floors, peaks = [], [], []
        for _ in range(3):
            started = time.monotonic()
            for path, selector in LISTED:
                await bare.page_through(path, selector)
            floors.append(time.monotonic() - started)
            started = time.monotonic()
            await asyncio.to_thread(operator.start)
            times.append(time.monotonic() - started)  # it returns when /healthz says so
            await asyncio.sleep(2)  # protection works on; its memory counts
            peaks.append(peak_megabytes(operator))
            await asyncio.to_thread(operator.stop)
        # The namespace cannot end while nobody releases what is in it.
        await asyncio.to_thread(operator.start)
    await asyncio.to_thread(operator.stop)
    measured, floor = sorted(times)[1], sorted(floors)[1]
    return [
        Row(f"start to synced, {pods} pods, {configs} ConfigMaps", measured, floor, 1.5 * floor + 2, rule="1.5 × bare GETs + 2 s"),
        Row("peak memory while doing so", max(peaks), 160, 160, "MB", "160 MB"),
    ]  # fmt: skip


def peak_megabytes(operator: Operator) -> float:
    """The highest resident memory of the process so far."""
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


async def row_rollout(bare: Bare, operator: Operator, scale: float) -> list[Row]:
    """One VersionedConfig, many Deployments of zero replicas, all at once: edit to the last template rewritten."""
    count = int(300 * scale)
    await asyncio.to_thread(operator.start)
    async with namespace(bare, "bench-rollout") as space:
        path = f"/apis/apps/v1/namespaces/{space}/deployments"
        vcfg = f"/apis/versionedconfig.io/v1alpha1/namespaces/{space}/versionedconfigs"
        rollout = {"maxConcurrent": "100%", "settleSeconds": 0}
        await bare.send("POST", vcfg, harness.versioned_config("app-cfg", {"MODE": "0"}, rollout=rollout))
        template = harness.reading_pod_spec("app-cfg")
        plain = harness.reading_pod_spec("plain-0")
        await in_parallel(
            bare.send("POST", path, harness.deployment(n, s, replicas=0))
            for n, s in [
                *((f"d{i}", template) for i in range(count)),
                *((f"plain{i}", plain) for i in range(count)),
            ]
        )
        seen: dict[str, tuple[str, float]] = {}
        changed = asyncio.Event()
        ready = asyncio.Event()

        async def observe() -> None:
            async for event in bare.watch(path, ready):
                item = event["object"]
                config = item["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
                name = item["metadata"]["name"]
                if seen.get(name, ("",))[0] != config:
                    seen[name] = (config, time.monotonic())
                    changed.set()

        observer = asyncio.create_task(observe())
        await ready.wait()

        async def all_at(prefix: str, not_at: str) -> float:
            while True:
                own = [v for n, v in seen.items() if n.startswith(prefix) and n[len(prefix) :].isdigit()]
                if len(own) == count and len({v[0] for v in own}) == 1 and own[0][0] != not_at:
                    return max(v[1] for v in own)
                changed.clear()
                await asyncio.wait_for(changed.wait(), 120)

        floors, times = [], []
        await bare.send("PATCH", f"{vcfg}/app-cfg", {"spec": {"data": {"MODE": "first"}}}, "merge-patch+json")
        last = ""
        with contextlib.suppress(TimeoutError):
            await all_at("d", "app-cfg")
        for number in range(1, 4):
            last = seen["d0"][0]
            started = time.monotonic()
            edit = {"spec": {"data": {"MODE": str(number)}}}
            await bare.send("PATCH", f"{vcfg}/app-cfg", edit, "merge-patch+json")
            times.append(await all_at("d", last) - started)
            await quiet(operator)
            leaf = "/spec/template/spec/volumes/0/configMap/name"
            env = "/spec/template/spec/containers/0/env/0/valueFrom/configMapKeyRef/name"
            patch = [
                operation
                for where in (leaf, env)
                for operation in (
                    {"op": "test", "path": where, "value": f"plain-{number - 1}"},
                    {"op": "replace", "path": where, "value": f"plain-{number}"},
                )
            ]
            started = time.monotonic()
            await in_parallel(
                bare.send("PATCH", f"{path}/plain{i}", patch, "json-patch+json") for i in range(count)
            )
            floors.append(await all_at("plain", f"plain-{number - 1}") - started)
            await quiet(operator)
        observer.cancel()
        measured, floor = sorted(times)[1], sorted(floors)[1]
    await asyncio.to_thread(operator.stop)
    return [
        Row(f"edit to the last of {count} templates", measured, floor, 3 * floor, rule="3 × bare patches")
    ]


async def quiet(operator: Operator) -> None:
    """Until the operator sends no more requests, so that one phase does not weigh on the next."""
    before = -1.0
    while True:
        series = await asyncio.to_thread(operator.metrics)
        now = sum(v for name, v in series.items() if name.startswith("versionedconfig_api_requests_total"))
        if now == before:
            return
        before = now
        await asyncio.sleep(1)


async def row_protect(bare: Bare, operator: Operator, scale: float) -> list[Row]:
    """Pod created to finalizer on, at 20 pods a second; the floor is a bare loop of watch and patch."""
    rounds, count = 4, int(100 * scale)
    measured: list[float] = []
    floor: list[float] = []
    for number in range(rounds):
        # In turn, so that what the machine does meanwhile weighs on both.
        floor += await latencies(bare, f"bench-floor-{number}", count, bare_protector)
        await asyncio.to_thread(operator.start)
        measured += await latencies(bare, f"bench-protect-{number}", count, None)
        await asyncio.to_thread(operator.stop)
    one, other = p99(measured), p99(floor)
    medians = (sorted(values)[len(values) // 2] * 1000 for values in (measured, floor))
    console.print("medians: {:.1f} ms, floor {:.1f} ms".format(*medians))
    return [
        Row("pod created to finalizer on, p99", one * 1000, other * 1000, 3 * other * 1000, "ms", "3 × bare loop"),
    ]  # fmt: skip


def p99(values: list[float]) -> float:
    """The value that 99 of 100 do not exceed."""
    return sorted(values)[int(len(values) * 0.99) - 1 if len(values) > 1 else 0]


async def bare_protector(bare: Bare, space: str) -> None:
    """The floor: patch each pod's ConfigMap when the pod shows up."""
    path = f"/api/v1/namespaces/{space}"
    async with asyncio.TaskGroup() as group:
        async for event in bare.watch(f"{path}/pods"):
            if event["type"] == "ADDED":
                config = event["object"]["spec"]["volumes"][0]["configMap"]["name"]
                body = {"metadata": {"finalizers": [FLOOR_FINALIZER]}}
                kind = "strategic-merge-patch+json"
                group.create_task(bare.send("PATCH", f"{path}/configmaps/{config}", body, kind))


async def latencies(
    bare: Bare, space: str, count: int, protector: Callable[[Bare, str], Awaitable[None]] | None
) -> list[float]:
    """Seconds from a pod's creation to the finalizer, as an observer sees them."""
    async with namespace(bare, space):
        path = f"/api/v1/namespaces/{space}"
        await in_parallel(bare.send("POST", f"{path}/configmaps", config_map(f"c{i}")) for i in range(count))
        created: dict[str, float] = {}
        protected: dict[str, float] = {}
        done = asyncio.Event()
        ready = asyncio.Event()

        async def observe() -> None:
            async for event in bare.watch(f"{path}/configmaps", ready):
                meta = event["object"]["metadata"]
                if {harness.IN_USE, FLOOR_FINALIZER} & set(meta.get("finalizers", ())):
                    protected.setdefault(meta["name"], time.monotonic())
                    if len(protected) == count:
                        done.set()

        tasks = [asyncio.create_task(observe())]
        if protector is not None:
            tasks.append(asyncio.ensure_future(protector(bare, space)))
        await ready.wait()
        await asyncio.sleep(1)

        async def create(i: int) -> None:
            await bare.send("POST", f"{path}/pods", pod(f"p{i}", f"c{i}"))
            created[f"c{i}"] = time.monotonic()

        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for i in range(count):
                await asyncio.sleep(max(0.0, start + i / 20 - time.monotonic()))
                group.create_task(create(i))
        await asyncio.wait_for(done.wait(), 120)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if protector is not None:
            bare_again = {"metadata": {"finalizers": None}}
            await in_parallel(
                bare.send("PATCH", f"{path}/configmaps/c{i}", bare_again, "merge-patch+json")
                for i in range(count)
            )
        return [max(0.0, protected[name] - created[name]) for name in created]


async def row_admission(bare: Bare, operator: Operator, scale: float) -> list[Row]:
    """Writing a Deployment whose names are rewritten, with 200 of each kind in the namespace's map; the floor is the same write
    in a namespace without a map, where the policy is not evaluated. Median, one of each in turn."""
    writes, names = int(300 * scale), 200
    async with namespace(bare, "bench-rewritten") as rewritten, namespace(bare, "bench-plain") as plain:
        maps = "/apis/versionedconfig.io/v1alpha1/namespaces/{}/versionmaps"
        entries = {"app-cfg": "app-cfg-2222222222", **{f"c{i}": f"c{i}-2222222222" for i in range(names - 1)}}
        version_map = {
            "apiVersion": "versionedconfig.io/v1alpha1",
            "kind": "VersionMap",
            "metadata": {"name": harness.VERSION_MAP},
            "spec": {"configMaps": entries, "secrets": entries},
        }
        await bare.send("POST", maps.format(rewritten), version_map)
        manifest = harness.deployment(replicas=0)
        path = "/apis/apps/v1/namespaces/{}/deployments"
        for space, named in ((rewritten, "app-cfg-2222222222"), (plain, "app-cfg")):
            async with asyncio.timeout(30):
                while True:
                    created = await bare.send("POST", f"{path.format(space)}?dryRun=All", manifest)
                    volume = created["spec"]["template"]["spec"]["volumes"][0]
                    if volume["configMap"]["name"] == named:
                        break
                    await asyncio.sleep(0.1)
            await bare.send("POST", path.format(space), manifest)
        # Until their controller has written what it writes.
        await asyncio.sleep(2)
        seconds: dict[str, list[float]] = {rewritten: [], plain: []}
        for _ in range(writes):
            for space, times in seconds.items():
                started = time.monotonic()
                await bare.send("PUT", f"{path.format(space)}/web?dryRun=All", manifest)
                times.append(time.monotonic() - started)
    measured, floor = (sorted(times)[len(times) // 2] * 1000 for times in seconds.values())
    return [
        Row(f"writing a Deployment, {names} names of each kind in the map", measured, floor, floor + 5, "ms", "bare write + 5 ms"),
    ]  # fmt: skip


ROWS = {"start": row_start, "rollout": row_rollout, "protect": row_protect, "admission": row_admission}


async def measure(cluster: harness.Cluster, chosen: list[str], scale: float, directory: Path) -> list[Row]:
    """The chosen rows."""
    kubectl = Kubectl(cluster.kubectl, cluster.kubeconfig)
    api = harness.connect(cluster, directory)
    await asyncio.to_thread(harness.install, kubectl, api)
    kubeconfig = harness.account_kubeconfig(kubectl, directory / "operator.kubeconfig")
    operator = Operator(kubeconfig, directory / "operator.log")
    rows: list[Row] = []
    async with Bare(cluster.kubeconfig, directory) as bare:
        try:
            for name in chosen:
                console.print(f"[bold]{name}[/]: {str(ROWS[name].__doc__).splitlines()[0]}")
                rows += await ROWS[name](bare, operator, scale)
        finally:
            operator.stop()
            api.session.close()
    return rows


def main(
    row: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(ROWS)}.")] = None,
    scale: Annotated[float, typer.Option(help="Of the object counts; the bounds are for 1.")] = 1.0,
) -> None:
    """Measure, print a table, exit 1 where a bound is missed."""
    with (
        tempfile.TemporaryDirectory(prefix="versionedconfig-bench-") as directory,
        clusters.up(name="bench", nodes=1, tied=True) as cluster,
    ):
        rows = asyncio.run(measure(cluster, row or list(ROWS), scale, Path(directory)))
    table = Table("what", "measured", "floor", "ratio", "bound", "")
    for r in rows:
        table.add_row(
            r.name,
            f"{r.measured:.2f} {r.unit}",
            f"{r.floor:.2f} {r.unit}",
            f"{r.measured / r.floor:.2f}",
            f"{r.bound:.2f} {r.unit} ({r.rule})",
            "ok" if r.holds else "MISSED",
        )
    console.print(table)
    sys.exit(any(not r.holds for r in rows))


if __name__ == "__main__":
    typer.run(main)
