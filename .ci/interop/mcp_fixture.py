"""A server with what the public conformance suites ask of a test server, behind the gateway of a node.

`mcp_fixture.py stdio` speaks 2025-11-25 on standard input and output, `mcp_fixture.py http PORT` 2026-07-28 at /mcp. Standard library
only: what is tested is the door in front of it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
PREFIX = "io.modelcontextprotocol/"
STATELESS = "2026-07-28"
SECRET = b"a fixture has no secrets"
STEP_SECONDS = 0.05

SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class Refused(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({"data": data} if data is not None else {})


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def content(*blocks: dict) -> dict:
    return {"content": list(blocks)}


def form(properties: dict, *required: str) -> dict:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


# --- what a tool may do meanwhile ------------------------------------------------------------------------------------


class Caller:
    """The one who called: is told things, and can be asked, where the transport lets it."""

    def __init__(self, meta: dict, say, ask=None) -> None:
        self.meta, self.say, self.ask = meta, say, ask

    def progress(self, progress: int, total: int) -> None:
        if "progressToken" in self.meta:
            params = {"progressToken": self.meta["progressToken"], "progress": progress, "total": total}
            self.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def log(self, said: str) -> None:
        params = {"level": "info", "logger": "fixture", "data": said}
        self.say({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    def elicited(self, message: str, schema: dict) -> dict:
        if self.ask is None:
            raise Refused(-32603, "nobody can be asked")
        answer = self.ask("elicitation/create", {"message": message, "requestedSchema": schema})
        return answer.get("result") or {"action": "none", "error": answer.get("error")}


# --- both revisions --------------------------------------------------------------------------------------------------


def with_logging(_: dict, caller: Caller) -> dict:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        caller.log(said)
        time.sleep(STEP_SECONDS)
    return content(text("logged"))


def with_progress(_: dict, caller: Caller) -> dict:
    for at in (0, 50, 100):
        caller.progress(at, 100)
        time.sleep(STEP_SECONDS)
    return content(text("progressed"))


def elicitation(arguments: dict, caller: Caller) -> dict:
    schema = form({"username": {"type": "string"}, "email": {"type": "string"}}, "username", "email")
    said = caller.elicited(arguments.get("message", ""), schema)
    return content(text(f"User response: {json.dumps(said)}"))


def elicitation_defaults(_: dict, caller: Caller) -> dict:
    schema = form({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    })
    said = caller.elicited("Please review", schema)
    return content(text(f"Elicitation completed: action={said.get('action')}, content={json.dumps(said.get('content'))}"))


def elicitation_enums(_: dict, caller: Caller) -> dict:
    def titled(key: str, word: str) -> list:
        return [{"const": f"value{n}", "title": f"{name} {word}"} for n, name in enumerate(("First", "Second", "Third"), 1)]

    options = ["option1", "option2", "option3"]
    schema = form({
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled("oneOf", "Option")},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("anyOf", "Choice")}},
    })
    said = caller.elicited("Please choose", schema)
    return content(text(f"Elicitation completed: action={said.get('action')}, content={json.dumps(said.get('content'))}"))


def embedded(uri: str, media_type: str, said: str) -> dict:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": said}}


IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
NONE = form({})
# The byte-exact one: a number, a text and a block as no two JSON libraries write them.
ODD = '{"content":[{"type":"hologram","rays":1.50,"of":1e2,"name":"\\u0041"},{"type":"text","text":"odd","extra":{"b":1,"a":2}}],"more":[1.0]}'

# name: (description, schema, what it does)
TOOLS = {
    "test_simple_text": (NONE, lambda *_: content(text("This is a simple text response for testing."))),
    "test_image_content": (NONE, lambda *_: content(IMAGE)),
    "test_audio_content": (NONE, lambda *_: content({"type": "audio", "data": WAV, "mimeType": "audio/wav"})),
    "test_embedded_resource": (
        NONE,
        lambda *_: content(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
    ),
    "test_multiple_content_types": (
        NONE,
        lambda *_: content(
            text("Multiple content types test:"),
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ),
    ),
    "test_tool_with_logging": (NONE, with_logging),
    "test_tool_with_progress": (NONE, with_progress),
    "test_error_handling": (
        NONE,
        lambda *_: content(text("This tool intentionally returns an error for testing")) | {"isError": True},
    ),
    "test_elicitation": (form({"message": {"type": "string"}}, "message"), elicitation),
    "test_elicitation_sep1034_defaults": (NONE, elicitation_defaults),
    "test_elicitation_sep1330_enums": (NONE, elicitation_enums),
    "test_reconnection": (NONE, lambda *_: content(text("Reconnection test completed"))),
    "json_schema_2020_12_tool": (SCHEMA_2020_12, lambda *_: content(text("ok"))),
    "odd": (NONE, lambda *_: ODD),
}

RESOURCES = {
    "test://static-text": ("text/plain", {"text": "This is the content of the static text resource."}),
    "test://static-binary": ("image/png", {"blob": PNG}),
    "test://watched-resource": ("text/plain", {"text": "Watched."}),
}
TEMPLATE = "test://template/{id}/data"


def read(params: dict) -> dict:
    uri = params.get("uri", "")
    of_template = re.fullmatch(r"test://template/([^/]+)/data", uri)
    if of_template:
        said = {"id": of_template[1], "templateTest": True, "data": f"Data for ID: {of_template[1]}"}
        media_type, body = "application/json", {"text": json.dumps(said)}
    elif uri in RESOURCES:
        media_type, body = RESOURCES[uri]
    else:
        raise Refused(-32002, "no such resource", {"uri": uri})
    return {"contents": [{"uri": uri, "mimeType": media_type} | body]}


PROMPTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
}


def prompt(params: dict) -> dict:
    name, given = params.get("name"), params.get("arguments") or {}

    def user(block: dict) -> dict:
        return {"role": "user", "content": block}

    match name:
        case "test_simple_prompt":
            messages = [user(text("This is a simple prompt for testing."))]
        case "test_prompt_with_arguments":
            said = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
            messages = [user(text(said))]
        case "test_prompt_with_embedded_resource":
            block = embedded(given.get("resourceUri", ""), "text/plain", "Embedded resource content for testing.")
            messages = [user(block), user(text("Please process the embedded resource above."))]
        case "test_prompt_with_image":
            messages = [user(IMAGE), user(text("Please analyze the image above."))]
        case _:
            raise Refused(-32602, f"no prompt {name}")
    return {"messages": messages}


def listed_tools(tools: dict) -> list:
    return [{"name": name, "description": f"Fixture {name}.", "inputSchema": tool[0]} for name, tool in tools.items()]


# --- 2025-11-25 on standard input and output -------------------------------------------------------------------------


def stdio() -> None:
    out, waiting = threading.Lock(), {}

    def say(message: dict | str) -> None:
        with out:
            sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
            sys.stdout.flush()

    def ask(method: str, params: dict) -> dict:
        key = f"q-{len(waiting)}-{time.monotonic_ns()}"
        done = threading.Event()
        waiting[key] = [done, {}]
        say({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
        done.wait(60)
        return waiting.pop(key)[1]

    def answer(request: dict) -> None:
        try:
            result = carried_out(request, Caller((request.get("params") or {}).get("_meta") or {}, say, ask))
        except Refused as refused:
            say({"jsonrpc": "2.0", "id": request["id"], "error": refused.error})
            return
        whole = result if isinstance(result, str) else json.dumps(result)
        say(f'{{"jsonrpc":"2.0","id":{json.dumps(request["id"])},"result":{whole}}}')

    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            asked = waiting.get(message.get("id"))
            if asked:
                asked[1] = message
                asked[0].set()
        elif "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()


def carried_out(request: dict, caller: Caller) -> dict | str:
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            capabilities = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}, "logging": {}, "completions": {}}
            named = {"name": "fixture", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": named}
        case "tools/list":
            return {"tools": listed_tools(TOOLS)}
        case "tools/call" if params.get("name") in TOOLS:
            return TOOLS[params["name"]][1](params.get("arguments") or {}, caller)
        case "resources/list":
            return {"resources": [{"uri": uri, "name": uri, "mimeType": kind} for uri, (kind, _) in RESOURCES.items()]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": TEMPLATE, "name": "data", "mimeType": "application/json"}]}
        case "resources/read":
            return read(params)
        case "prompts/list":
            prompts = [
                {"name": name, "description": name, "arguments": [{"name": one, "required": True} for one in arguments]}
                for name, arguments in PROMPTS.items()
            ]
            return {"prompts": prompts}
        case "prompts/get":
            return prompt(params)
        case "completion/complete":
            return {"completion": {"values": ["paris", "park"], "total": 2, "hasMore": False}}
        case "ping" | "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel":
            return {}
        case other:
            raise Refused(-32601, f"no method {other}")


# --- 2026-07-28 over HTTP: results that ask --------------------------------------------------------------------------


def sealed(state: str) -> str:
    return f"{state}.{hmac.new(SECRET, state.encode(), hashlib.sha256).hexdigest()}"


def opened(state: str | None) -> str | None:
    """What was sealed; none where nothing came."""
    if state is None:
        return None
    inner = state.rpartition(".")[0]
    if not hmac.compare_digest(sealed(inner), state):
        raise Refused(-32602, "requestState is not what was given out")
    return inner


def elicit(message: str, properties: dict, *required: str) -> dict:
    params = {"mode": "form", "message": message, "requestedSchema": form(properties, *required)}
    return {"method": "elicitation/create", "params": params}


def sample(said: str) -> dict:
    params = {"messages": [{"role": "user", "content": text(said)}], "maxTokens": 100}
    return {"method": "sampling/createMessage", "params": params}


ROOTS = {"method": "roots/list", "params": {}}
NAME = elicit("What is your name?", {"name": {"type": "string"}}, "name")


def asks(requests: dict, state: str | None = None) -> dict:
    return {"resultType": "input_required", "inputRequests": requests} | ({"requestState": sealed(state)} if state else {})


def complete(*blocks: dict) -> dict:
    return {"resultType": "complete", "content": list(blocks)}


def answered(params: dict, *keys: str) -> list | None:
    given = params.get("inputResponses") or {}
    found = [given.get(key) for key in keys]
    return found if all(isinstance(one, dict) for one in found) else None


def can(params: dict, capability: str) -> bool:
    return capability in ((params.get("_meta") or {}).get(PREFIX + "clientCapabilities") or {})


def modern_call(params: dict, caller: Caller) -> dict:
    state = opened(params.get("requestState"))
    match params.get("name"):
        case "test_input_required_result_elicitation":
            given = answered(params, "user_name")
            return complete(text(f"Hello, {given[0].get('content', {}).get('name')}!")) if given else asks({"user_name": NAME})
        case "test_input_required_result_sampling":
            given = answered(params, "capital_question")
            asked = {"capital_question": sample("What is the capital of France?")}
            return complete(text(json.dumps(given[0]))) if given else asks(asked)
        case "test_input_required_result_list_roots":
            given = answered(params, "client_roots")
            return complete(text(json.dumps(given[0]))) if given else asks({"client_roots": ROOTS})
        case "test_input_required_result_request_state" | "test_input_required_result_tampered_state":
            given = answered(params, "confirm")
            if given and state == "confirmed":
                return complete(text("state-ok"))
            return asks({"confirm": elicit("Please confirm", {"ok": {"type": "boolean"}}, "ok")}, "confirmed")
        case "test_input_required_result_multiple_inputs":
            given = answered(params, "user_name", "greeting", "client_roots")
            asked = {"user_name": NAME, "greeting": sample("Generate a greeting"), "client_roots": ROOTS}
            return complete(text(json.dumps(given))) if given and state else asks(asked, "several")
        case "test_input_required_result_multi_round":
            if state == "round-2" and answered(params, "step2"):
                return complete(text("both steps are done"))
            if state == "round-1" and answered(params, "step1"):
                asked = elicit("Step 2: What is your favorite color?", {"color": {"type": "string"}}, "color")
                return asks({"step2": asked}, "round-2")
            return asks({"step1": elicit("Step 1: What is your name?", {"name": {"type": "string"}}, "name")}, "round-1")
        case "test_input_required_result_capabilities":
            offered = {"elicitation": ("who", NAME), "sampling": ("what", sample("Say hello")), "roots": ("where", ROOTS)}
            return asks(dict(offered[one] for one in offered if can(params, one)))
        case "test_missing_capability" if not can(params, "sampling"):
            raise Refused(-32021, "sampling is needed", {"requiredCapabilities": {"sampling": {}}})
        case "test_streaming_elicitation":
            caller.progress(1, 2)
            time.sleep(STEP_SECONDS)
            return asks({"user_name": NAME})
        case "test_logging_tool":
            if PREFIX + "logLevel" in (params.get("_meta") or {}):
                caller.log("called")
            return complete(text("logged"))
        case name if name in MODERN_TOOLS:
            return complete(text("ok"))
        case name:
            raise Refused(-32602, f"no tool {name}")


HEADED = form({"region": {"type": "string", "x-mcp-header": "Region"}, "note": {"type": "string"}}, "region")
ASKING = ["elicitation", "sampling", "list_roots", "request_state", "multiple_inputs", "multi_round", "tampered_state", "capabilities"]
MODERN_TOOLS = {f"test_input_required_result_{name}": (NONE,) for name in ASKING} | {
    "test_missing_capability": (NONE,),
    "test_streaming_elicitation": (NONE,),
    "test_logging_tool": (NONE,),
    "test_custom_header": (HEADED,),
}


def modern(request: dict, caller: Caller) -> dict:
    params = request.get("params") or {}
    kept = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    match request["method"]:
        case "server/discover":
            capabilities = {"tools": {}, "prompts": {}}
            return kept | {"supportedVersions": [STATELESS], "capabilities": capabilities}
        case "tools/list":
            return kept | {"tools": listed_tools(MODERN_TOOLS)}
        case "prompts/list":
            return kept | {"prompts": [{"name": "test_input_required_result_prompt", "description": "Asks."}]}
        case "tools/call":
            return modern_call(params, caller)
        case "prompts/get" if params.get("name") == "test_input_required_result_prompt":
            given = answered(params, "user_context")
            if not given:
                asked = elicit("What context should the prompt use?", {"context": {"type": "string"}}, "context")
                return asks({"user_context": asked})
            return {"resultType": "complete", "messages": [{"role": "user", "content": text(json.dumps(given[0]))}]}
        case other:
            raise Refused(-32601, f"no method {other}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802 - the name is that of the library
        request = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if "id" not in request:
            return self.whole(202, "")
        said: list[dict] = []
        try:
            result = modern(request, Caller((request.get("params") or {}).get("_meta") or {}, said.append))
            answer, status = {"jsonrpc": "2.0", "id": request["id"], "result": result}, 200
        except Refused as refused:
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": refused.error}
            status = 404 if refused.error["code"] == -32601 else 400 if refused.error["code"] == -32021 else 200
        if said:
            return self.whole(200, "".join(f"data: {json.dumps(one)}\n\n" for one in [*said, answer]), "text/event-stream")
        self.whole(status, json.dumps(answer))

    def do_GET(self) -> None:  # noqa: N802
        self.whole(405, "")

    def whole(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    else:
        stdio()
