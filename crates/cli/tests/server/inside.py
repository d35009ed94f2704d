"""A web server for the inside of a sandbox. Each path answers in its own way, well or badly."""
import base64, hashlib, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, content, headers=(), status=200):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def any(self):
        with open("seen", "a") as seen:
            seen.write(f"{self.command} {self.path}\n")
        getattr(self, self.path.strip("/").split("?")[0].split("/")[0] or "echo", self.echo)()

    do_GET = do_POST = do_PUT = do_HEAD = any

    def echo(self):
        body = self.body()
        told = {"method": self.command, "target": self.path, "headers": [[n.lower(), v] for n, v in self.headers.items()],
                "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        self.answer(json.dumps(told).encode())

    def reach(self):
        self.answer(b"reach", [
            ("Set-Cookie", "plain=1"), ("Set-Cookie", "wide=2; Domain=localhost; Path=/; HttpOnly"),
            ("Set-Cookie", "cabana_link=forged; Path=/"), ("Clear-Site-Data", '"*"'), ("Service-Worker-Allowed", "/"),
            ("Strict-Transport-Security", "max-age=9"), ("Alt-Svc", 'h2="evil:1"'), ("NEL", "{}"),
            ("Connection", "x-between"), ("X-Between", "1"), ("X-Own", "kept")])

    def redirect(self):
        to = {"near": "/next?x=1", "self": "http://localhost:8000/next", "far": "https://example.com/", "slashes": "//example.com/"}
        self.answer(b"", [("Location", to[self.path.split("/")[2]])], 302)

    def garbage(self):
        self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        self.close_connection = True

    def short(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        self.close_connection = True

    def length(self):
        status, length, body = {"once": ("200 OK", "5", b"hello"), "twice": ("200 OK", "5, 5", b"hello"),
                                "none": ("204 No Content", "5", b"")}[self.path.split("/")[2]]
        self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + body)
        self.close_connection = True

    def huge(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Huge: " + b"x" * (1 << 20) + b"\r\n\r\n")
        self.close_connection = True

    def switch(self):
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        self.rfile.read(1)
        self.close_connection = True

    def endless(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                self.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        except OSError:
            open("left", "w").close()
        self.close_connection = True

    def crumbs(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
        self.wfile.write(head + b"1\r\nx\r\n" * 20000 + b"0\r\nX-Late: 1\r\n\r\n")

    def hints(self):
        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * int(self.path.split("/")[2]))
        self.answer(b"at last")

    def silent(self):
        open("asked", "w").close()
        self.rfile.read(1)
        open("left", "w").close()
        self.close_connection = True

    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size == 126:
                size = int.from_bytes(self.rfile.read(2), "big")
            mask, data = self.rfile.read(4), self.rfile.read(size)
            data = bytes(b ^ mask[at % 4] for at, b in enumerate(data))
            length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
            self.wfile.write(head[:1] + length + data)
            if head[0] & 15 == 8:
                break
        self.close_connection = True


ThreadingHTTPServer.request_queue_size = 1024
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
