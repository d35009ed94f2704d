"""Runs code for E2B's code interpreter SDKs.

A context is a kernel of Jupyter with a working directory. One request runs one piece of code in one context, and is answered
with one line of JSON for each thing that the code says or shows, the last of which is the end. Requests for the same context
wait for each other. Whoever closes the connection has its code interrupted.

Everybody who reaches this port may run code here anyway, so there is nothing to guard but the server's own life: sizes and
counts are bounded.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from queue import Empty

from jupyter_client.manager import AsyncKernelManager

PORT = 49999
HOME = os.path.expanduser("~")
MAX_HEAD = 64 << 10
MAX_BODY = 64 << 20
MAX_CONTEXTS = 64
START_PATIENCE = 60
"""Seconds that a kernel has to come up."""
ALIVE_EVERY = 5
"""Seconds between two lines that say nothing, but show whether somebody still reads."""

LOST = "The kernel ended, or was restarted or removed, before the execution was finished"

LANGUAGES = {"python": "python3", "bash": "bash"}
OTHER_NAMES = {"py": "python", "python3": "python", "sh": "bash"}

MEDIA = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# ---- contexts ----


class Context:
    """A kernel, and whose turn it is to use it."""

    def __init__(self, language, cwd):
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self.turn = asyncio.Lock()
        self.manager = None
        self.client = None

    def told(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def start(self):
        # By sockets that only this user reaches, and not by ports.
        sockets = os.path.join(tempfile.mkdtemp(prefix="kernel-"), "socket")
        self.manager = AsyncKernelManager(kernel_name=LANGUAGES[self.language], transport="ipc", ip=sockets)
        await self.manager.start_kernel(cwd=self.cwd)
        await self.attach()

    async def attach(self):
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=START_PATIENCE)

    async def restart(self):
        """What runs in it ends, and hears so by the loss of its kernel."""
        self.client.stop_channels()
        await self.manager.restart_kernel(now=True)
        await self.attach()

    async def end(self):
        if self.client:
            self.client.stop_channels()
        if self.manager:
            await self.manager.shutdown_kernel(now=True)
            shutil.rmtree(os.path.dirname(self.manager.ip), ignore_errors=True)

    async def quietly(self, code):
        """Runs what nobody hears of."""
        self.client.execute(code, silent=True, store_history=False)
        with contextlib.suppress(Exception):
            await self.client.get_shell_msg(timeout=START_PATIENCE)

    async def execute(self, code, env):
        async with self.turn:
            saved = {name: os.environ.get(name) for name in env}
            if env:
                await self.quietly(setting(self.language, env))
            try:
                async for line in self.lines(code):
                    yield line
            finally:
                if env and await self.manager.is_alive():
                    await asyncio.shield(self.quietly(setting(self.language, saved)))

    async def lines(self, code):
        client = self.client
        asked = client.execute(plain_indented(code, self.language), allow_stdin=False)
        idle = False
        try:
            while not idle:
                try:
                    message = await client.get_iopub_msg(timeout=ALIVE_EVERY)
                except Empty:
                    if await self.manager.is_alive():
                        yield {"type": "keepalive"}
                        continue
                    await self.revive()
                    message = None
                except asyncio.CancelledError:
                    if asyncio.current_task().cancelling():
                        raise
                    message = None  # somebody has restarted or removed the context
                except Exception:
                    message = None  # the same, a moment later
                if message is None or client is not self.client:
                    idle = True  # nothing of it runs any more
                    yield {"type": "unexpected_end_of_execution"}
                    yield {"type": "error", "name": "UnexpectedEndOfExecution", "value": LOST, "traceback": ""}
                    return
                if message["parent_header"].get("msg_id") != asked:
                    continue
                kind, content = message["msg_type"], message["content"]
                idle = kind == "status" and content["execution_state"] == "idle"
                line = line_of(kind, content)
                if line:
                    yield line
        finally:
            if not idle and await self.manager.is_alive():
                await asyncio.shield(self.calm(asked))

    async def revive(self):
        with contextlib.suppress(Exception):
            await self.restart()

    async def calm(self, asked):
        """Interrupts until it heeds, and at last begins anew: the next who comes finds a kernel that listens."""
        for _ in range(5):
            await self.manager.interrupt_kernel()
            until = time.monotonic() + 2
            while time.monotonic() < until:
                try:
                    message = await self.client.get_iopub_msg(timeout=0.5)
                except Empty:
                    continue
                mine = message["parent_header"].get("msg_id") == asked
                if mine and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    return
        await self.revive()


def setting(language, env):
    """Code that sets variables, and unsets those that are None."""
    if language == "python":
        return "import os as _o\n" + "\n".join(
            f"_o.environ.pop({name!r}, None)" if value is None else f"_o.environ[{name!r}] = {value!r}"
            for name, value in env.items()
        ) + "\ndel _o"
    quoted = lambda text: "'" + text.replace("'", "'\\''") + "'"
    return "\n".join(
        f"unset {name}" if value is None else f"export {name}={quoted(value)}"
        for name, value in env.items()
        if name.isidentifier()
    )


def plain_indented(code, language):
    """Code that is indented as a whole runs as if it were not; Python alone minds."""
    return code if language != "python" else dedented(code)


def dedented(code):
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip())]
    if not margin or any(line.strip() and not line.startswith(margin) for line in lines):
        return code
    return "\n".join(line[len(margin) :] for line in lines)


def line_of(kind, content):
    now = time.time_ns()
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": now}
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind == "error":
        return {
            "type": "error",
            "name": content["ename"],
            "value": content["evalue"],
            "traceback": "\n".join(content["traceback"]),
        }
    if kind in ("display_data", "execute_result"):
        return shown(content["data"], kind == "execute_result")
    return None


def shown(data, is_main_result):
    line, extra = {"type": "result", "is_main_result": is_main_result}, {}
    for media, value in data.items():
        if media in MEDIA:
            line[MEDIA[media]] = value
        else:
            extra[media] = value
    text = line.get("text")
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]  # a text is shown as it is, and not as it would be written in code
    if extra:
        line["extra"] = extra
    return line


class Contexts:
    def __init__(self):
        self.all = {}
        self.default = {}
        self.turn = asyncio.Lock()

    def language(self, name):
        name = (name or "python").lower()
        name = OTHER_NAMES.get(name, name)
        if name not in LANGUAGES:
            raise Refused(400, f"the language {name!r} is not supported: there are {', '.join(LANGUAGES)}")
        return name

    async def add(self, language, cwd):
        language = self.language(language)
        cwd = cwd or HOME
        if not os.path.isdir(cwd):
            raise Refused(400, f"cwd {cwd!r} is no directory")
        if len(self.all) >= MAX_CONTEXTS:
            raise Refused(429, f"there are {MAX_CONTEXTS} contexts already: remove some")
        context = Context(language, cwd)
        try:
            await context.start()
        except BaseException:
            await context.end()
            raise
        self.all[context.id] = context
        return context

    def get(self, id):
        try:
            return self.all[id]
        except KeyError:
            raise Refused(404, f"Context {id} not found") from None

    async def of_language(self, name):
        """The one that code runs in where nobody names a context."""
        language = self.language(name)
        async with self.turn:
            if self.default.get(language) not in self.all:
                self.default[language] = (await self.add(language, None)).id
        return self.all[self.default[language]]

    async def remove(self, id):
        context = self.get(id)
        del self.all[id]
        await context.end()


# ---- the little of HTTP that is needed ----


async def head_of(reader):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None  # it was closed between two requests
    except asyncio.LimitOverrunError:
        raise Refused(431, "the head of the request is too long") from None
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, _ = (first.split(" ") + ["", ""])[:3]
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target.partition("?")[0], headers


async def body_of(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            if len(body) + size > MAX_BODY:
                raise Refused(413, "the body is too long")
            body += await reader.readexactly(size)
            await reader.readline()
            if size == 0:
                return body
    size = int(headers.get("content-length") or 0)
    if size > MAX_BODY:
        raise Refused(413, "the body is too long")
    return await reader.readexactly(size)


def answer(status, body=b"", media="application/json"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} -\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Server:
    def __init__(self):
        self.contexts = Contexts()

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        """Whether another may come on the same connection."""
        try:
            head = await head_of(reader)
            if head is None:
                return False
            method, path, headers = head
            body = await body_of(reader, headers)
            asked = json.loads(body) if body.strip() else {}
            if not isinstance(asked, dict):
                raise Refused(400, "the body is no JSON object")
            if (method, path) == ("POST", "/execute"):
                return await self.execute(asked, reader, writer)
            writer.write(await self.route(method, path.strip("/").split("/"), asked))
        except Refused as refused:
            writer.write(answer(refused.status, str(refused).encode(), "text/plain"))
        except (json.JSONDecodeError, UnicodeDecodeError):
            writer.write(answer(400, b"the body is no JSON", "text/plain"))
        await writer.drain()
        return True

    async def route(self, method, path, asked):
        contexts = self.contexts
        match (method, path):
            case ("GET", ["health"]):
                return answer(200, b"OK", "text/plain")
            case ("GET", ["contexts"]):
                return answer(200, [context.told() for context in contexts.all.values()])
            case ("POST", ["contexts"]):
                return answer(200, (await contexts.add(asked.get("language"), asked.get("cwd"))).told())
            case ("DELETE", ["contexts", id]):
                await contexts.remove(id)
                return answer(204)
            case ("POST", ["contexts", id, "restart"]):
                await contexts.get(id).restart()
                return answer(204)
        raise Refused(404, "Not Found")

    async def execute(self, asked, reader, writer):
        code, env = asked.get("code"), asked.get("env_vars") or {}
        if not isinstance(code, str) or not isinstance(env, dict):
            raise Refused(400, "`code` has to be a text, and `env_vars` an object")
        if asked.get("context_id") and asked.get("language"):
            raise Refused(400, "Only one of context_id or language can be provided")
        if asked.get("context_id"):
            context = self.contexts.get(asked["context_id"])
        else:
            context = await self.contexts.of_language(asked.get("language"))
        env = {str(name): str(value) for name, value in env.items()}
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        # Nobody sends anything while the answer comes: what can be read is the end of the connection.
        telling = asyncio.ensure_future(tell(context, code, env, writer))
        gone = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait({telling, gone}, return_when=asyncio.FIRST_COMPLETED)
        if telling in done:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            telling.result()
            return False
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await telling
        return False


async def tell(context, code, env, writer):
    async def say(line):
        line = json.dumps(line).encode() + b"\n"
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        await writer.drain()

    lines = context.execute(code, env)
    try:
        async for line in lines:
            await say(line)
    finally:
        await asyncio.shield(lines.aclose())
    await say({"type": "end_of_execution"})
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def main():
    server = Server()
    await server.contexts.of_language("python")
    listening = await asyncio.start_server(server.serve, "0.0.0.0", PORT, limit=MAX_HEAD, reuse_address=True)
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    async with listening:
        await ending.wait()
    for context in list(server.contexts.all.values()):
        with contextlib.suppress(Exception):
            await context.end()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
