"""Agents of others as peers: the official Python and JavaScript servers are delegated to, and answer."""

from __future__ import annotations

from checks import Checks
from towline import Cluster, outcomes

COMPLETED = "TASK_STATE_COMPLETED"


def run(cluster: Cluster) -> Checks:
    checks = Checks("a2a-peers")
    task = cluster.send("manager", "Please ask abroad.", node=1)
    checks.equal("a task that asks agents on foreign servers", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))
    for call, language in (("call_python", "Python"), ("call_js", "JavaScript")):
        said = found.get(call, {}).get("Returned", {}).get("content", "")
        checks.that(f"the {language} server was told, and answered", f"{language} was told: Ahoy" in said, found.get(call))
    return checks
