//! `triggers:` – what starts tasks by itself: resources that change, times that come, calls from outside.

use std::{collections::BTreeSet, time::Duration};

use towline_actors::{AgentConfig, McpServerConfig, triggers};
use towline_core::{
    Missed, ResourceSource, Schedule, Timestamp, TriggerName, TriggerSource, TriggerSpec, limits::MAX_DECLARED_TRIGGERS,
};

use super::{
    mistakes::hint,
    section::{Field, Section},
    values::duration,
};
use crate::hooks::{HookCredential, HookSettings, Hooks};

/// Default of `debounce`: editors and loggers write a file several times in a row.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(250);
/// Default of `poll`: a change is seen within 15 s however little the server says.
pub(crate) const POLL: Duration = Duration::from_secs(5);
/// Shortest `poll`: to ask more often is no way to be told.
const SHORTEST_POLL: Duration = Duration::from_millis(100);
/// Longest `debounce` and `poll`: what waits longer is a schedule.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Most contents that a filter sees beside the one that is new: each is kept in memory.
pub(crate) const MAX_WINDOW: u32 = 256;
/// The header with the signature of a call, unless another one is named.
const SIGNATURE_HEADER: &str = "x-hub-signature-256";
/// The header that tells calls apart, unless another one is named.
const KEY_HEADER: &str = "idempotency-key";
/// Shortest secret of a webhook, in bytes: a shorter one can be guessed.
const SHORTEST_SECRET: usize = 20;

/// Reads the section.
pub(crate) fn read(
    root: &mut Section<'_>,
    agents: &[AgentConfig],
    servers: &[McpServerConfig],
) -> (Vec<TriggerSpec>, Hooks) {
    let fields = root.list("triggers");
    if fields.len() > MAX_DECLARED_TRIGGERS {
        root.mistake(format!("triggers has {} entries; the limit is {MAX_DECLARED_TRIGGERS}", fields.len()));
    }
    let (mut specs, mut hooks): (Vec<TriggerSpec>, Hooks) = (Vec::new(), Hooks::new());
    let (mut names, mut resources) = (BTreeSet::new(), BTreeSet::new());
    for field in &fields {
        let Some((spec, hook)) = read_trigger(field, agents, servers) else { continue };
        if !names.insert(spec.name.clone()) {
            field.mistake(format!("trigger {:?} is declared twice: names are unique", spec.name.as_str()));
        }
        if let Some(source) = spec.resource()
            && !resources.insert((source.server.clone(), source.uri.clone()))
        {
            let message =
                "its resource is watched by another trigger: a resource is watched once, and its agent may delegate";
            field.mistake(message);
        }
        hooks.extend(hook.map(|hook| (spec.name.clone(), hook)));
        specs.push(spec);
    }
    (specs, hooks)
}

fn read_trigger(
    field: &Field<'_>,
    agents: &[AgentConfig],
    servers: &[McpServerConfig],
) -> Option<(TriggerSpec, Option<HookSettings>)> {
    let mut section = field.section()?;
    let name = section.required("name", "inbox").and_then(|field| field.parse(str::parse::<TriggerName>));
    let agent_field = section.required("agent", "triage");
    let prompt = section.get("prompt").and_then(|field| field.text_or_file()).unwrap_or_default();
    let coalesce = section.flag("coalesce", false);
    let sources = [section.get("resource"), section.get("schedule"), section.get("webhook")];
    let [resource, schedule, webhook] = sources;
    let (mut hook, mut source) = (None, None);
    match (resource, schedule, webhook) {
        (Some(field), None, None) => source = read_resource(&field, servers).map(TriggerSource::Resource),
        (None, Some(field), None) => source = read_schedule(&field),
        (None, None, Some(field)) => {
            hook = read_webhook(&field);
            source = hook.is_some().then_some(TriggerSource::Webhook);
        }
        _ => section.mistake("waits for one thing: write resource: {…}, schedule: {…} or webhook: {…}"),
    }
    section.finish();
    let agent_field = agent_field?;
    let written = agent_field.text()?;
    let Some(agent) = agents.iter().find(|agent| agent.name.as_str() == written) else {
        let names = agents.iter().map(|agent| agent.name.as_str());
        agent_field.mistake(format!("agent {written:?} is not declared; {}", hint(written, names)));
        return None;
    };
    let spec = TriggerSpec { name: name?, agent: agent.name.clone(), prompt, coalesce, source: source? };
    let says = matches!(spec.source, TriggerSource::Resource(_) | TriggerSource::Webhook);
    if says && agent.traits.must_stay_clean() && !agent.allow_trifecta {
        agent_field.mistake(format!(
            "agent {written:?} holds sensitive data and has a way out: what this trigger tells it is text from outside, whose \
             writer could have the data sent away. Name another agent, or write allow_trifecta: true there if this is meant"
        ));
    }
    if let Err(error) = triggers::check(&spec) {
        field.mistake(error);
    }
    if let Err(error) = spec.check() {
        field.mistake(error.to_string());
    }
    Some((spec, hook))
}

