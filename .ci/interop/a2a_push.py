"""A webhook that the official Python client (a2a-sdk) sets up, with a message and by its own operations, over each binding."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import Parse

from a2a_client import BINDINGS, Door, generation, message, refusal
from checks import Checks, wait_for

TOLD_SECONDS = 60


class Receiver:
    """Takes every event, and notes path, headers and the event as the SDK's own type reads it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str], StreamResponse]] = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802 - the name is the library's
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                calls.append((self.path, headers, Parse(json.dumps(json.loads(body)), StreamResponse())))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, path: str):
        return [(headers, event) for called, headers, event in self.calls if called == path]

    def told_the_end(self, path: str):
        def ended() -> bool:
            last = self.of(path)[-1:]
            states = [event.status_update.status.state for _, event in last] + [event.task.status.state for _, event in last]
            return TaskState.TASK_STATE_COMPLETED in states

        wait_for(f"{path} to be told the end", TOLD_SECONDS, ended)
        return self.of(path)


async def drive(node: str, binding: str, receiver: Receiver, checks: Checks) -> None:
    door = await Door.open(node, "talker", binding)
    checks.that("the card says that webhooks are told", door.card.capabilities.push_notifications)
    path = f"/sent/{binding.replace('+', '-')}"
    auth = AuthenticationInfo(scheme="Bearer", credentials="the-credentials")
    config = TaskPushNotificationConfig(url=receiver.url + path, token="the-token", authentication=auth)
    configuration = SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)
    request = SendMessageRequest(message=message("Tell me about ropes."), configuration=configuration)
    answers = [answer async for answer in door.plain.send_message(request)]
    task = answers[0].task.id
    calls = await asyncio.to_thread(receiver.told_the_end, path)
    indexes = [generation(event) for _, event in calls]
    checks.equal("each event arrives in order", sorted(set(indexes)), list(range(1, indexes[-1] + 1)))
    checks.equal("with the token", {headers.get("x-a2a-notification-token") for headers, _ in calls}, {"the-token"})
    checks.equal("and the credentials", {headers.get("authorization") for headers, _ in calls}, {"Bearer the-credentials"})
    checks.that("and a trace", all(headers.get("traceparent", "").startswith("00-") for headers, _ in calls))

    later = f"/later/{binding.replace('+', '-')}"
    created = await door.plain.create_task_push_notification_config(
        TaskPushNotificationConfig(task_id=task, id="later", url=receiver.url + later)
    )
    checks.equal("a webhook is set up", (created.id, created.task_id, created.url), ("later", task, receiver.url + later))
    await asyncio.to_thread(receiver.told_the_end, later)
    name = {"task_id": task, "id": "later"}
    found = await door.plain.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**name))
    checks.equal("and read", found.url, receiver.url + later)
    listing = await door.plain.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    checks.equal("and listed", len(listing.configs), 2)
    checks.equal("without credentials", {config.authentication.credentials for config in listing.configs}, {""})
    await door.plain.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**name))
    gone = door.plain.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**name))
    checks.that("and removed", await refusal(gone) is not None)
    inside = TaskPushNotificationConfig(task_id=task, url="http://169.254.169.254/latest/meta-data/")
    refused = await refusal(door.plain.create_task_push_notification_config(inside))
    checks.that("a webhook that leads inside is refused", refused is not None, refused)
    await door.http.aclose()


def run(urls: list[str]) -> Checks:
    checks = Checks("a2a-push")
    receiver = Receiver()
    for node, binding in zip(urls, BINDINGS):
        print(f"  over {binding}")
        asyncio.run(drive(node, binding, receiver, checks))
    receiver.server.shutdown()
    return checks
