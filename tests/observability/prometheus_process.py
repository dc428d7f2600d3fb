"""A real Prometheus that scrapes one server, and can be asked what it has."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST
from lmcache_devkit import free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
_CONFIGURATION = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: lmcache
    static_configs: [{{targets: ["{target}"]}}]
"""


class PrometheusProcess:
    """Use it as a context manager: it is started on entry and ended on exit."""

    def __init__(self, target: str, folder: Path) -> None:
        configuration = folder / "prometheus.yml"
        configuration.write_text(_CONFIGURATION.format(target=target))
        self._url = f"http://{HOST}:{(port := free_port())}/api/v1"
        options = {
            "config.file": configuration,
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"{HOST}:{port}",
            "enable-feature": "exemplar-storage",
        }
        command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in options.items())]
        self._child = ChildProcess("prometheus", command, folder / "prometheus.log", quiet_environment())

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """The labels and the value of each series of an instant query."""
        return [(each["metric"], float(each["value"][1])) for each in self.ask("query", query=query)["result"]]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Raises AssertionError when it does not come true in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except urllib.error.URLError:
                assert self._child.running, self._child.log_path.read_text()
            assert time.monotonic() < deadline, f"not within {seconds} s"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop(30.0)
        self._child.kill()
