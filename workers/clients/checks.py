"""Counts the answers that are as they should be, and ends the program at the first that is not."""
import sys

COUNT = 0


def check(what, condition, seen=""):
    """One answer that is as it should be."""
    global COUNT
    if not condition:
        sys.exit(f"{what}: {seen}")
    COUNT += 1


def refused(what, kind, param, work):
    """A request that must be refused with this error of the package, naming the field."""
    try:
        seen = work()
    except kind as error:
        check(what, error.param == param, error)
    else:
        sys.exit(f"{what} was answered: {seen}")


def report(name):
    """The last line of a client."""
    print(f"{name}={COUNT}")
