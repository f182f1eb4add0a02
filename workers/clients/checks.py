"""Checks for client tests: counts successful checks and exits at the first failure."""
import json
import sys
import urllib.request

COUNT = 0


def check(what, condition, seen=""):
    """Counts a successful check, or exits with a message."""
    global COUNT
    if not condition:
        sys.exit(f"{what}: {seen}")
    COUNT += 1


def refused(what, kind, param, work):
    """Checks that a request raises an error of type `kind` that names the field `param`."""
    try:
        seen = work()
    except kind as error:
        check(what, error.param == param, error)
    else:
        sys.exit(f"{what}: expected an error, got {seen}")


def without_space(base):
    """Returns fields of a request without white space, which the tiny model repeats until the limit in JSON."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/tokenize", json.dumps({"content": " "}).encode(), headers)
    tokens = json.load(urllib.request.urlopen(request))["tokens"]
    check("space", len(tokens) == 1, tokens)
    return {"logit_bias": {str(tokens[0]): -100}}


def report(name):
    """Prints the number of successful checks, as the last line of output."""
    print(f"{name}={COUNT}")
