# Files over HTTPS, on both families.
import functools, http.server, socket, ssl, sys

files, certificate, key = sys.argv[1:]


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 64

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    # The handshake is the thread's that serves the connection: a client that stops in it stops nobody else.
    def finish_request(self, request, address):
        try:
            with context.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, address)
        except (OSError, ssl.SSLError) as error:
            print(error, flush=True)


class Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {"": "application/octet-stream", ".html": "text/html", ".json": "application/json"}


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
Server(("::", 443), functools.partial(Handler, directory=files)).serve_forever()
