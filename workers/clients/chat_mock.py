"""Serves a worker's chat page with answers that are written here, to test what the tiny model cannot produce."""
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARKDOWN = r"""# Attention

Scores are **scaled** by $1/\sqrt{d}$, so that a *softmax* of \(QK^\top\) stays soft. It costs $5 or $10 &amp; `<b>` stays text.

$$
\operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d}}\right)V = \sum_{i=1}^{n} \begin{pmatrix} a_{11} & a_{12} \\ a_{21} & a_{22} \end{pmatrix}
$$

\begin{align}
f(x) &= \int_0^\infty e^{-x^2}\,dx \\
     &= \tfrac{\sqrt{\pi}}{2}
\end{align}

- first
  - nested
    - deeper
- second
  1. one
  2. two

Tasks:

- [x] read the `config`
- [ ] write **kernels**

| Kernel | Registers per lane | Time in µs | Description |
|:-------|:------------------:|-----------:|-------------|
| softmax | 32 | 1,204.5 | one row per wave, with an online maximum and no second pass |
| multiply<br>accumulate | 128 | 9.1 | tiles of 128 by 128, double buffered |

```rust
/// Returns the sum of the first `n` squares.
fn squares(n: u64) -> u64 {
    (1..=n).map(|i| i * i).sum() // an iterator
}
```

```dockerfile
FROM debian:12
RUN apt-get update
```

> Quoted, with H<sub>2</sub>O.

See [the manual](https://example.com/manual), [not this](javascript:document.title='broken'),
[nor this](data:text/html,<script>document.title='broken'</script>), [these](JaVa&Tab;Script:alert) [two](java&#x0A;script:alert(1)),
<javascript:alert(1)>, [][ref], ![an image](https://example.com/pixel.png).

[ref]: javascript:alert(1)

<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>

> > > - 1. nested <details open ontoggle=alert(1)>

$$\href{javascript:document.title='broken'}{x}$$
"""

WORDS = [f"word{i} " for i in range(40)]


class Mock:
    """A server with the worker's page. The last message of a request names the answer; other messages get a numbered one."""

    def __init__(self, worker):
        with urllib.request.urlopen(worker + "/") as page:
            self.document, self.policy = page.read(), page.headers["Content-Security-Policy"]
        self.requests, self.ended, self.chat_template, mock = [], threading.Event(), True, self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                model = {"id": "mock", "max_model_len": 4096, "chat_template": mock.chat_template}
                if self.path == "/":
                    return self.answer("text/html; charset=utf-8", mock.document, [("Content-Security-Policy", mock.policy)])
                body = {"/ready": {"status": "ready"}, "/v1/models": {"data": [model]}}.get(self.path)
                return self.answer("application/json", json.dumps(body).encode()) if body else self.send_error(404)

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                mock.requests.append(request)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                message = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
                try:
                    mock.stream(message, self.send)
                except OSError:  # the page has stopped the answer
                    pass

            def answer(self, kind, body, headers=()):
                self.send_response(200)
                for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def send(self, *deltas, end=None, tokens=None):
                texts = self.path.endswith("/v1/completions")
                events = [{"choices": [{"text": delta["content"]} if texts else {"delta": delta}]} for delta in deltas]
                if end:
                    events += [{"choices": [{"finish_reason": end}]}, {"choices": [], "usage": {"completion_tokens": tokens}}]
                lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"] * bool(end)
                self.wfile.write("".join(lines).encode())
                self.wfile.flush()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stream(self, message, send):
        content = lambda text: {"content": text}
        if message == "markdown":
            pieces = [MARKDOWN[at:at + 7] for at in range(0, len(MARKDOWN), 7)]
            for piece in pieces:
                send(content(piece))
            send(end="stop", tokens=len(pieces))
        elif message == "reasoning":
            send({"reasoning_content": "First, "}, {"reasoning_content": "think of *x*."})
            send(content("It is x."), end="stop", tokens=9)
        elif message == "burst":
            send(*map(content, WORDS), end="length", tokens=len(WORDS))
        elif message == "paced":
            for word in WORDS:
                send(content(word))
                self.ended.wait(0.01)
            send(end="stop", tokens=len(WORDS))
        elif message == "endless":
            send(content("This answer "), content("goes on"))
            while not self.ended.wait(0.05):
                send(content("."))
        elif message == "failure":
            send(content("The beginning"))
        else:
            send(content(f"Answer {len(self.requests)}."), end="stop", tokens=3)

    def stop(self):
        self.ended.set()
        self.server.shutdown()
