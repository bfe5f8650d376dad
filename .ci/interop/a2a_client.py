"""The official Python client (a2a-sdk) drives a cluster over each binding: card, send, stream, get, list, cancel, subscribe, errors."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from checks import Checks

ROPES = "A rope is a group of yarns"
TIMEOUT = httpx.Timeout(60)
GENERATION = "dev.towline/generation"
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


def message(text: str, **fields) -> Message:
    return Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], **fields)


def text_of(artifacts) -> str:
    return "".join(part.text for artifact in artifacts for part in artifact.parts)


def generation(event) -> int | None:
    """The index of an event, out of its metadata."""
    inner = getattr(event, event.WhichOneof("payload"))
    value = MessageToDict(inner.metadata).get(GENERATION)
    return None if value is None else int(value)


def assemble(events) -> str:
    """Puts the artifacts of a stream together as the protocol says: `append` extends, anything else replaces."""
    artifacts: dict[str, str] = {}
    for event in events:
        kind = event.WhichOneof("payload")
        if kind == "task":
            for artifact in event.task.artifacts:
                artifacts[artifact.artifact_id] = text_of([artifact])
        if kind == "artifact_update":
            update = event.artifact_update
            chunk = text_of([update.artifact])
            known = artifacts.get(update.artifact.artifact_id, "") if update.append else ""
            artifacts[update.artifact.artifact_id] = known + chunk
    return "".join(artifacts.values())


class Door:
    """One agent, as one node offers it."""

    def __init__(self, card, streaming, plain, http) -> None:
        self.card, self.streaming, self.plain, self.http = card, streaming, plain, http

    @classmethod
    async def open(cls, node: str, agent: str, binding: str) -> "Door":
        http = httpx.AsyncClient(timeout=TIMEOUT)
        resolver = A2ACardResolver(http, node)
        card = await resolver.get_agent_card(relative_card_path=f"agents/{agent}/.well-known/agent-card.json")
        config = {
            "httpx_client": http,
            "grpc_channel_factory": grpc.aio.insecure_channel,
            "supported_protocol_bindings": [binding],
        }
        clients = [ClientFactory(ClientConfig(streaming=yes, **config)).create(card) for yes in (True, False)]
        return cls(card, *clients, http)

    async def stream(self, text: str, **fields):
        request = SendMessageRequest(message=message(text, **fields))
        return [event async for event in self.streaming.send_message(request)]

    async def send(self, outgoing: Message, at_once: bool = False):
        configuration = SendMessageConfiguration(return_immediately=at_once)
        request = SendMessageRequest(message=outgoing, configuration=configuration)
        answers = [answer async for answer in self.plain.send_message(request)]
        return answers[0].task

    async def get(self, task_id: str):
        return await self.plain.get_task(GetTaskRequest(id=task_id))

    async def cancel(self, task_id: str):
        return await self.plain.cancel_task(CancelTaskRequest(id=task_id))


async def refusal(awaitable):
    """The error that a call ends with."""
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001 - the kind of error is what is checked
        return error
    return None


async def subscribe(door: Door, task_id: str):
    return [event async for event in door.streaming.subscribe(SubscribeToTaskRequest(id=task_id))]


async def drive(nodes: list[str], binding: str, checks: Checks) -> None:
    doors = [await Door.open(node, "talker", binding) for node in nodes]
    first, second, third = doors
    await check_cards(nodes, first, checks)
    task = await check_send(first, second, checks)
    await check_stream(second, third, checks)
    await check_list(third, task, checks)
    await check_cancel(first, second, checks)
    await check_subscribe(second, third, checks)
    await check_question(first, third, checks)
    await check_errors(first, task, checks)
    for door in doors:
        await door.http.aclose()


async def check_cards(nodes, door, checks) -> None:
    checks.equal("the card names the agent", door.card.name, "talker")
    interfaces = [(face.protocol_binding, face.protocol_version) for face in door.card.supported_interfaces]
    checks.equal("the card offers 1.0 on all bindings", interfaces, [(name, "1.0") for name in BINDINGS])
    checks.that("the card says that it streams", door.card.capabilities.streaming)
    checks.that("the card has a skill", len(door.card.skills) > 0)
    async with httpx.AsyncClient(timeout=TIMEOUT) as http:
        mesh = await A2ACardResolver(http, nodes[0]).get_agent_card()
    checks.that("the mesh has a card at the usual place", bool(mesh.name) and len(mesh.supported_interfaces) > 0)


async def check_send(first, second, checks):
    outgoing = message("Tell me about ropes.")
    task = await first.send(outgoing)
    checks.equal("a blocking send ends completed", task.status.state, TaskState.TASK_STATE_COMPLETED)
    checks.that("its artifact has the model's text", text_of(task.artifacts).startswith(ROPES), text_of(task.artifacts))
    again = await second.send(outgoing)
    checks.equal("the same message id at another node gives the same task", again.id, task.id)
    seen = await second.get(task.id)
    checks.equal("another node shows the same task", text_of(seen.artifacts), text_of(task.artifacts))
    at_once = await first.send(message("Please count slowly."), at_once=True)
    working = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
    checks.that("returnImmediately answers before the end", at_once.status.state in working, at_once.status.state)
    await first.cancel(at_once.id)
    return task


async def check_stream(second, third, checks) -> None:
    events = await second.stream("Tell me about ropes.")
    kinds = [event.WhichOneof("payload") for event in events]
    checks.equal("a stream begins with the task", kinds[0], "task")
    checks.that("it shows chunks", kinds.count("artifact_update") >= 3, kinds)
    last = events[-1]
    ended = last.HasField("status_update") and last.status_update.status.state == TaskState.TASK_STATE_COMPLETED
    checks.that("it ends with completed", ended, last)
    indexes = [generation(event) for event in events]
    checks.equal("the events are numbered from 1 without a gap", indexes, list(range(1, len(events) + 1)))
    stored = await third.get(events[0].task.id)
    checks.equal("the chunks are exactly the text of GetTask", assemble(events), text_of(stored.artifacts))


async def check_list(door, task, checks) -> None:
    request = ListTasksRequest(context_id=task.context_id, include_artifacts=True)
    page = await door.plain.list_tasks(request)
    checks.equal("listing a context gives its task", [found.id for found in page.tasks], [task.id])
    checks.that("with its artifacts", bool(page.tasks) and text_of(page.tasks[0].artifacts).startswith(ROPES))
    pages, token = [], ""
    for _ in range(20):
        page = await door.plain.list_tasks(ListTasksRequest(page_size=2, page_token=token))
        pages.extend(found.id for found in page.tasks)
        token = page.next_page_token
        if not token:
            break
    checks.equal("paging shows every task once", (len(pages), len(set(pages))), (page.total_size, page.total_size))


async def check_cancel(first, second, checks) -> None:
    task = await first.send(message("Please count slowly."), at_once=True)
    canceled = await second.cancel(task.id)
    checks.equal("a cancel through another node", canceled.status.state, TaskState.TASK_STATE_CANCELED)
    again = await first.cancel(task.id)
    checks.equal("a repeated cancel is the same", again.status.state, TaskState.TASK_STATE_CANCELED)
    await asyncio.sleep(0.5)
    seen = await first.get(task.id)
    checks.equal("nothing overwrites it", seen.status.state, TaskState.TASK_STATE_CANCELED)


async def check_subscribe(second, third, checks) -> None:
    task = await second.send(message("Please count slowly."), at_once=True)
    events = await subscribe(third, task.id)
    checks.equal("a subscription begins with the task", events[0].WhichOneof("payload"), "task")
    indexes = [generation(event) for event in events]
    expected = list(range(indexes[0], indexes[0] + len(events)))
    checks.equal("and goes on without a gap", indexes, expected)
    stored = await second.get(task.id)
    checks.equal("to the end", stored.status.state, TaskState.TASK_STATE_COMPLETED)
    checks.equal("with exactly the text of GetTask", assemble(events), text_of(stored.artifacts))


async def check_question(first, third, checks) -> None:
    task = await first.send(message("Please book a table."))
    checks.equal("a question to a person", task.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
    asked = "".join(part.text for part in task.status.message.parts)
    checks.that("the task says what is asked", "how many" in asked, asked)
    answer = message("It is for four.", task_id=task.id, context_id=task.context_id)
    done = await third.send(answer)
    checks.equal("the answer goes on with the same task", done.id, task.id)
    checks.equal("to its end", done.status.state, TaskState.TASK_STATE_COMPLETED)
    checks.that("knowing the answer", "four is booked" in text_of(done.artifacts), text_of(done.artifacts))


async def check_errors(door, task, checks) -> None:
    unknown = await refusal(door.get(str(uuid.uuid4())))
    checks.that("an unknown task is not found", isinstance(unknown, TaskNotFoundError), repr(unknown))
    ended = await refusal(door.cancel(task.id))
    checks.that("a completed task cannot be canceled", isinstance(ended, TaskNotCancelableError), repr(ended))
    late = await refusal(subscribe(door, task.id))
    checks.that("an ended task has no stream", isinstance(late, UnsupportedOperationError), repr(late))
    more = await refusal(door.send(message("More.", task_id=task.id, context_id=task.context_id)))
    checks.that("an ended task takes no message", isinstance(more, UnsupportedOperationError), repr(more))
    empty = await refusal(door.send(Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER)))
    checks.that("a message without parts is refused", empty is not None, "it was taken")


def run(nodes: list[str]) -> Checks:
    checks = Checks("a2a-sdk-python")
    for binding in BINDINGS:
        print(f"  over {binding}")
        asyncio.run(drive(nodes, binding, checks))
    return checks
