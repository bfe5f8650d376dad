//! `towline auth …`: signing in, and who is signed in.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use towline_core::PrincipalRole;

use super::{
    client::Client,
    contexts::{Context, Contexts, name_of_url},
    whoami,
};
use crate::{
    api::{DeviceView, SessionView},
    cli::{AuthCommand, DeviceCommand, LoginArgs, RevokeArgs},
    error::CliError,
    output::Output,
    sign_in::{DEVICE_AUTHORIZATION, GRANT_TYPE, REVOKE, TOKEN},
};

/// How much longer to wait between two questions after each answer that says so (RFC 8628, 3.5).
const SLOWER: Duration = Duration::from_secs(5);
/// How often a code is asked for again that a server has none for, and after which time: a place is free every few seconds.
const MORE_ASKS: u32 = 10;
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// Longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// A server that does not say how long it waits waits this long.
const DEFAULT_INTERVAL: u64 = 5;
/// The scope of an operator.
const OPERATOR: &str = PrincipalRole::Operator.as_str();

pub(crate) async fn run(command: AuthCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        AuthCommand::Login(args) => login(args, client, output).await,
        AuthCommand::Logout => logout(client, output).await,
        AuthCommand::Whoami => whoami::run(client, output).await,
        AuthCommand::Sessions => sessions(client, output).await,
        AuthCommand::Revoke(args) => revoke(args, client, output).await,
        AuthCommand::Device(command) => device(command, client, output).await,
        AuthCommand::Hash => unreachable!("it needs no node, and so is not brought here"),
    }
}

/// The answer to a device that asks (RFC 8628, 3.2).
#[derive(Deserialize)]
struct Asked {
    device_code: String,
    user_code: String,
    verification_uri: String,
    expires_in: u64,
    #[serde(default)]
    interval: Option<u64>,
    /// What it may become, as our own servers say it.
    #[serde(default)]
    scope: Option<String>,
}

/// The answer that has a token in it.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Option<u64>,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    principal: Option<String>,
    #[serde(default)]
    session: Option<String>,
}

