"""Many clients at once, some of whom leave, while the server is killed and started again: every answer is right, none is
missing, and nothing stays held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from demo.answer import Answer
from demo.engine_process import RequestError
from tests.engine.busy_site import LOOKUP_SECONDS, BusySite
from tests.engine.comparison import assert_right
from tests.engine.concurrent_engine import Request
from tests.engine.load import clients, mixed_prompts
from tests.engine.reference import Reference
from tests.engine.site import RELEASE_SECONDS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

REQUEST_SECONDS = 90.0
"""No request may take longer, whatever happened to the server meanwhile."""
EXPIRED = "holds passed their deadline"
DEGRADED = "entering degraded mode"


class LoadedSite:
    """Waves of clients, and what has come of them so far."""

    def __init__(self, site: BusySite, reference: Reference, prompts: list[list[int]]) -> None:
        self._site = site
        self._prompts = prompts
        self._reference = reference
        reference.answers(prompts)  # now, and not while the server is under load
        self.counts: Counter[str] = Counter()

    def wave(self, seed: int, *, reckless: bool, restart: Callable[[], None] | None = None) -> None:
        """All prompts at once; the server is restarted when a third of them have ended.  Every answer must be right.

        `reckless` clients leave also where a stock engine may not survive it.  In any case it is replaced then, if
        no server could have helped it, and asked what it had not answered.
        """

        def in_the_middle(ended: int) -> None:
            if restart is not None and ended == len(self._prompts) // 3:
                self._sample()
                restart()
                self.counts["restarts"] += 1

        requests = clients(seed, self._prompts, reckless=reckless)
        ends = self._site.engine.serve(requests, timeout_seconds=REQUEST_SECONDS, on_end=in_the_middle)
        ended = list(zip(requests, ends, strict=True))
        self._check([(request, end) for request, end in ended if not isinstance(end, RequestError)])
        if lost := [request for request, end in ended if isinstance(end, RequestError)]:
            self.counts[f"engine died: {self._site.replace_engine()}"] += 1
            prompts = [request.prompt for request in lost]
            answers = self._site.engine.ask_together(prompts, timeout_seconds=REQUEST_SECONDS)
            self._check(list(zip(lost, answers, strict=True)))

    def last_wave(self, seed: int) -> None:
        """No client is reckless and nothing restarted; and when the engine is idle then, nothing may stay held, nor have been
        held until its time was up."""
        site = self._site
        site.wait_nothing_held(LOOKUP_SECONDS + RELEASE_SECONDS)  # what engines that died before have looked up
        server_read, engine_read = len(site.server.log), len(site.engine.log)
        self.wave(seed, reckless=False)
        site.wait_nothing_held()
        self._sample()
        engine_forgot = DEGRADED in site.engine.log[engine_read:]  # it then ends requests without a word
        assert engine_forgot or EXPIRED not in site.server.log[server_read:]

    def _check(self, ended: Sequence[tuple[Request, Answer | None]]) -> None:
        answers = {tuple(request.prompt): answer for request, answer in ended if answer is not None}
        assert_right(list(answers.values()), self._reference.answers(list(answers)))
        assert all(request.may_leave for request, answer in ended if answer is None)
        self.counts["answers"] += len(answers)
        self.counts["left"] += len(ended) - len(answers)
        self.counts["answers with a hit"] += sum(answer.cached_tokens > 0 for answer in answers.values())

    def _sample(self) -> None:
        """The server's counters go with it."""
        status = self._site.server.status()
        for name in ("hit", "loaded_from_l2", "stored", "retrieved"):
            self.counts[f"chunks {name}"] += status["chunks"][name]
        written = status["chunks"]["stored"] + status["chunks"]["loaded_from_l2"]
        self.counts["chunks evicted, at least"] += max(0, written - status["l1"]["total"])


def check(busy_site: BusySite, load: LoadedSite, restarts: Sequence[Callable[[], None]], *, reckless: bool) -> None:
    for seed, restart in enumerate(restarts):
        load.wave(seed, reckless=reckless, restart=restart)
        busy_site.wait_reconnected()
    load.last_wave(len(restarts))
    print(dict(load.counts))
    assert load.counts["restarts"] == len(restarts)
    assert load.counts["left"] > 0
    assert load.counts["answers with a hit"] > 0
    assert load.counts["chunks loaded_from_l2"] > 0
    assert load.counts["chunks evicted, at least"] > 0


@pytest.mark.timeout(600)
def test_64_clients_two_crashes_and_a_restart(busy_site: BusySite, reference: Reference) -> None:
    load = LoadedSite(busy_site, reference, mixed_prompts(64, 64))
    crash = busy_site.crash_server_between_requests
    check(busy_site, load, [crash, busy_site.restart_server, crash], reckless=False)


@pytest.mark.timeout(1800)
def test_128_reckless_clients_and_crashes_at_any_time(busy_site: BusySite, reference: Reference) -> None:
    load = LoadedSite(busy_site, reference, mixed_prompts(128, 128))
    check(busy_site, load, [busy_site.crash_server, busy_site.restart_server] * 4, reckless=True)
