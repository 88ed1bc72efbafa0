"""What the server of the explorer lets through: the page itself, and short questions in JSON.

Gradio offers much more: uploads, files of the server, a queue that keeps answers for pages that
never fetch them. All of it is refused here, before Gradio sees it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_READ = ("/assets/", "/static/", "/svelte/", "/gradio_api/heartbeat/")
_READ_EXACT = (
    *("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/gradio_api/info", "/gradio_api/theme.css", "/gradio_api/startup-events"),
    *("/gradio_api/app_id", "/gradio_api/login_check"),
)
_ASKED = "/gradio_api/run/"
_BY_NUMBER = "predict"
"""What follows `_ASKED` where the body has the number of the question. Else it is the name."""
_BUSY = "Expected fewer questions at once. Ask again."
_MOST_AT_ONCE = 32
"""The largest number of questions that wait or are answered."""
_MOST_READ = 128
"""The largest number of questions that are being read."""
_MOST_SECONDS = 10.0
"""How long a question may take to arrive."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """An ASGI application before that of Gradio.

    Args:
        app: Gradio's.
        most_bytes: the largest question, in bytes.
        questions: the name or the number of a question -> how many values it takes.
        own_hosts: the names that requests may call this server by; None for any. It keeps pages of
            other sites, whose name was made to stand for this machine, from asking.
    """

    def __init__(
        self,
        app: App,
        most_bytes: int,
        questions: Mapping[str | int, int],
        own_hosts: Sequence[str] | None,
    ) -> None:
        self.app, self.most_bytes, self.questions = app, most_bytes, questions
        self.own_hosts = own_hosts
        self._at_once = self._num_read = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let Gradio answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        host = headers.get(b"host", b"").decode("latin-1").rpartition(":")[0]
        host = host or headers.get(b"host", b"").decode("latin-1")
        if self.own_hosts is not None and host not in self.own_hosts:
            await _refuse(send, 403, "Expected a request to this machine.")
        elif method in ("GET", "HEAD") and (path in _READ_EXACT or path.startswith(_READ)):
            await self.app(scope, receive, send)
        elif method == "POST" and path.startswith(_ASKED):
            await self._ask(scope, receive, send, headers)
        else:
            await _refuse(send, 404, "Expected the page, or a question of it.")

    async def _ask(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> None:
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 12 or int(length) > self.most_bytes:
            await _refuse(send, 413, f"Expected at most {self.most_bytes} bytes.")
            return
        if self._num_read >= _MOST_READ:
            await _refuse(send, 503, _BUSY)
            return
        body = await self._read(receive)
        name = scope["path"].removeprefix(_ASKED)
        question = None if body is None else question_of(body, name, self.questions)
        if question is None:
            await _refuse(send, 400, "Expected a question of the page.")
            return
        if self._at_once >= _MOST_AT_ONCE:
            await _refuse(send, 503, _BUSY)
            return
        self._at_once += 1
        try:
            kept = [
                (name, value)
                for name, value in scope["headers"]
                if name.lower() not in (b"content-length", b"transfer-encoding")
            ]
            scope["headers"] = [*kept, (b"content-length", str(len(question)).encode())]
            await self.app(scope, _once(question), send)
        finally:
            self._at_once -= 1

    async def _read(self, receive: Receive) -> bytes | None:
        """The body of a question; None if it does not arrive, which keeps no other from it."""
        self._num_read += 1
        try:
            return await asyncio.wait_for(_body(receive, self.most_bytes), _MOST_SECONDS)
        except asyncio.TimeoutError:
            return None
        finally:
            self._num_read -= 1


def guard_of(most_bytes: int, host: str, page: Any) -> dict[str, Any]:
    """The arguments of `Guard` for a server.

    Args:
        most_bytes: the largest question, in bytes.
        host: the address that the server listens at.
        page: the `gradio.Blocks` that is served.
    """
    numbered = {number: len(fn.inputs) for number, fn in page.fns.items()}
    named = {
        fn.api_name: len(fn.inputs) for fn in page.fns.values() if fn.api_visibility == "public"
    }
    is_own = host in ("127.0.0.1", "localhost", "::1")
    return {
        "most_bytes": most_bytes,
        "questions": {**numbered, **named},
        "own_hosts": _LOOPBACK if is_own else None,
    }


def question_of(body: bytes, name: str, questions: Mapping[str | int, int]) -> bytes | None:
    """A question as Gradio takes it, without all that no question of the page has; None for others.

    The data are as many values as it takes: texts, numbers and flat lists of these. So none can
    name a file or an address, which Gradio would open. Without the name of a session, the server
    remembers nothing.

    Args:
        body: JSON.
        name: the name of the question, or `_BY_NUMBER`.
        questions: the name or the number of a question -> how many values it takes.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or not isinstance(asked.get("data"), list):
        return None
    data = asked["data"]
    key = asked.get("fn_index") if name == _BY_NUMBER else name
    if type(key) is not (int if name == _BY_NUMBER else str):
        return None
    if len(data) != questions.get(key, -1) or not all(
        _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value)))
        for value in data
    ):
        return None
    return json.dumps({"data": data} | ({"fn_index": key} if name == _BY_NUMBER else {})).encode()


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, str)


async def _body(receive: Receive, most: int) -> bytes | None:
    """The whole body; None if the page is gone, or sends more than it said."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _once(body: bytes) -> Receive:
    """What gives a body, and then tells that there is no more."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return left.pop() if left else {"type": "http.disconnect"}

    return receive


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
