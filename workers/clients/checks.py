"""Checks for client tests: counts successful checks and exits at the first failure."""
import sys

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


def report(name):
    """Prints the number of successful checks, as the last line of output."""
    print(f"{name}={COUNT}")
