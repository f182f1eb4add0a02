"""Tests several workers behind a gateway: shared prefixes, a drained worker, a killed one and an aborted one.

Arguments: the gateway's address, then ADDRESS=PID of each worker. The last line of output is the summary.
"""
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from checks import TIMEOUT, check, fetch, model_name

GATEWAY = sys.argv[1]
WORKERS = dict(argument.rsplit("=", 1) for argument in sys.argv[2:])
# Prompts of different conversations, which begin differently.
BEGINNINGS = ["The dog", "A small girl", "One day Tom", "In the park", "Mom and Dad", "The big red ball"]
TEXT = " ran to the tree and sat down. Then the sun was out and it was time to play with a friend. "
# Prompts of all requests; threads append to it.
SENT = []
MODEL = model_name(next(iter(WORKERS)))


def completion(prompt, max_tokens, **more):
    """Returns the answer of the gateway to a completion."""
    SENT.append(prompt)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True} | more
    return fetch(GATEWAY, "/v1/completions", body)


def figure(worker, name):
    """Returns a figure in the metrics of a worker."""
    text = urllib.request.urlopen(f"{worker}/metrics", timeout=TIMEOUT).read().decode()
    return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)[1])


def complete(prompt):
    """Sends a short completion through the gateway. Returns the worker that computed it, of those that are alive."""
    before = {worker: figure(worker, "llm_tokens_written_total") for worker in WORKERS}
    answer = completion(prompt, 2)
    check("completion", answer["usage"]["completion_tokens"] == 2, answer)
    after = [worker for worker in WORKERS if figure(worker, "llm_tokens_written_total") > before[worker]]
    check("one worker computes a request", len(after) == 1, after)
    return after[0]


class Stream(threading.Thread):
    """A streamed completion through the gateway."""

    def __init__(self, number, max_tokens):
        super().__init__()
        self.prompt = f"{number} {BEGINNINGS[number % len(BEGINNINGS)]} went home"
        self.max_tokens = max_tokens
        SENT.append(self.prompt)
        self.begun, self.is_done, self.error, self.broken = threading.Event(), False, None, None
        self.start()

    def run(self):
        body = {"model": MODEL, "prompt": self.prompt, "max_tokens": self.max_tokens, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"{GATEWAY}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        text = b""
        try:
            response = urllib.request.urlopen(request, timeout=TIMEOUT)
            # Reading by lines would take a connection that breaks for the end.
            while part := response.read1():
                text += part
                self.begun.set()
        except (OSError, http.client.HTTPException) as error:
            self.broken = error
        events = text.decode().split("\n\n")
        self.error = next((event for event in events if '"error"' in event), None)
        self.is_done = "data: [DONE]" in events
        self.begun.set()

    def is_complete(self):
        return self.is_done and not self.error and not self.broken


def start_streams(count, first, max_tokens=40):
    """Starts streams and waits for their first tokens."""
    streams = [Stream(first + number, max_tokens) for number in range(count)]
    for stream in streams:
        stream.begun.wait()
        check("stream begins", not stream.broken, stream.broken)
    return streams


def stop(worker, number):
    """Sends a signal to a worker, removes it from the list, and returns its process id."""
    pid = int(WORKERS.pop(worker))
    os.kill(pid, number)
    return pid


def wait_until_not_ready(worker):
    while True:
        try:
            urllib.request.urlopen(f"{worker}/ready", timeout=TIMEOUT).close()
        except urllib.error.HTTPError as error:
            check("not ready", error.code == 503, error.code)
            return
        time.sleep(0.01)


def wait_until_closed(worker):
    host, port = worker.removeprefix("http://").split(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=TIMEOUT).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.1)


def test():
    # Conversations that begin at once are spread; later turns go to the worker that has computed the beginning.
    prompts = [beginning + TEXT * 2 for beginning in BEGINNINGS]
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: completion(f"{prompt} Turn 1.", 2), prompts))
    owners = {}
    for prompt in prompts:
        cached = {worker: figure(worker, "llm_tokens_cached_total") for worker in WORKERS}
        workers = [complete(f"{prompt} Turn {turn}.") for turn in (2, 3)]
        check("turns go to one worker", len(set(workers)) == 1, (prompt, workers))
        owners[prompt] = workers[0]
        cached = figure(workers[0], "llm_tokens_cached_total") - cached[workers[0]]
        check("the beginning is cached", cached >= 2 * 32, (prompt, cached))
    check("conversations are spread", len(set(owners.values())) > 1, owners)

    # Errors of a client disable no worker.
    for number in range(20):
        try:
            completion(f"{number}", 1, guided_regex="(")
            check("invalid request", False)
        except urllib.error.HTTPError as error:
            check("invalid request", error.code == 400, error.code)
    for prompt, owner in owners.items():
        worker = complete(prompt)
        check("no worker is disabled", worker == owner, (prompt, owner, worker))

    # A drained worker completes its streams, accepts requests until the gateway notices, and loses nothing.
    streams = start_streams(2 * len(WORKERS), 0)
    drained = next(iter(owners.values()))
    stop(drained, signal.SIGTERM)
    while any(stream.is_alive() for stream in streams):
        prompt = list(owners)[len(SENT) % len(owners)]
        answer = completion(prompt, 1)
        check("request during a drain", answer["usage"]["completion_tokens"] == 1, answer)
    for stream in streams:
        stream.join()
        check("streams survive a drain", stream.is_complete(), (stream.error, stream.broken))
    wait_until_closed(drained)
    moved = 0
    for prompt, owner in owners.items():
        worker = complete(prompt)
        check("conversations move to workers that run", worker in WORKERS, worker)
        moved += owner == drained
    check("conversations moved", moved > 0)

    # A killed worker loses its own streams only, and no client takes one for complete.
    streams = start_streams(3 * len(WORKERS), 100)
    killed = max(WORKERS, key=lambda worker: figure(worker, "llm_requests_running"))
    running = figure(killed, "llm_requests_running")
    check("the killed worker has streams", running > 0)
    stop(killed, signal.SIGKILL)
    for prompt in owners:
        answer = completion(prompt, 1)
        check("request after a kill", answer["usage"]["completion_tokens"] == 1, answer)
    for stream in streams:
        stream.join()
    failed = [stream for stream in streams if not stream.is_complete()]
    check("only streams of the killed worker fail", len(failed) <= running, (len(failed), running))
    check("failures are visible", all(stream.broken or stream.error for stream in failed))
    print(f"killed: {len(failed)} of {len(streams)} streams failed, such as {failed[0].error or failed[0].broken!r}")

    # A second SIGTERM aborts running streams, each with an error event.
    streams = start_streams(3, 200, 300)
    aborted = next(iter(WORKERS))
    pid = stop(aborted, signal.SIGTERM)
    # Two signals at once would be one.
    wait_until_not_ready(aborted)
    os.kill(pid, signal.SIGTERM)
    for stream in streams:
        stream.join()
        check("aborted streams end with an error", stream.error and "worker_ended" in stream.error, stream.error)
    return moved


COUNT = len(WORKERS)
MOVED = test()
print(f"fleet: ok workers={COUNT} requests={len(SENT)} moved={MOVED} lost=0")
