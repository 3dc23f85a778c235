"""An engine that answers nothing but /server_info."""

from typing import Any

import httpx

from gateway.reconcile.sglang import Control

URL = "http://engine"


class ServerInfoEngine:
    """Answers with `said`, or with the error `status`, and counts how often it is asked."""

    def __init__(self, **said: Any) -> None:
        self.said, self.status, self.asked = said, 200, 0

    def control(self) -> Control:
        return Control(URL, transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/server_info"
        self.asked += 1
        return httpx.Response(self.status, json=self.said)
