"""MCP servers that nobody here wrote serve tools to agents: over stdio and over Streamable HTTP."""

from __future__ import annotations

import json

import httpx

from checks import Checks
from towline import Cluster, outcomes, text_of

COMPLETED = "TASK_STATE_COMPLETED"


def run(cluster: Cluster, notes: str) -> Checks:
    checks = Checks("mcp-servers")
    check_listing(cluster, checks)
    check_stdio(cluster, checks)
    check_http(cluster, checks)
    check_files(cluster, checks, notes)
    check_trace(cluster, checks)
    check_refusals(cluster, checks)
    return checks


def content(outcome: dict) -> str:
    """The text of a tool result, whichever way the call ended."""
    ended = outcome.get("Returned") or outcome.get("Failed") or {}
    return ended.get("content") or ended.get("message") or ""


def check_listing(cluster: Cluster, checks: Checks) -> None:
    listed = httpx.get(f"{cluster.urls[0]}/api/v1/mcp", timeout=20).text
    for server in ("stdio", "http", "files", "memory", "python"):
        checks.that(f"server {server} is listed", f'"{server}"' in listed, listed)


def check_stdio(cluster: Cluster, checks: Checks) -> None:
    task = cluster.send("calculator", "Please add over stdio.")
    checks.equal("everything over stdio: the task", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))
    checks.that("get-sum adds", "42" in content(found["call_sum"]), found)
    checks.that("echo echoes, side by side with it", "side by side" in content(found["call_echo"]), found)
    checks.that("the model goes on", "over stdio" in text_of(task), task)


def check_http(cluster: Cluster, checks: Checks) -> None:
    task = cluster.send("forecaster", "Please tell the weather over http.", node=1)
    checks.equal("everything over Streamable HTTP: the task", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))
    weather = content(found["call_weather"])
    checks.that("structured content arrives", "temperature" in weather and "humidity" in weather, found)
    checks.that("get-sum adds over HTTP", "42" in content(found["call_sum"]), found)


def check_files(cluster: Cluster, checks: Checks, notes: str) -> None:
    task = cluster.send("librarian", "Please read the note.", node=2)
    checks.equal("server-filesystem over stdio: the task", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))
    checks.that("list_directory lists", "note.md" in content(found["call_list"]), found)
    checks.that("read_text_file reads", notes in content(found["call_read"]), found)
    outside = found["call_outside"]
    refused = outside.get("Returned", {}).get("is_error") and "denied" in content(outside).lower()
    checks.that("a path outside is the tool's own error, shown to the model", bool(refused), outside)


def check_trace(cluster: Cluster, checks: Checks) -> None:
    """The Python SDK has OpenTelemetry built in: its span is part of the trace that began with the A2A request."""
    task = cluster.send("tracer", "Please trace it.", node=1)
    checks.equal("a Python SDK server over HTTP, and server-memory: the task", task["status"]["state"], COMPLETED)
    record = cluster.record(task["id"])
    found = outcomes(record)
    spans = [json.dumps(step["span"]) for step in record["journal"]]
    said = content(found["call_traced"]).strip()
    is_one = len(said) == 32 and all(said in span for span in spans)
    checks.that("one trace id from the request to the server's own span", is_one, (said, spans))
    checks.that("server-memory remembers", "towline" in content(found["call_remember"]), found)


def check_refusals(cluster: Cluster, checks: Checks) -> None:
    task = cluster.send("calculator", "There is no such tool.")
    found = outcomes(cluster.record(task["id"]))
    checks.that("a tool that was not offered is refused", "nope" in content(found["call_nope"]), found)
    checks.equal("and the task goes on", task["status"]["state"], COMPLETED)
    task = cluster.send("calculator", "Call it with wrong arguments.")
    found = outcomes(cluster.record(task["id"]))["call_wrong"]
    is_error = "Failed" in found or found.get("Returned", {}).get("is_error")
    checks.that("arguments that the server refuses are an error", bool(is_error), found)
    checks.equal("and the task goes on after it", task["status"]["state"], COMPLETED)
