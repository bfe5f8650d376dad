// An agent on the official JavaScript server (@a2a-js/sdk): it streams back what it was told, in two chunks.
// Usage: node a2a_server.mjs PORT

import express from "express";

import { TaskState } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler } from "@a2a-js/sdk/server/express";

const port = Number(process.argv[2]);

const text = (value) => ({ content: { $case: "text", value }, metadata: undefined, filename: "", mediaType: "" });
const status = (state) => ({ state, message: undefined, timestamp: new Date().toISOString() });

class Echo {
  async execute({ taskId, contextId, userMessage }, bus) {
    const place = { taskId, contextId, metadata: undefined };
    const submitted = status(TaskState.TASK_STATE_SUBMITTED);
    const empty = { artifacts: [], metadata: undefined };
    bus.publish(AgentEvent.task({ id: taskId, contextId, status: submitted, history: [userMessage], ...empty }));
    bus.publish(AgentEvent.statusUpdate({ ...place, status: status(TaskState.TASK_STATE_WORKING) }));
    const said = userMessage.parts.map((part) => part.content?.value ?? "").join("");
    const chunk = (value, append) => {
      const bare = { artifactId: "echo", name: "", description: "", metadata: undefined, extensions: [] };
      bus.publish(AgentEvent.artifactUpdate({ ...place, artifact: { ...bare, parts: [text(value)] }, append, lastChunk: append }));
    };
    chunk("JavaScript was told: ", false);
    chunk(said, true);
    bus.publish(AgentEvent.statusUpdate({ ...place, status: status(TaskState.TASK_STATE_COMPLETED) }));
    bus.finished();
  }

  async cancelTask() {}
}

const card = {
  name: "echo",
  description: "Says what it was told.",
  version: "1",
  supportedInterfaces: [{ url: `http://127.0.0.1:${port}/`, protocolBinding: "JSONRPC", protocolVersion: "1.0", tenant: "" }],
  capabilities: { streaming: true, pushNotifications: false, extendedAgentCard: false, extensions: [] },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "echo", name: "echo", description: "Says what it was told.", tags: ["echo"], examples: [], inputModes: [], outputModes: [], securityRequirements: [] }],
  provider: undefined,
  documentationUrl: "",
  iconUrl: "",
  securitySchemes: {},
  securityRequirements: [],
  signatures: [],
};
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Echo());
const app = express();
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/", jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
app.listen(port, "127.0.0.1");
