//! `towline context …`

use std::path::Path;

use serde_json::json;

use super::{
    client::server_url,
    contexts::{Context, Contexts, name_of_url},
};
use crate::{cli::ContextCommand, error::CliError, output::Output};

pub(crate) fn run(command: ContextCommand, ca_file: Option<&Path>, output: &mut Output) -> Result<(), CliError> {
    match command {
        ContextCommand::Use { context } => use_context(&context, ca_file, output),
        ContextCommand::List => list(output),
        ContextCommand::Remove { context } => remove(&context, output),
    }
}

fn use_context(wanted: &str, ca_file: Option<&Path>, output: &mut Output) -> Result<(), CliError> {
    let mut contexts = Contexts::load()?;
    let name = if wanted.contains("://") {
        let server = server_url(wanted)?;
        let name = contexts.name_of(&server).map_or_else(|| name_of_url(&server), str::to_owned);
        contexts.contexts.entry(name.clone()).or_insert(Context { servers: vec![server], ..Context::default() });
        name
    } else if contexts.contexts.contains_key(wanted) {
        wanted.to_owned()
    } else {
        return Err(unknown(wanted, &contexts));
    };
    if let (Some(file), Some(context)) = (ca_file, contexts.contexts.get_mut(&name)) {
        context.ca_file = Some(std::path::absolute(file).map_err(CliError::other)?);
    }
    contexts.current = Some(name.clone());
    contexts.save()?;
    let context = &contexts.contexts[&name];
    if output.is_json() {
        return Ok(output.json(&view(&name, context, true))?);
    }
    if context.token.is_none() {
        output.note("nobody is signed in there: `towline auth login` does that, where the cluster asks for it");
    }
    Ok(output.line(format!("commands go to {} ({name})", context.servers.join(",")))?)
}

fn unknown(wanted: &str, contexts: &Contexts) -> CliError {
    let known: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    CliError::Usage(format!(
        "context {wanted:?} is not known; known contexts: {known}. `towline context use URL` makes one"
    ))
}

fn remove(wanted: &str, output: &mut Output) -> Result<(), CliError> {
    let mut contexts = Contexts::load()?;
    let of_url = || contexts.name_of(wanted.trim_end_matches('/')).map(str::to_owned);
    let name = if contexts.contexts.contains_key(wanted) { Some(wanted.to_owned()) } else { of_url() };
    let name = name.ok_or_else(|| unknown(wanted, &contexts))?;
    let removed = contexts.contexts.remove(&name).unwrap_or_default();
    let was_current = contexts.current.as_deref() == Some(name.as_str());
    if was_current {
        contexts.current = None;
    }
    contexts.save()?;
    if output.is_json() {
        return Ok(output.json(&view(&name, &removed, was_current))?);
    }
    if let Some(session) = &removed.session {
        output.note(format!("session {session} goes on there until it is over, or somebody revokes it"));
    }
    if was_current {
        output.note("commands without --server go to this machine again, until `towline context use` names another");
    }
    Ok(output.line(format!("context {name} is forgotten"))?)
}

fn list(output: &mut Output) -> Result<(), CliError> {
    let contexts = Contexts::load()?;
    let is_current = |name: &str| contexts.current.as_deref() == Some(name);
    if output.is_json() {
        let all: Vec<_> = contexts.contexts.iter().map(|(name, one)| view(name, one, is_current(name))).collect();
        return Ok(output.json(&json!({ "contexts": all }))?);
    }
    let row = |(name, context): (&String, &Context)| {
        vec![
            if is_current(name) { "*".to_owned() } else { String::new() },
            name.clone(),
            context.servers.join(","),
            context.principal.clone().unwrap_or_else(|| "-".to_owned()),
            context.expires.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    output
        .table(&["USED", "CONTEXT", "SERVER", "SIGNED IN AS", "UNTIL"], contexts.contexts.iter().map(row).collect())?;
    Ok(())
}

/// Without the token: what is shown is copied.
fn view(name: &str, context: &Context, is_current: bool) -> serde_json::Value {
    json!({
        "ca_file": context.ca_file,
        "current": is_current,
        "expires": context.expires,
        "name": name,
        "principal": context.principal,
        "servers": context.servers,
        "session": context.session,
    })
}
