"""A webhook that denies everything: python denying_hook.py ADDRESS PORT CERTIFICATE KEY."""

from __future__ import annotations

import http.server
import json
import ssl
import sys


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        review["response"] = {
            "uid": review.pop("request")["uid"],
            "allowed": False,
            "status": {"message": "denied by the test's webhook"},
        }
        answer = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


address, port, certificate, key = sys.argv[1:]
server = http.server.HTTPServer((address, int(port)), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
