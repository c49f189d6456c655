"""Hooks for schemathesis: requests go to a Unix socket, and none of them waits for long.

Named by SCHEMATHESIS_HOOKS; TINE_API_SOCK names the socket. The URL's host means nothing then.
"""

import os
import socket

import schemathesis
from urllib3.connection import HTTPConnection


def to_the_socket(connection):
    """Connects to the socket, whatever host and port were asked for."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # urllib3 sets the time limit of a request later, when it reads.
    stream.settimeout(20)
    stream.connect(os.environ["TINE_API_SOCK"])
    return stream


HTTPConnection._new_conn = to_the_socket


@schemathesis.hook
def before_call(context, case, kwargs):
    """Keeps a request from waiting for a state that never comes, or from ending the machine."""
    if case.query and "wait" in case.query:
        case.query["timeout"] = "50ms"
    if isinstance(case.body, dict) and case.body.get("stop") is True:
        case.body["stop"] = False


@schemathesis.serializer("application/x-tar", "application/octet-stream")
def bytes_of(context, value):
    """Archives and files are bytes, whatever was made up for them."""
    return value if isinstance(value, bytes) else str(value).encode()
