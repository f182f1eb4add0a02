"""Checks for client tests: counts successful checks and exits at the first failure."""
import json
import sys
import urllib.request

COUNT = 0
# Timeout of requests in seconds; long, because the worker may run on a software GPU on a busy machine.
TIMEOUT = 1800
# Conversation that the tests of different libraries continue.
MESSAGES = [{"role": "user", "content": "Anna lives"}]


def check(what, condition, seen=""):
    """Counts a successful check, or exits with a message."""
    global COUNT
    if not condition:
        sys.exit(f"{what}: {seen}")
    COUNT += 1


def raised(what, kind, work):
    """Returns the error of type `kind` that a request raises, or exits with a message."""
    try:
        seen = work()
    except kind as error:
        return error
    sys.exit(f"{what}: expected an error, got {seen}")


def refused(what, kind, param, work):
    """Checks that a request raises an error of type `kind` that names the field `param`."""
    error = raised(what, kind, work)
    check(what, error.param == param, error)


def fetch(base, path, body=None):
    """Returns the worker's answer to a GET request, or to a POST request with `body`, without a client library."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def model_name(base):
    """Returns the name of the served model."""
    return fetch(base, "/v1/models")["data"][0]["id"]


def greedy_chat(base, max_tokens=16):
    """Returns the text and the usage of a chat at temperature 0, with which the answers of libraries are compared."""
    answer = fetch(base, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": max_tokens, "temperature": 0})
    return answer["choices"][0]["message"]["content"], answer["usage"]


def without_space(base):
    """Returns fields of a request without white space, which the tiny model repeats until the limit in JSON."""
    tokens = fetch(base, "/tokenize", {"content": " "})["tokens"]
    check("space", len(tokens) == 1, tokens)
    return {"logit_bias": {str(tokens[0]): -100}}


def report(name):
    """Prints the number of successful checks, as the last line of output."""
    print(f"{name}={COUNT}")