fn read_resource(field: &Field<'_>, servers: &[McpServerConfig]) -> Option<ResourceSource> {
    let mut section = field.section()?;
    let server_field = section.required("server", "fs");
    let uri = section.required("uri", "\"file:///data/inbox\"").and_then(|field| field.text());
    let debounce = section.get("debounce").and_then(|field| field.parse(debounce));
    let poll = section.get("poll").and_then(|field| field.parse(poll));
    let filter = section.get("filter").and_then(|field| field.text().map(str::to_owned));
    let window = section.get("window").and_then(|field| field.number(1, MAX_WINDOW));
    section.finish();
    let server_field = server_field?;
    let server = server_field.text()?;
    if !servers.iter().any(|known| known.name == server) {
        let names = servers.iter().map(|server| server.name.as_str());
        server_field.mistake(format!("server {server:?} is not declared in mcp.servers; {}", hint(server, names)));
    }
    Some(ResourceSource {
        server: server.to_owned(),
        uri: uri?.to_owned(),
        debounce_ms: milliseconds(debounce.unwrap_or(DEBOUNCE)),
        poll_ms: milliseconds(poll.unwrap_or(POLL)),
        filter,
        window: window.unwrap_or(0),
    })
}

fn read_schedule(field: &Field<'_>) -> Option<TriggerSource> {
    let mut section = field.section()?;
    let cron = section.get("cron").and_then(|field| field.text());
    let zone = section.get("zone").and_then(|field| field.text());
    let every = section.get("every").and_then(|field| field.parse(duration));
    let at = section.get("at").and_then(|field| field.parse(moment));
    let missed = section.get("missed").and_then(|field| field.parse(missed)).unwrap_or_default();
    let when = schedule(cron, zone, every, at);
    if let Err(error) = &when {
        section.mistake(error);
    }
    section.finish();
    Some(TriggerSource::Schedule { when: when.ok()?, missed })
}

/// One of three ways to say when.
///
/// # Errors
/// When it is none of them, or several.
pub(crate) fn schedule(
    cron: Option<&str>,
    zone: Option<&str>,
    every: Option<Duration>,
    at: Option<Timestamp>,
) -> Result<Schedule, String> {
    match (cron, every, at) {
        (Some(pattern), None, None) => {
            Ok(Schedule::Cron { pattern: pattern.to_owned(), zone: zone.unwrap_or("UTC").to_owned() })
        }
        (None, _, _) if zone.is_some() => Err("zone is for cron: other times are the same everywhere".to_owned()),
        (None, Some(period), None) => Ok(Schedule::Every { period_ms: milliseconds(period) }),
        (None, None, Some(at)) => Ok(Schedule::At { at }),
        _ => Err("is one of cron: \"30 7 * * *\", every: 10m, at: \"2027-01-01T07:30:00Z\"".to_owned()),
    }
}

fn read_webhook(field: &Field<'_>) -> Option<HookSettings> {
    let mut section = field.section()?;
    let (hmac, bearer) = (section.get("hmac"), section.get("bearer"));
    let signature = section.get("signature_header").and_then(|field| field.parse(header));
    let key_header = section.get("key_header").and_then(|field| field.parse(header));
    let secret_field = match (&hmac, &bearer) {
        (Some(field), None) | (None, Some(field)) => field.clone(),
        _ => {
            section.mistake("is shown one of hmac: \"{{secret:NAME}}\" and bearer: \"{{secret:NAME}}\"");
            section.finish();
            return None;
        }
    };
    if signature.is_some() && hmac.is_none() {
        section.mistake("signature_header is for hmac");
    }
    section.finish();
    let secret = secret_field.secret_for(None, "HOOK_SECRET")?;
    if secret.expose().len() < SHORTEST_SECRET {
        secret_field.mistake(format!("is too short: write at least {SHORTEST_SECRET} bytes"));
        return None;
    }
    let standard = |name: &'static str| http::HeaderName::from_static(name);
    let credential = if hmac.is_some() {
        HookCredential::Hmac { secret, header: signature.unwrap_or_else(|| standard(SIGNATURE_HEADER)) }
    } else {
        HookCredential::Bearer(secret)
    };
    Some(HookSettings { credential, key_header: key_header.unwrap_or_else(|| standard(KEY_HEADER)) })
}

fn header(text: &str) -> Result<http::HeaderName, String> {
    http::HeaderName::try_from(text).map_err(|_| format!("{text:?} is no name of an HTTP header"))
}

/// As [`duration`], and none is a time as well.
pub(crate) fn debounce(text: &str) -> Result<Duration, String> {
    if matches!(text, "0ms" | "0s") {
        return Ok(Duration::ZERO);
    }
    within(text, Duration::ZERO)
}

