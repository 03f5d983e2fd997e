"""A small OpenAI-compatible server of our own that behaves as it is told, well or badly."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bmrl.envs import make

HANG = object()  # accepts the connection, never answers
HANG_UP = object()  # closes it without a word


@dataclass(frozen=True)
class Page:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def said(text: str | None, *, finish: str = "stop", usage: Any = (10, 3), **more: Any) -> Page:
    """An answer as the protocol has it; ``usage`` are tokens of prompt and answer."""
    value = {
        "id": "1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        **more,
    }
    if usage is not None:
        value["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Page(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def error(status: int, message: str, **headers: str) -> Page:
    return Page(status, json.dumps({"error": {"message": message}}).encode(), headers)


class Knowing:
    """Plays shortest plans of embedded games, which it knows by the text that begins them; says it in tags.

    Args:
        tasks: how many games of the split it knows; the others it plays by looking around.
    """

    def __init__(self, split: str = "valid_seen", tasks: int = 1000) -> None:
        env = make("alfworld", source="embedded")
        self.plans = {env.reset(task): task.plan for task in env.tasks(split)[:tasks]}

    def __call__(self, number: int, body: dict[str, Any]) -> Page:
        messages = body["messages"]
        plan = next((p for text, p in self.plans.items() if text in messages[0]["content"]), ())
        turn = len(messages) // 2
        action = plan[turn] if turn < len(plan) else "look"
        tokens = sum(len(m["content"].split()) for m in messages)
        return said(f"<action>{action}</action>", usage=(tokens, 3))


class ChatServer:
    """Serves ``behave(number, body)``, a page or one of the ways to give none; numbers count from 0.

    Attributes:
        bodies, headers, times: of all requests, in the order of their coming.
        answered: what was sent back, in the same order.
        most: most requests that were there at once.
    """

    def __init__(self, behave: Callable[[int, dict[str, Any]], Any], delay_s: float = 0.0) -> None:
        self.behave, self.delay_s = behave, delay_s
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.answered: dict[int, Any] = {}
        self.most = self._now = 0
        self._lock, self._over = threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                number = server._arrived(body, {"path": self.path, **dict(self.headers)})
                page = server.behave(number, body)
                server._over.wait(server.delay_s)
                server.answered[number] = page
                with server._lock:
                    server._now -= 1
                if page is HANG:
                    server._over.wait(60)
                if page is HANG or page is HANG_UP:
                    self.close_connection = True
                    return
                self.send_response(page.status)
                for name, value in {**page.headers, "Content-Length": str(len(page.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def _arrived(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self._now += 1
            self.most = max(self.most, self._now)
            return len(self.bodies) - 1


@contextmanager
def serving(behave: Callable[[int, dict[str, Any]], Any], delay_s: float = 0.0) -> Iterator[ChatServer]:
    server = ChatServer(behave, delay_s)
    thread = threading.Thread(target=server._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._over.set()
        server._http.shutdown()
        server._http.server_close()
        thread.join()
