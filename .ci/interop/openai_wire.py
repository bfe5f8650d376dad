"""A real provider on the wire: aimock plays the OpenAI API, and its journal says what Towline sent."""

from __future__ import annotations

import httpx

from checks import Checks
from towline import Cluster, model_steps, outcomes, text_of

COMPLETED = "TASK_STATE_COMPLETED"


def run(cluster: Cluster, aimock: str, key: str) -> Checks:
    checks = Checks("openai-wire")
    check_tool_round(cluster, aimock, key, checks)
    check_retry(cluster, aimock, key, checks)
    check_delegation(cluster, checks)
    return checks


def requests_about(aimock: str, key: str, text: str) -> list[dict]:
    """The requests in aimock's journal whose user message holds a text, oldest first."""
    journal = httpx.get(f"{aimock}/__aimock/journal", headers={"Authorization": f"Bearer {key}"}, timeout=10).json()
    entries = journal if isinstance(journal, list) else journal["entries"]
    chats = [entry for entry in entries if entry["path"].endswith("/chat/completions")]
    about = [entry for entry in chats if text in str(entry["body"])]
    return sorted(about, key=lambda entry: entry["timestamp"])


def check_tool_round(cluster: Cluster, aimock: str, key: str, checks: Checks) -> None:
    text = "Please add over stdio, for the journal."
    task = cluster.send("calculator", text)
    checks.equal("a run with tool calls", task["status"]["state"], COMPLETED)
    asked = requests_about(aimock, key, text)
    checks.equal("takes two requests", len(asked), 2)
    if len(asked) != 2:
        return
    first, second = (entry["body"] for entry in asked)
    checks.that("they are streamed", first.get("stream") is True and second.get("stream") is True, first)
    sent = {name.lower(): value for name, value in asked[0]["headers"].items()}
    checks.that("they carry the trace", "traceparent" in sent, sorted(sent))
    names = [tool["function"]["name"] for tool in first.get("tools", [])]
    checks.that("tool names have no dot and name their server", "stdio__get-sum" in names, names)
    checks.that("every tool has a schema", all("parameters" in tool["function"] for tool in first["tools"]))
    roles = [entry["role"] for entry in second["messages"]]
    checks.equal("the results go back after the calls", roles[-3:], ["assistant", "tool", "tool"])
    results = " ".join(str(entry["content"]) for entry in second["messages"] if entry["role"] == "tool")
    checks.that("fenced as data", "<untrusted" in results and "42" in results, results)
    usage = [answer["usage"] for answer in model_steps(cluster.record(task["id"]))]
    checks.that("usage is in the record", all(used["input"] > 0 and used["output"] > 0 for used in usage), usage)


def check_retry(cluster: Cluster, aimock: str, key: str, checks: Checks) -> None:
    text = "Served in the crowded hour?"
    task = cluster.send("talker", text, node=1)
    checks.equal("a 429 is tried again", task["status"]["state"], COMPLETED)
    checks.that("until there is an answer", "second attempt" in text_of(task), task)
    statuses = [entry["response"]["status"] for entry in requests_about(aimock, key, text)]
    checks.equal("on the wire", statuses, [429, 200])


def check_delegation(cluster: Cluster, checks: Checks) -> None:
    task = cluster.send("manager", "Please delegate it.", node=2)
    checks.equal("a delegation that the model asked for", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))["call_delegate"]
    said = found.get("Returned", {}).get("content", "")
    checks.that("brings the other agent's answer", "A rope is a group of yarns" in said, found)