async fn login(args: LoginArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let name = args.client.unwrap_or_else(default_client);
    let scope = if args.operator { "user operator" } else { PrincipalRole::User.as_str() };
    let asked: Asked = match ask(client, &name, scope, output).await? {
        (200, answer) => serde_json::from_value(answer).map_err(CliError::other)?,
        (404 | 405, _) => {
            return Err(CliError::Other(format!(
                "nobody signs in at {}: auth.device_grant.enabled is not set there",
                client.server()
            )));
        }
        (status, answer) => return Err(refused(status, &answer)),
    };
    // A server that does not say what it lets ask for may give it.
    if args.operator && asked.scope.as_deref().is_some_and(|scope| !scope.split(' ').any(|word| word == OPERATOR)) {
        return Err(CliError::Auth(format!(
            "nobody signs in as an operator at {}: auth.device_grant.allow_operator is not set there; sign in as a user with \
             `towline auth login`",
            client.server()
        )));
    }
    if output.is_json() {
        let shown = json!({
            "expires_in": asked.expires_in,
            "user_code": asked.user_code,
            "verification_uri": asked.verification_uri,
        });
        output.json_line(&shown)?;
    } else {
        output.note(format!("read this code to an operator:  {}", asked.user_code));
        output
            .note(format!("who approves it there with:     towline auth device approve {} --as NAME", asked.user_code));
        output.note(format!("more at {}; waiting", asked.verification_uri));
    }
    let granted = wait(client, &name, &asked).await?;
    let is_operator = granted.scope.as_deref() == Some(OPERATOR);
    keep(client, granted, output)?;
    if args.operator && !is_operator {
        return Err(CliError::Auth(
            "the session is kept, and is not an operator's: who approved it did not give that role (`towline auth device \
             approve CODE --as NAME --role operator`)"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Asks for a code, some times where others behind the same address ask as well.
async fn ask(client: &Client, name: &str, scope: &str, output: &mut Output) -> Result<(u16, Value), CliError> {
    for _ in 0..MORE_ASKS {
        let answer = client.form(DEVICE_AUTHORIZATION, &[("client_id", name), ("scope", scope)]).await?;
        if answer.0 != 429 {
            return Ok(answer);
        }
        output.note("many sign in from this address: trying again");
        tokio::time::sleep(ASK_AGAIN).await;
    }
    client.form(DEVICE_AUTHORIZATION, &[("client_id", name), ("scope", scope)]).await
}

/// Asks again and again until the operator has decided.
async fn wait(client: &Client, name: &str, asked: &Asked) -> Result<Granted, CliError> {
    let give_up = Instant::now() + Duration::from_secs(asked.expires_in);
    let mut pause = Duration::from_secs(asked.interval.unwrap_or(DEFAULT_INTERVAL).max(1)).min(LONGEST_PAUSE);
    let timeout =
        || CliError::Timeout("nobody approved the code in time: `towline auth login` begins again".to_owned());
    loop {
        if Instant::now() + pause > give_up {
            return Err(timeout());
        }
        tokio::time::sleep(pause).await;
        let fields = [("grant_type", GRANT_TYPE), ("device_code", &asked.device_code), ("client_id", name)];
        let (status, answer) = match client.form(TOKEN, &fields).await {
            Ok(answer) => answer,
            // Another node may have taken over by the next time, and the request is in the cluster.
            Err(CliError::Unreachable(_) | CliError::Timeout(_)) => continue,
            Err(error) => return Err(error),
        };
        match (status, answer["error"].as_str().unwrap_or_default()) {
            (200, _) => return serde_json::from_value(answer).map_err(CliError::other),
            (_, "authorization_pending") | (503, _) => {}
            (_, "slow_down") => pause = (pause + SLOWER).min(LONGEST_PAUSE),
            (_, "expired_token") => return Err(timeout()),
            (_, "access_denied") => return Err(CliError::Auth("an operator denied the code".to_owned())),
            _ => return Err(refused(status, &answer)),
        }
    }
}

/// Keeps the session, and has further commands use it.
fn keep(client: &Client, granted: Granted, output: &mut Output) -> Result<(), CliError> {
    let Granted { access_token, expires_in, scope, principal, session } = granted;
    let expires = expires_in.and_then(|seconds| {
        let seconds = jiff::SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        jiff::Timestamp::now().checked_add(seconds).ok()
    });
    let expires = expires.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let mut contexts = Contexts::load()?;
    let server = client.server();
    let name = contexts.name_of(server).map_or_else(|| name_of_url(server), str::to_owned);
    let (who, until) = (principal.clone(), expires.clone());
    let servers = client.servers();
    let known = contexts.contexts.get(&name).and_then(|context| context.ca_file.clone());
    let ca_file = client.ca_file().map(std::path::Path::to_owned).or(known);
    let context = Context { servers, token: Some(access_token), principal, session: session.clone(), expires, ca_file };
    contexts.contexts.insert(name.clone(), context);
    contexts.current = Some(name.clone());
    contexts.save()?;
    if output.is_json() {
        let shown = json!({ "context": name, "expires": until, "principal": who, "scope": scope, "session": session });
        return Ok(output.json_line(&shown)?);
    }
    let who = who.unwrap_or_else(|| "somebody".to_owned());
    let role = scope.map_or_else(String::new, |scope| format!(" ({scope})"));
    let until = until.map_or_else(String::new, |until| format!(" until {until}"));
    Ok(output.line(format!("signed in as {who}{role}{until}; commands go to {server} ({name})"))?)
}

/// Ends the session, and forgets it. Where the server is gone, it is forgotten all the same.
async fn logout(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let mut contexts = Contexts::load()?;
    let server = client.server();
    let context = contexts.contexts.values_mut().find(|context| context.servers.iter().any(|known| known == server));
    let Some((context, token)) = context.and_then(|context| context.token.take().map(|token| (context, token))) else {
        return Err(CliError::Usage(format!(
            "nobody is signed in at {server}: `towline context list` says where you are"
        )));
    };
    let who = context.principal.take().unwrap_or_else(|| "somebody".to_owned());
    (context.session, context.expires) = (None, None);
    let ended = client.form(REVOKE, &[("token", &token)]).await;
    contexts.save()?;
    let is_ended = matches!(ended, Ok((200, _)));
    if output.is_json() {
        return Ok(output.json(&json!({ "ended": is_ended, "principal": who, "server": server }))?);
    }
    if !is_ended {
        output.note(format!("{server} does not answer: the session is forgotten here, and good there until its end"));
    }
    Ok(output.line(format!("{who} is signed out at {server}"))?)
}

/// What an operator is shown as the client: the program, and whose it is on the machine.
fn default_client() -> String {
    let user = std::env::var("USER").unwrap_or_default();
    let user: String = user.chars().filter(char::is_ascii_graphic).take(32).collect();
    if user.is_empty() { "towline".to_owned() } else { format!("towline of {user}") }
}

fn refused(status: u16, answer: &Value) -> CliError {
    let said = answer["error_description"].as_str().or(answer["error"].as_str());
    let text = said.map_or_else(|| format!("signing in is answered with HTTP {status}"), str::to_owned);
    match status {
        401 | 403 => CliError::Auth(text),
        503 => CliError::Unavailable(text),
        _ => CliError::Other(text),
    }
}

async fn sessions(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/auth/sessions").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let sessions: Vec<SessionView> = serde_json::from_value(answer["sessions"].clone()).map_err(CliError::other)?;
    let row = |session: SessionView| {
        let seen = session.seen.unwrap_or_else(|| "-".to_owned());
        vec![session.id, session.name, session.role, session.client, session.created, session.expires, seen]
    };
    let header = ["SESSION", "NAME", "ROLE", "CLIENT", "BEGAN", "ENDS", "USED"];
    Ok(output.table(&header, sessions.into_iter().map(row).collect())?)
}

async fn revoke(args: RevokeArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = match (args.session, args.name) {
        (Some(session), _) => client.delete(&format!("/api/v1/auth/sessions/{}", path_part(&session)?)).await?,
        (None, Some(name)) => client.post("/api/v1/auth/sessions/revoke", &json!({ "name": name })).await?,
        (None, None) => client.post("/api/v1/auth/sessions/revoke", &json!({ "all": true })).await?,
    };
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let ended: Vec<&str> = answer["revoked"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    output.note(format!("{} ended; what they made stays with its owner", counted(ended.len())));
    ended.into_iter().try_for_each(|session| output.line(session))?;
    Ok(())
}

fn counted(count: usize) -> String {
    if count == 1 { "1 session".to_owned() } else { format!("{count} sessions") }
}

async fn device(command: DeviceCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        DeviceCommand::Pending => pending(client, output).await,
        DeviceCommand::Approve { code, name, role } => {
            let role = role.map(|role| role.as_str());
            let body = json!({ "name": name, "role": role });
            let path = format!("/api/v1/auth/devices/{}/approve", path_part(&code)?);
            let answer = client.post(&path, &body).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            let name = answer["name"].as_str().unwrap_or_default();
            if let Some(before) = answer["approved_before"].as_str() {
                output.note(format!(
                    "{name} was approved before, at {before}: whoever this is has what was made under that name; deny it if \
                     it is somebody else"
                ));
            }
            let role = answer["role"].as_str().unwrap_or_default();
            Ok(output.line(format!("{code} is approved as {name} ({role})"))?)
        }
        DeviceCommand::Deny { code } => {
            let answer = client.post(&format!("/api/v1/auth/devices/{}/deny", path_part(&code)?), &json!({})).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            Ok(output.line(format!("{code} is denied"))?)
        }
    }
}

async fn pending(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/auth/devices").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    if answer["enabled"] == false {
        output.note("nobody can ask at this node: auth.device_grant.enabled is not set");
    }
    let devices: Vec<DeviceView> = serde_json::from_value(answer["devices"].clone()).map_err(CliError::other)?;
    let row = |device: DeviceView| {
        let name = device.name.unwrap_or_else(|| "-".to_owned());
        vec![device.code, device.client, device.source, device.wants, device.expires, device.state, name]
    };
    let header = ["CODE", "CLIENT", "FROM", "ASKS FOR", "UNTIL", "STATE", "AS"];
    Ok(output.table(&header, devices.into_iter().map(row).collect())?)
}

/// What may stand in a path as it is: neither a code nor an id has anything else.
fn path_part(text: &str) -> Result<&str, CliError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.is_empty() && text.chars().all(is_plain) {
        return Ok(text);
    }
    Err(CliError::Usage(format!("{text:?} is no code and no id: copy it as `towline auth …` lists it")))
}
