"""A real Prometheus beside the operator: own port, own folder, the shipped rules, sped up."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster.supervisor import die_with_parent
from e2e.harness import free_port, wait_until
from e2e.monitoring import rules

JOB: Final = "versionedconfig"
"""As the ServiceMonitor calls it."""


class Prometheus:
    """Scrapes one address each second. It ends with this process at the latest."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.started = time.time()
        self._targets = folder / "targets.json"
        self.scrape(None)
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules.write(folder / "rules.yaml", faster=True))],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
                }
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        with (folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(program),
                    f"--config.file={folder}/prometheus.yaml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                preexec_fn=die_with_parent(),
            )
        wait_until(self._ready, 30, "Prometheus is ready")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def scrape(self, port: int | None) -> None:
        """From now on that port of this machine; None: nothing."""
        # The target has one name whatever its port, as a pod of a Deployment that starts again has one address.
        labels = {"instance": "operator", "__address__": f"127.0.0.1:{port}"}
        found = [] if port is None else [{"targets": [labels.pop("__address__")], "labels": labels}]
        temporary = self._targets.with_suffix(".new")
        temporary.write_text(json.dumps(found))
        temporary.rename(self._targets)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What it is now."""
        return list(self._ask("query", query=expression)["result"])

    def query_range(self, expression: str, seconds: float) -> list[dict[str, Any]]:
        """What it was, second by second, until now."""
        now = time.time()
        found = self._ask("query_range", query=expression, start=now - seconds, end=now, step=1)
        return list(found["result"])

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, and whether it can be evaluated."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def firing(self, alert: str, **labels: str) -> dict[str, Any] | None:
        """The alert with these labels, if it fires."""
        for one in self._ask("alerts")["alerts"]:
            told = one["labels"]
            if told["alertname"] == alert and one["state"] == "firing" and labels.items() <= told.items():
                return dict(one)
        return None

    def fired(self, seconds: float) -> set[str]:
        """Names of all alerts that fired within so many seconds, whether they still do or not."""
        found = self.query_range('ALERTS{alertstate="firing"}', seconds)
        return {str(one["metric"]["alertname"]) for one in found}

    def log_tail(self) -> str:
        """The end of its log."""
        return "\n".join((self.folder / "prometheus.log").read_text().splitlines()[-20:])

    def _ready(self) -> bool:
        assert self._process.poll() is None, f"Prometheus ended by itself:\n{self.log_tail()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _ask(self, path: str, **parameters: object) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            answer = json.load(error)
        assert answer["status"] == "success", f"{answer.get('error')}: {parameters}"
        return dict(answer["data"])
