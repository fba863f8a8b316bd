#!/usr/bin/env python3
"""An S3 server on loopback (PyPI moto) behind a proxy that resets, stalls and refuses requests where a seed says.

Usage: s3_store.py FOLDER [SEED]   uploads FOLDER into the bucket "bucket" (NAME.jsonl as gz/NAME.jsonl.gz too), then prints one line
{"port": of the proxy}. Each line "faults" on standard input is answered with what went wrong so far, "put NAME" by
uploading one file again. Ends with standard input.
"""
import gzip
import http.client
import http.server
import json
import logging
import os
import random
import socket
import struct
import sys
import threading
import time

from moto.server import ThreadedMotoServer

STALL_S = 3.0
SHARES = {"reset": 0.15, "cut": 0.12, "busy": 0.08, "stall": 0.05}


class Faults:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(SHARES, 0)
        self.requests = 0

    def draw(self):
        with self.lock:
            self.requests += 1
            at = self.random.random()
            for name, share in SHARES.items():
                if at < share:
                    self.counts[name] += 1
                    return name
                at -= share
            return None


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reset(self):
        """Ends the connection with RST instead of FIN."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def forward(self):
        fault = self.server.faults.draw()
        if fault == "reset":
            return self.reset()
        if fault == "busy":
            body = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
            if self.command == "HEAD":
                body = b""
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        length = int(self.headers.get("Content-Length") or 0)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
        upstream.request(self.command, self.path, self.rfile.read(length) or None, headers)
        answer = upstream.getresponse()
        body = answer.read()
        upstream.close()
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("server", "date", "connection", "transfer-encoding", "content-length"):
                self.send_header(key, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault in ("cut", "stall"):
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                time.sleep(STALL_S)
            return self.reset()
        self.wfile.write(body)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = forward

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments):  # clients that gave up
        pass


def put(port, path, body=b""):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", path, body, {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/"
                                           "aws4_request, SignedHeaders=host, Signature=0"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        sys.exit(f"PUT {path}: {answer.status}")


def main():
    folder = sys.argv[1]
    logging.getLogger("werkzeug").disabled = True
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    upstream = moto.get_host_and_port()[1]
    put(upstream, "/bucket")
    for parent, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(parent, name)
            with open(full, "rb") as file:
                body = file.read()
            put(upstream, "/bucket/" + os.path.relpath(full, folder), body)
            if name.endswith(".jsonl"):
                put(upstream, f"/bucket/gz/{name}.gz", gzip.compress(body))
    server = Server(("127.0.0.1", 0), Proxy)
    server.upstream = upstream
    server.faults = Faults(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["put"]:
            with open(os.path.join(folder, words[1]), "rb") as file:
                put(upstream, "/bucket/" + words[1], file.read())
        print(json.dumps({"requests": server.faults.requests, **server.faults.counts}), flush=True)
    os._exit(0)  # threads of stalled requests do not count


if __name__ == "__main__":
    main()
