//! The bounds that the core itself enforces. Each says why it is what it is.

/// Longest id that a caller may choose, in characters: ids are kept in indexes for as long as the task.
pub const MAX_ID_CHARS: usize = 256;

/// Most parts of one message or artifact update: one log entry carries them all.
pub const MAX_PARTS: usize = 256;

/// Largest message or artifact update, in bytes of content: an entry above this makes replication batches exceed what
/// peers accept in one frame.
pub const MAX_CONTENT_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes of a message beside the content of its parts: metadata, media types, names of files, extensions, references. It is
/// not counted as content, and every listing shows it.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;

/// Most tasks of one agent that are not terminal, if its declaration asks for no shorter queue: beyond it a submission is refused, since every waiting task costs
/// memory on each node.
pub const MAX_OPEN_TASKS_PER_AGENT: usize = 10_000;

/// Most tasks that are not terminal, over all agents.
pub const MAX_OPEN_TASKS: usize = 50_000;

/// Most tasks of one principal that are not terminal, without those that its tasks delegate, unless the node that takes the
/// request says otherwise: one caller does not fill the list that all share.
pub const MAX_OPEN_TASKS_PER_PRINCIPAL: usize = 10_000;

/// Most tasks that one node holds a lease of: beyond it they wait in the cluster, where another node can take them. A node
/// runs no more of them than its capacity, and each that waits there costs it an actor.
pub const MAX_LEASED_PER_NODE: usize = 5_000;

/// Most bytes of content on one page of a listing, unless its first task alone has more: a page is made and sent as a
/// whole.
pub const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Terminal tasks kept for reading. The oldest go first; see [`TERMINAL_RETENTION_MS`]. Each costs every node some 140
/// bytes of memory, 240 as long as its message is remembered, and its record on disk.
pub const MAX_TERMINAL_TASKS: usize = 1_000_000;

/// Terminal tasks whose records are in memory: beyond it they go to the archive at once, as fast as entries take them.
pub const MAX_ENDED_IN_MEMORY: usize = 20_000;

/// How long the record of a terminal task stays in memory: its client reads it mostly within seconds.
pub const ARCHIVE_AFTER_MS: u64 = 30_000;

/// Tasks that one entry sends to the archive: it bounds the time of one `apply`.
pub const MAX_ARCHIVED_PER_ENTRY: usize = 256;

/// How long a terminal task stays readable: a week.
pub const TERMINAL_RETENTION_MS: u64 = 7 * 24 * 3600 * 1000;

/// Events of one task that a stream can resume from. Older ones are answered with a snapshot of the task.
pub const MAX_RETAINED_EVENTS: usize = 8_192;

/// Content above this goes to the blob store, and the log only names it: entries stay small.
pub const MAX_INLINE_BYTES: usize = 16 * 1024;

/// Largest blob that a reader is shown in its place; a larger one is shown as a link, which is read in ranges.
pub const MAX_SHOWN_BLOB_BYTES: u64 = 1024 * 1024;

/// Largest blob: every node that holds it writes it as one file, and sends it in one go.
pub const MAX_BLOB_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Most blobs that one task may name: each is in the state of every node.
pub const MAX_BLOBS_PER_TASK: usize = 4_096;

/// Most bytes that the blobs of one task may have: a runaway agent is stopped here, before the disks are full.
pub const MAX_BLOB_BYTES_PER_TASK: u64 = 16 * 1024 * 1024 * 1024;

/// Most bytes that the blobs of all tasks and uploads of one principal may have: one caller does not fill the disks that
/// all share.
pub const MAX_BLOB_BYTES_PER_PRINCIPAL: u64 = 256 * 1024 * 1024 * 1024;

/// Most uploads that no message names yet: each is in the state of every node.
pub const MAX_UPLOADS: usize = 10_000;

/// How long an upload may be named by a message of who made it.
pub const UPLOAD_KEPT_MS: u64 = 24 * 3600 * 1000;

/// How long a blob that nothing names is kept after it was written last: what is to name it may still be on its way.
pub const BLOB_KEPT_UNNAMED_MS: u64 = 24 * 3600 * 1000;

/// Most events that one task may make in its life: a runaway agent is stopped here.
pub const MAX_EVENTS_PER_TASK: u64 = 100_000;

/// Most artifacts of one task.
pub const MAX_ARTIFACTS: usize = 1_024;

/// Most bytes of content that one task may hold in messages, artifacts and journal together.
pub const MAX_TASK_BYTES: usize = 32 * 1024 * 1024;

/// Most steps in the journal of one task.
pub const MAX_STEPS: usize = 4_096;

/// Deepest chain of delegations: a loop of agents that delegate to each other ends here.
pub const MAX_HOPS: u32 = 16;

/// Tasks that one `NodeLost` or `NodeUp` entry reassigns at most: it bounds the time of one `apply`.
pub const MAX_REASSIGNED_PER_ENTRY: usize = 1_000;

/// Longest patience of a drain: a step that takes longer is not waited for.
pub const MAX_PATIENCE_MS: u64 = 24 * 3600 * 1000;

/// Most notes that operators keep: every node holds them all.
pub const MAX_NOTES: usize = 16_384;

/// Longest key of a note, in bytes.
pub const MAX_NOTE_KEY_BYTES: usize = 64;

/// Longest text of a note, in bytes: notes are settings and marks, not documents.
pub const MAX_NOTE_BYTES: usize = 1024;

/// Most peers that operators make known at run time: every node holds them all, and each agent is told of its own.
pub const MAX_PEERS: usize = 1_000;

/// Most MCP servers whose tools are pinned: more than a mesh has, and each with a list.
pub const MAX_PINNED_SERVERS: usize = 1_000;

/// Tools of one server that are pinned: what one listing has.
pub const MAX_PINNED_TOOLS: usize = 1_000;

