"""What the server of the explorer lets through: the page itself, and short questions in JSON.

Gradio offers much more: uploads, files of the server, a queue that keeps answers for pages that
never fetch them. All of it is refused here, before Gradio sees it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
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
_MOST_AT_ONCE = 32
"""The largest number of questions that wait or are answered."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """An ASGI application before that of Gradio.

    Args:
        app: Gradio's.
        most_bytes: the largest question, in bytes.
        own_hosts: the names that requests may call this server by; None for any. It keeps pages of
            other sites, whose name was made to stand for this machine, from asking.
    """

    def __init__(self, app: App, most_bytes: int, own_hosts: Sequence[str] | None) -> None:
        self.app, self.most_bytes, self.own_hosts = app, most_bytes, own_hosts
        self._at_once = 0

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
        if self._at_once >= _MOST_AT_ONCE:
            await _refuse(send, 503, "Expected fewer questions at once. Ask again.")
            return
        self._at_once += 1
        try:
            body = await _body(receive, self.most_bytes)
            question = None if body is None else question_of(body)
            if question is None:
                await _refuse(send, 400, "Expected a question of the page.")
                return
            kept = [
                (name, value)
                for name, value in scope["headers"]
                if name.lower() not in (b"content-length", b"transfer-encoding")
            ]
            scope["headers"] = [*kept, (b"content-length", str(len(question)).encode())]
            await self.app(scope, _once(question), send)
        finally:
            self._at_once -= 1


def guard_of(most_bytes: int, host: str) -> dict[str, Any]:
    """The arguments of `Guard` for a server.

    Args:
        most_bytes: the largest question, in bytes.
        host: the address that the server listens at.
    """
    is_own = host in ("127.0.0.1", "localhost", "::1")
    return {"most_bytes": most_bytes, "own_hosts": _LOOPBACK if is_own else None}


def question_of(body: bytes) -> bytes | None:
    """A question as Gradio takes it, without all that no question of the page has; None for others.

    The data are texts, numbers and flat lists of these. So none can name a file or an address,
    which Gradio would open. Without the name of a session, the server remembers nothing.

    Args:
        body: JSON.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or not isinstance(asked.get("data"), list):
        return None
    data, number = asked["data"], asked.get("fn_index")
    if not all(
        _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value)))
        for value in data
    ):
        return None
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        return None
    if number is not None and not 0 <= number < 1000:
        return None
    return json.dumps({"data": data} | ({} if number is None else {"fn_index": number})).encode()


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
