// The official JavaScript client (@a2a-js/sdk) drives a cluster over each binding: card, send, stream, get, list, cancel, subscribe, errors.
// Usage: node a2a_client.mjs URL URL URL   (three nodes; the agent `talker` behind each)

import { randomUUID } from "node:crypto";

import { Role, TaskState } from "@a2a-js/sdk";
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { GrpcTransportFactory } from "@a2a-js/sdk/client/grpc";
import { TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError } from "@a2a-js/sdk/errors";

const GENERATION = "dev.towline/generation";
const ROPES = "A rope is a group of yarns";
let passed = 0;
let failed = 0;

function that(what, holds, detail = "") {
  if (holds) {
    passed += 1;
    console.log(`  ok      ${what}`);
  } else {
    failed += 1;
    console.log(`  FAILED  ${what}: ${detail}`);
  }
}

function equal(what, found, expected) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  that(what, a === b, `expected ${b}, found ${a}`);
}

function message(text, fields = {}) {
  const parts = [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }];
  const empty = { contextId: "", taskId: "", metadata: undefined, extensions: [], referenceTaskIds: [] };
  return { ...empty, messageId: randomUUID(), role: Role.ROLE_USER, parts, ...fields };
}

function request(outgoing, returnImmediately = false) {
  const configuration = { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately };
  return { tenant: "", message: outgoing, configuration, metadata: undefined };
}

const textOf = (artifacts) =>
  (artifacts ?? []).flatMap((artifact) => artifact.parts).map((part) => part.content?.value ?? "").join("");

const generation = (event) => event.payload?.value?.metadata?.[GENERATION];

function assemble(events) {
  const artifacts = new Map();
  for (const { payload } of events) {
    if (payload.$case === "task") {
      for (const artifact of payload.value.artifacts) artifacts.set(artifact.artifactId, textOf([artifact]));
    }
    if (payload.$case === "artifactUpdate") {
      const { artifact, append } = payload.value;
      const known = append ? (artifacts.get(artifact.artifactId) ?? "") : "";
      artifacts.set(artifact.artifactId, known + textOf([artifact]));
    }
  }
  return [...artifacts.values()].join("");
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function refusal(promise) {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error;
  }
}

const get = (client, id) => client.getTask({ tenant: "", id });
const cancel = (client, id) => client.cancelTask({ tenant: "", id, metadata: undefined });
const subscribe = (client, id) => collect(client.resubscribeTask({ tenant: "", id }));

const transports = {
  JSONRPC: () => new JsonRpcTransportFactory(),
  "HTTP+JSON": () => new RestTransportFactory(),
  GRPC: () => new GrpcTransportFactory(),
};

async function main(nodes, binding) {
  console.log(`  over ${binding}`);
  const factory = new ClientFactory({ transports: [transports[binding]()] });
  const card = "agents/talker/.well-known/agent-card.json";
  const [first, second, third] = await Promise.all(nodes.map((node) => factory.createFromUrl(`${node}/`, card)));

  const agent = await first.getAgentCard();
  equal("the card names the agent", agent.name, "talker");
  const faces = agent.supportedInterfaces.map((face) => `${face.protocolBinding} ${face.protocolVersion}`);
  equal("the card offers 1.0 on all bindings", faces, Object.keys(transports).map((name) => `${name} 1.0`));
  const mesh = await factory.createFromUrl(nodes[0]);
  that("the mesh has a card at the usual place", (await mesh.getAgentCard()).name.length > 0);

  const outgoing = message("Tell me about ropes.");
  const task = await first.sendMessage(request(outgoing));
  equal("a blocking send ends completed", task.status?.state, TaskState.TASK_STATE_COMPLETED);
  that("its artifact has the model's text", textOf(task.artifacts).startsWith(ROPES), textOf(task.artifacts));
  const again = await second.sendMessage(request(outgoing));
  equal("the same message id at another node gives the same task", again.id, task.id);
  equal("another node shows the same task", textOf((await third.getTask({ tenant: "", id: task.id })).artifacts), textOf(task.artifacts));

  const events = await collect(second.sendMessageStream(request(message("Tell me about ropes."))));
  equal("a stream begins with the task", events[0].payload.$case, "task");
  const chunks = events.filter((event) => event.payload.$case === "artifactUpdate").length;
  that("it shows chunks", chunks >= 3, chunks);
  equal("it ends with completed", events.at(-1).payload.value.status?.state, TaskState.TASK_STATE_COMPLETED);
  equal("the events are numbered from 1 without a gap", events.map(generation), events.map((_, at) => at + 1));
  const stored = await third.getTask({ tenant: "", id: events[0].payload.value.id });
  equal("the chunks are exactly the text of GetTask", assemble(events), textOf(stored.artifacts));

  const listing = { tenant: "", contextId: task.contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: "" };
  const page = await third.listTasks({ ...listing, statusTimestampAfter: undefined });
  equal("listing a context gives its task", page.tasks.map((found) => found.id), [task.id]);

  const running = await first.sendMessage(request(message("Please count slowly."), true));
  const canceled = await second.cancelTask({ tenant: "", id: running.id, metadata: undefined });
  equal("a cancel through another node", canceled.status?.state, TaskState.TASK_STATE_CANCELED);
  equal("a repeated cancel is the same", (await cancel(third, running.id)).status?.state, TaskState.TASK_STATE_CANCELED);

  const slow = await second.sendMessage(request(message("Please count slowly."), true));
  const tail = await subscribe(third, slow.id);
  equal("a subscription begins with the task", tail[0].payload.$case, "task");
  equal("and goes on without a gap", tail.map(generation), tail.map((_, at) => generation(tail[0]) + at));
  const whole = await get(first, slow.id);
  equal("to the end", whole.status?.state, TaskState.TASK_STATE_COMPLETED);
  equal("with exactly the text of GetTask", assemble(tail), textOf(whole.artifacts));

  const asked = await first.sendMessage(request(message("Please book a table.")));
  equal("a question to a person", asked.status?.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  const answer = message("It is for four.", { taskId: asked.id, contextId: asked.contextId });
  const done = await second.sendMessage(request(answer));
  equal("the answer goes on with the same task", [done.id, done.status?.state], [asked.id, TaskState.TASK_STATE_COMPLETED]);

  const unknown = await refusal(get(first, randomUUID()));
  that("an unknown task is not found", unknown instanceof TaskNotFoundError, unknown);
  const ended = await refusal(cancel(first, task.id));
  that("a completed task cannot be canceled", ended instanceof TaskNotCancelableError, ended);
  const late = await refusal(subscribe(first, task.id));
  that("an ended task has no stream", late instanceof UnsupportedOperationError, late);
}

try {
  for (const binding of Object.keys(transports)) await main(process.argv.slice(2), binding);
} catch (error) {
  that("the client went through", false, error?.stack ?? error);
}
console.log(`a2a-js-sdk: ${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