/// How often a resource is read.
pub(crate) fn poll(text: &str) -> Result<Duration, String> {
    within(text, SHORTEST_POLL)
}

fn within(text: &str, least: Duration) -> Result<Duration, String> {
    let length = duration(text)?;
    if (least..=LONGEST).contains(&length) {
        Ok(length)
    } else {
        Err(format!("{text:?} is out of range: {least:?} to 24h"))
    }
}

/// A moment, as RFC 3339 writes it.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let error = || format!("{text:?} is no moment: write it as in 2027-01-01T07:30:00Z");
    let at: jiff::Timestamp = text.parse().map_err(|_| error())?;
    u64::try_from(at.as_millisecond()).map(Timestamp).map_err(|_| error())
}

/// What happens to times that nobody was there for.
pub(crate) fn missed(text: &str) -> Result<Missed, String> {
    match text {
        "skip" => Ok(Missed::Skip),
        "once" => Ok(Missed::Once),
        "all" => Ok(Missed::All),
        _ => Err(format!("{text:?} is not known; {}", hint(text, ["skip", "once", "all"]))),
    }
}

pub(crate) fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(triggers: &str) -> Result<NodeConfig, Vec<String>> {
        let text = format!(
            "node: {{ name: a }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\nmcp:\n  servers:\n    \
             - {{ name: fs, command: [fs] }}\n    - {{ name: crm, command: [crm], tags: [sensitive, egress] }}\n\
             agents:\n  - {{ name: triage, instruction: I. }}\n  - {{ name: clerk, instruction: I., tools: [\"crm.*\"] }}\n\
             triggers:\n{triggers}\n"
        );
        let env = [("HOOK".to_owned(), "a-secret-of-twenty-bytes".to_owned()), ("SHORT".to_owned(), "x".to_owned())];
        let overrides = Overrides { env: env.into(), ..Overrides::default() };
        let read = read(&text, "/nowhere".into(), &overrides);
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn each_kind_of_trigger_is_read() {
        let config = with(
            "  - { name: inbox, agent: triage, prompt: New., resource: { server: fs, uri: \"file:///i\", debounce: 0ms, filter: \"text != ''\", window: 3 } }\n\
             \x20 - { name: nightly, agent: clerk, schedule: { cron: \"30 2 * * *\", zone: Europe/Berlin, missed: once } }\n\
             \x20 - { name: often, agent: clerk, schedule: { every: 10m } }\n\
             \x20 - { name: deploy, agent: triage, coalesce: true, webhook: { hmac: \"{{secret:HOOK}}\" } }",
        )
        .unwrap();
        assert_eq!(config.mesh.triggers.len(), 4);
        assert_eq!(config.hooks.len(), 1);
        let source = config.mesh.triggers[0].resource().unwrap();
        assert_eq!((source.debounce_ms, source.poll_ms, source.window), (0, 5_000, 3));
    }

    #[test]
    fn what_cannot_be_is_said_with_what_would_be_right() {
        for (trigger, says) in [
            ("agent: nobody, schedule: { every: 10m }", "agent \"nobody\" is not declared"),
            ("agent: triage", "waits for one thing"),
            (
                "agent: triage, schedule: { every: 10m }, webhook: { bearer: \"{{secret:HOOK}}\" }",
                "waits for one thing",
            ),
            ("agent: triage, schedule: { every: 10ms }", "too often"),
            ("agent: triage, schedule: { cron: \"99 * * * *\" }", "no line of a crontab"),
            ("agent: triage, schedule: { cron: \"* * * * *\", zone: Mars }", "no time zone"),
            ("agent: triage, schedule: { every: 1h, zone: UTC }", "zone is for cron"),
            ("agent: triage, schedule: { at: tomorrow }", "no moment"),
            ("agent: triage, resource: { server: sf, uri: \"x:y\" }", "did you mean \"fs\"?"),
            ("agent: triage, resource: { server: fs, uri: \"x:y\", filter: \"1 +\" }", "filter \"1 +\""),
            ("agent: triage, resource: { server: fs, uri: \"x:y\", poll: 1ms }", "out of range"),
            ("agent: triage, webhook: { hmac: written-out-in-the-file }", "is written out"),
            ("agent: triage, webhook: { bearer: \"{{secret:SHORT}}\" }", "too short"),
            ("agent: clerk, webhook: { bearer: \"{{secret:HOOK}}\" }", "text from outside"),
        ] {
            let mistakes = with(&format!("  - {{ name: t, {trigger} }}")).unwrap_err().join("\n");
            assert!(mistakes.contains(says), "{trigger}: {mistakes}");
        }
        let resource = "agent: triage, resource: { server: fs, uri: \"x:y\" }";
        let twice = with(&format!("  - {{ name: a, {resource} }}\n  - {{ name: b, {resource} }}")).unwrap_err();
        assert!(twice[0].contains("watched by another trigger"), "{twice:?}");
    }
}