/// Longest name or hash of a pin, in bytes.
pub const MAX_PIN_BYTES: usize = 256;

/// How long a task waits for a node where its agent lacks nothing: a server that is started again is there within seconds.
pub const LACKING_WAIT_MS: u64 = 10_000;

/// Longest text of what an agent lacks on a node, in bytes.
pub const MAX_LACKING_BYTES: usize = 512;

/// Most URLs of one peer: each is tried before it counts as gone.
pub const MAX_PEER_URLS: usize = 8;

/// Longest URL, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;

/// Most bytes of what is said of one peer beside its URLs: a description and names, no document.
pub const MAX_PEER_TEXT_BYTES: usize = 8 * 1024;

/// Most MCP servers that are registered through the bridge: every node holds their configuration.
pub const MAX_BRIDGED: usize = 1_000;

/// Most of these of one principal: each may be a process of each node.
pub const MAX_BRIDGED_OF_ONE: usize = 16;

/// Most words, variables, headers and names of one of them.
pub const MAX_BRIDGED_ITEMS: usize = 512;

/// Most bytes of the configuration of one of them.
pub const MAX_BRIDGED_BYTES: usize = 16 * 1024;

/// Most reasons that are kept for counting a task's content as outside input: the first few say enough.
pub const MAX_OUTSIDE_REASONS: usize = 8;

/// Longest such reason, in characters.
pub const MAX_OUTSIDE_REASON_CHARS: usize = 200;

/// Terminal tasks that one sweep removes at most.
pub const MAX_SWEPT_PER_ENTRY: usize = 1_000;

/// How long a message is remembered after the end of its task: a client that retries for a day makes no second task.
pub const DEDUP_AFTER_END_MS: u64 = 24 * 3600 * 1000;

/// Messages of ended tasks that are remembered; beyond it the oldest go before their day is over, since each costs memory
/// on every node.
pub const MAX_REMEMBERED_MESSAGES: usize = 200_000;

/// Late results that are kept of one task: as many owners as are ever lost with one, times a few calls side by side.
pub const MAX_LATE_RESULTS: usize = 16;

/// Longest text that is kept of a late result, in characters: it is shown to a person.
pub const MAX_LATE_RESULT_CHARS: usize = 2_000;

/// Most sessions of people at the same time: every node holds them all, and a person has a few.
pub const MAX_SESSIONS: usize = 4_096;

/// Most sessions of one name: as many devices as a person has, with room for those that were forgotten.
pub const MAX_SESSIONS_PER_NAME: usize = 64;

/// Longest life of a session: 30 days, as for a certificate.
pub const MAX_SESSION_MS: u64 = 30 * 24 * 3600 * 1000;

/// Most requests of devices at the same time, decided ones too: strangers make them, and each is in the state of every node.
pub const MAX_DEVICE_REQUESTS: usize = 256;

/// Most requests of devices from one source that nobody has decided; one more takes the place of the oldest of them. It is more
/// than a source may ask for at one node while a request waits, so that those behind one address do not push each other out.
pub const MAX_DEVICE_REQUESTS_PER_SOURCE: usize = 64;

/// Longest life of a request of a device: whoever asks has an operator at hand.
pub const MAX_DEVICE_REQUEST_MS: u64 = 15 * 60 * 1000;

/// Longest name of a client, and of where it asks from, in bytes: an operator reads it.
pub const MAX_CLIENT_NAME_BYTES: usize = 64;

/// Names that were approved and are remembered as such; beyond it the one goes that was not approved for the longest time.
pub const MAX_REMEMBERED_NAMES: usize = 16_384;

/// Most webhooks of one task: each of its events is sent to all of them.
pub const MAX_WEBHOOKS_PER_TASK: usize = 16;

/// Most webhooks in the cluster: each is in the state of every node, with a place in the events of its task, and looked at
/// once a second.
pub const MAX_WEBHOOKS: usize = 20_000;

/// Most webhooks of one principal: one caller does not fill the list that all share.
pub const MAX_WEBHOOKS_PER_PRINCIPAL: usize = 10_000;

/// Longest URL of a webhook, in bytes: what proxies and servers commonly take.
pub const MAX_WEBHOOK_URL_BYTES: usize = 2_048;

/// Longest token or credentials of a webhook, in bytes: a signed token with some claims fits, and so it does into a header.
pub const MAX_WEBHOOK_SECRET_BYTES: usize = 4_096;

/// Longest text that is kept of what came of a call, in characters: it is shown to a person.
pub const MAX_WEBHOOK_SAID_CHARS: usize = 200;

/// How long a receiver may fail to take one event before its webhook is given up: an outage over a day is noticed.
pub const WEBHOOK_PATIENCE_MS: u64 = 24 * 3600 * 1000;

/// Webhooks that one entry gives to a node at most: it bounds the time of one `apply`.
pub const MAX_CLAIMED_PER_ENTRY: usize = 256;

/// Most triggers in the cluster: every node holds them all, and looks at each once a second.
pub const MAX_TRIGGERS: usize = 20_000;

/// Most triggers that one node's configuration declares: they are told in one entry.
pub const MAX_DECLARED_TRIGGERS: usize = 10_000;

/// Largest text of one trigger, in bytes: its prompt, filter and names, no document.
pub const MAX_TRIGGER_TEXT_BYTES: usize = 16 * 1024;

/// Tasks of one trigger that are remembered, and so that may be open at the same time: something that never stops changing fills
/// neither the queue of an agent nor the list of the others.
pub const MAX_TASKS_PER_TRIGGER: usize = 64;

/// Longest text that is kept of what keeps a trigger from its work, in characters: it is shown to a person.
pub const MAX_TROUBLE_CHARS: usize = 300;
