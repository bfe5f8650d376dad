"""Agents of others: the official Python and JavaScript servers are delegated to, and take part in the mesh as agents."""

from __future__ import annotations

from checks import Checks
from towline import Cluster, outcomes, text_of

COMPLETED = "TASK_STATE_COMPLETED"


def run(cluster: Cluster, urls: list[str]) -> Checks:
    checks = Checks("a2a-peers")
    task = cluster.send("manager", "Please ask abroad.", node=1)
    checks.equal("a task that asks agents on foreign servers", task["status"]["state"], COMPLETED)
    found = outcomes(cluster.record(task["id"]))
    for call, language in (("call_python", "Python"), ("call_js", "JavaScript")):
        said = found.get(call, {}).get("Returned", {}).get("content", "")
        checks.that(f"the {language} server was told, and answered", f"{language} was told: Ahoy" in said, found.get(call))
    for language, url in zip(("Python", "JavaScript"), urls):
        name = f"joined-{language.lower()}"
        cluster.towline("agent", "add", name, "--url", url, "--server", cluster.urls[0])
        task = cluster.send(name, "Ahoy", node=2)
        checks.equal(f"a task of the {language} server that takes part", task["status"]["state"], COMPLETED)
        checks.that("its artifacts are those of the task", f"{language} was told: Ahoy" in text_of(task), task)
    return checks
