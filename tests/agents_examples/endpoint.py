"""An endpoint for chat completions whose model is a script: it reads the conversation and calls tools, as models do.

A script is a function of the conversation; what it raises is answered as an error 500. Requests are judged as a real
endpoint judges them, and what is wrong with them is kept in `problems`.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Message = dict[str, Any]
Script = Callable[[list[Message]], Message]

KEY = "a-key-of-the-tests"
NUMBERS = count(1)


def call(name: str, **arguments: Any) -> Message:
    """A message that calls one tool."""
    return raw_call(name, json.dumps(arguments))


def raw_call(name: str, arguments: str) -> Message:
    """The same, with arguments as a model may have written them."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": f"call_{next(NUMBERS)}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def text(content: str) -> Message:
    """A message that ends the conversation."""
    return {"role": "assistant", "content": content}


class Endpoint:
    """What was asked of it, and what was wrong with that."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Message] = []
        self.problems: list[str] = []
        self.models: Any = {"object": "list", "data": [{"id": "scripted"}, {"id": "another"}]}
        """What it answers when it is asked for its models; None for 404."""
        self.url = ""

    def calls(self) -> list[tuple[str, Message]]:
        """The calls in the last conversation, in order."""
        messages = self.requests[-1]["messages"]
        functions = [made["function"] for message in messages for made in message.get("tool_calls", [])]
        return [(function["name"], json.loads(function["arguments"])) for function in functions]

    def answers(self) -> list[str]:
        """What the model was told by tools, in order."""
        return [message["content"] for message in self.requests[-1]["messages"] if message["role"] == "tool"]

    def judge(self, path: str, authorization: str | None, body: Message) -> None:
        """Keep what a real endpoint would refuse."""
        messages = body["messages"]
        asked = [made["id"] for message in messages for made in message.get("tool_calls", [])]
        told = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        names = [tool["function"]["name"] for tool in body["tools"] if tool["type"] == "function"]
        schemas = [tool["function"]["parameters"]["type"] for tool in body["tools"]]
        expected = {
            "the path": path == "/v1/chat/completions",
            "the key": authorization == f"Bearer {KEY}",
            "the model": body["model"] == "scripted",
            "an answer for each call, in order": asked == told,
            "the roles": [message["role"] for message in messages[:2]] == ["system", "user"],
            "each tool once": len(names) == len(set(names)) == len(body["tools"]),
            "the schemas of the tools": set(schemas) == {"object"},
            "a bound on the reply": body["max_tokens"] > 0,
            "texts": all(isinstance(message["content"], str) for message in messages),
        }
        self.problems += [name for name, holds in expected.items() if not holds]


@contextmanager
def scripted(script: Script) -> Iterator[Endpoint]:
    """The endpoint on a free port of this machine."""
    endpoint = Endpoint(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.requests.append(body)
            endpoint.judge(self.path, self.headers["Authorization"], body)
            try:
                message, status = script(body["messages"]), 200
            except RuntimeError as error:
                message, status = {"error": {"message": str(error)}}, 500
            used = {"total_tokens": len(json.dumps(body)) // 4}
            answer = {"choices": [{"index": 0, "message": message}], "usage": used} if status == 200 else message
            self.answer(status, answer)

        def do_GET(self) -> None:
            is_known = self.path == "/v1/models" and endpoint.models is not None
            endpoint.problems += [] if self.headers["Authorization"] == f"Bearer {KEY}" else ["the key"]
            self.answer(200 if is_known else 404, endpoint.models if is_known else {"detail": "Not Found"})

        def answer(self, status: int, answer: Any) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
