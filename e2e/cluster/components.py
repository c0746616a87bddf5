"""The command line of each program of a cluster. Knows their flags; starts nothing."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from e2e.cluster.pki import Authority

SYNC_FREQUENCY: Final = "2s"
"""The kubelet's default is a minute; volumes are refreshed at each sync, and tests should not wait for that."""

AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # Who wrote what, without bodies: they hold content.
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Ports:
    """All on loopback, but for the kubelets'."""

    etcd: int
    etcd_peer: int
    api: int
    controller_manager: int
    scheduler: int
    kubelets: tuple[int, ...]


def node_names(count: int) -> tuple[str, ...]:
    """node-0, node-1, …"""
    return tuple(f"node-{i}" for i in range(count))


def addresses() -> tuple[str, ...]:
    """Of this machine, as far as a kubelet may take one for its node's."""
    return tuple(
        one.address
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family == socket.AF_INET
    )


def processes(folder: Path, programs: Path, sockets: Path, ports: Ports) -> dict[str, Any]:
    """Every process by name, in the order of starting; writes certificates, kubeconfigs and the audit policy."""
    server = f"https://127.0.0.1:{ports.api}"
    pki = folder / "pki"
    authority = Authority.new(pki)
    authority.server("apiserver", ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"))
    authority.kubeconfig(folder / "kubeconfig", server, "admin", "system:masters")
    for name in ("kube-controller-manager", "kube-scheduler"):
        authority.kubeconfig(folder / f"{name}.kubeconfig", server, f"system:{name}")
    (folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
    etcd = f"http://127.0.0.1:{ports.etcd}"
    peer = f"http://127.0.0.1:{ports.etcd_peer}"
    found: dict[str, Any] = {
        "etcd": [
            *("--data-dir", str(folder / "etcd"), "--log-level", "warn", "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        ],
        "kube-apiserver": [
            *("--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", str(ports.api)),
            *("--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/16"),
            *("--tls-cert-file", f"{pki}/apiserver.crt", "--tls-private-key-file", f"{pki}/apiserver.key"),
            *("--client-ca-file", f"{pki}/ca.crt", "--authorization-mode", "Node,RBAC"),
            *("--enable-admission-plugins", "NodeRestriction", "--allow-privileged"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", f"{pki}/sa.pub", "--service-account-signing-key-file", f"{pki}/sa.key"),
            *("--audit-policy-file", f"{folder}/audit-policy.json", "--audit-log-path", f"{folder}/audit.log"),
        ],
        "kube-controller-manager": [
            *("--kubeconfig", f"{folder}/kube-controller-manager.kubeconfig", "--leader-elect=false"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(ports.controller_manager)),
            *("--service-account-private-key-file", f"{pki}/sa.key", "--root-ca-file", f"{pki}/ca.crt"),
            "--use-service-account-credentials",
            # It makes this folder; the default is one of the host's.
            *("--flex-volume-plugin-dir", f"{folder}/flexvolume"),
        ],
        "kube-scheduler": [
            *("--kubeconfig", f"{folder}/kube-scheduler.kubeconfig", "--leader-elect=false"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(ports.scheduler)),
        ],
    }  # fmt: skip
    commands = {name: {"command": [str(programs / name), *arguments]} for name, arguments in found.items()}
    for name, port in zip(node_names(len(ports.kubelets)), ports.kubelets, strict=True):
        home = folder / name
        (home / "env").mkdir(parents=True)
        kubeconfig = authority.kubeconfig(
            folder / f"{name}.kubeconfig", server, f"system:node:{name}", "system:nodes"
        )
        authority.server(f"kubelet-{name}", (name,), addresses())
        serving = f"{pki}/kubelet-{name}"
        common = ["--dir", str(home), "--socket", str(sockets / f"{name}.sock")]
        program = str(programs / "hollow-node")
        commands[f"runtime-{name}"] = {"command": [program, "runtime", *common]}
        commands[f"kubelet-{name}"] = {
            "command": [
                *(program, "kubelet", *common, "--name", name, "--port", str(port)),
                *("--kubeconfig", str(kubeconfig), "--sync-frequency", SYNC_FREQUENCY),
                *(
                    "--client-ca",
                    f"{pki}/ca.crt",
                    "--certificate",
                    f"{serving}.crt",
                    "--key",
                    f"{serving}.key",
                ),
            ]
        }
    return commands
