//! OAuth 2.1 towards one server: a token for each request, a new one before the old one ends or when it is refused, and more
//! when it does not suffice.
//!
//! ```text
//! request ─▶ token() ─▶ 401 ─▶ challenged(): refresh, or the node's own grant ─▶ the request once more
//!                    ─▶ 403 insufficient_scope ─▶ a wider grant of the node's own, or a person has to log in again
//! towline mcp login ─▶ begin() … finish(), begin_device() … poll() ─▶ given()
//! ```
//! Whoever asks for a token holds the lock meanwhile, so that a refresh token is used once.

mod discovery;
mod grant;
mod login;

use std::{
    collections::{BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use super::settings::{OAuthGrant, OAuthSettings};
pub(super) use discovery::Challenge;
use discovery::{Found, MAX_SCOPES, Outside};
use grant::{Asking, Grant};
use login::Logins;
pub use login::{BegunLogin, DeviceLogin};

/// Shortest time between two tries to get a token, while they fail: each request of the server would make one.
const MIN_BETWEEN: Duration = Duration::from_secs(5);

/// Tokens within that time that are asked for because the server refuses what it was shown: one that refuses each would make the
/// authorization server give them without end.
const MAX_RENEWALS: usize = 3;

/// Why there is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A person has to log in.
    #[error("{why}: log in with `towline mcp login {server}` at this node")]
    LoginNeeded {
        /// The server.
        server: String,
        /// Why.
        why: String,
    },
    /// Something did not work.
    #[error("{0}")]
    Failed(String),
    /// A login that was never begun, has ended, or was begun at another node.
    #[error("no such login is under way at this node: begin it anew")]
    UnknownLogin,
    /// The person has not done it yet.
    #[error("the login is not done yet")]
    Pending {
        /// Whether the authorization server wants to be asked less often.
        slower: bool,
    },
}

fn failed(what: String) -> AuthError {
    AuthError::Failed(what)
}

/// Asks for tokens for one server; cheap to clone.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

struct Inner {
    server: String,
    endpoint: String,
    settings: OAuthSettings,
    file: Option<PathBuf>,
    outside: OnceLock<Result<Outside, AuthError>>,
    held: tokio::sync::Mutex<Held>,
    /// What the server said last of what it wants.
    wanted: Mutex<Challenge>,
    logins: Mutex<Logins>,
}

#[derive(Default)]
struct Held {
    grant: Option<Grant>,
    looked_for: bool,
    /// When a token was asked for because the server had refused the one before.
    renewed: VecDeque<Instant>,
    /// The last try that failed.
    failure: Option<(Instant, AuthError)>,
    /// Scopes that were asked for in vain, or were given and did not suffice.
    in_vain: BTreeSet<String>,
}

impl Authorizer {
    /// For a server, with what was kept for it in a folder.
    pub(super) fn new(server: &str, endpoint: &str, settings: OAuthSettings, folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join(format!("{server}.json")));
        Self(Arc::new(Inner {
            server: server.to_owned(),
            endpoint: endpoint.to_owned(),
            settings,
            file,
            outside: OnceLock::new(),
            held: tokio::sync::Mutex::default(),
            wanted: Mutex::default(),
            logins: Mutex::default(),
        }))
    }

    fn settings(&self) -> &OAuthSettings {
        &self.0.settings
    }

    fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    fn outside(&self) -> Result<&Outside, AuthError> {
        let OAuthSettings { issuer, allow, .. } = &self.0.settings;
        let made = self.0.outside.get_or_init(|| Outside::new(&self.0.endpoint, issuer.as_deref(), allow));
        made.as_ref().map_err(Clone::clone)
    }

    fn logins(&self) -> MutexGuard<'_, Logins> {
        self.0.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> Challenge {
        self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn login_needed(&self, why: impl Into<String>) -> AuthError {
        AuthError::LoginNeeded { server: self.0.server.clone(), why: why.into() }
    }

    /// Where tokens are, and what is to be asked for: what is configured and what the server wants; else what it knows.
    async fn find(&self) -> Result<(Found, Vec<String>), AuthError> {
        let wanted = self.wanted();
        let issuer = self.0.settings.issuer.as_deref();
        let found = self.outside()?.discover(wanted.metadata.as_deref(), issuer).await?;
        let said: BTreeSet<String> = self.0.settings.scopes.iter().cloned().chain(wanted.scopes).collect();
        let mut scopes: Vec<String> = if said.is_empty() { found.scopes.clone() } else { said.into_iter().collect() };
        // Without it some servers give no refresh token, and the person would have to come back each hour.
        let offline = "offline_access".to_owned();
        let is_login = self.0.settings.grant == OAuthGrant::Login;
        if is_login && found.issuer.scopes_supported.contains(&offline) && !scopes.contains(&offline) {
            scopes.push(offline);
        }
        scopes.truncate(MAX_SCOPES);
        Ok((found, scopes))
    }

    /// The token for a request, renewed where it ends soon. None where there is none yet: then the server says what it wants.
    ///
    /// # Errors
    /// When it has ended, and there is no other one.
    pub(super) async fn token(&self) -> Result<Option<String>, AuthError> {
        let mut held = self.held().await;
        let Some(grant) = &held.grant else { return Ok(None) };
        if grant.is_fresh() {
            return Ok(Some(grant.access_token.clone()));
        }
        let (token, is_good) = (grant.access_token.clone(), grant.is_good());
        match self.renew(&mut held, &[]).await {
            Ok(()) => Ok(held.grant.as_ref().map(|grant| grant.access_token.clone())),
            // It is good for a moment still.
            Err(_) if is_good => Ok(Some(token)),
            Err(error) => Err(error),
        }
    }

    /// The server refused a request with a token, or without one. When this returns, there is another one.
    ///
    /// # Errors
    /// When there is none to be had.
    pub(super) async fn challenged(&self, used: Option<&str>, challenge: Challenge) -> Result<(), AuthError> {
        let mut held = self.held().await;
        let current = held.grant.as_ref().map(|grant| grant.access_token.as_str());
        if current.is_some() && current != used {
            // Somebody else got it meanwhile.
            return Ok(());
        }
        *self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner) = self.and_before(&challenge);
        if challenge.insufficient_scope {
            return self.step_up(&mut held, &challenge.scopes).await;
        }
        while held.renewed.front().is_some_and(|at| at.elapsed() >= MIN_BETWEEN) {
            held.renewed.pop_front();
        }
        if used.is_some() {
            if held.renewed.len() >= MAX_RENEWALS {
                return Err(failed("the server refuses tokens that were given a moment ago".to_owned()));
            }
            held.renewed.push_back(Instant::now());
        }
        self.renew(&mut held, &challenge.scopes).await
    }

    /// What the server wants now, with what it wanted before: the next login asks for both.
    fn and_before(&self, challenge: &Challenge) -> Challenge {
        let before = self.wanted();
        let scopes: BTreeSet<String> = before.scopes.into_iter().chain(challenge.scopes.iter().cloned()).collect();
        Challenge {
            insufficient_scope: challenge.insufficient_scope,
            metadata: challenge.metadata.clone().or(before.metadata),
            scopes: scopes.into_iter().take(MAX_SCOPES).collect(),
        }
    }

    /// A token with more scopes. One that was asked for in vain is not asked for again.
    async fn step_up(&self, held: &mut Held, scopes: &[String]) -> Result<(), AuthError> {
        let listed = discovery::shortened(&scopes.join(" "));
        let given = |grant: &Grant| scopes.iter().all(|scope| grant.scopes.contains(scope));
        let in_vain = !scopes.is_empty() && scopes.iter().all(|scope| held.in_vain.contains(scope));
        if scopes.is_empty() || in_vain || held.grant.as_ref().is_some_and(given) {
            return Err(failed(format!("the server wants scopes {listed:?}, which were asked for in vain")));
        }
        match self.0.settings.grant {
            OAuthGrant::Login => Err(self.login_needed(format!("the server wants scopes {listed:?} as well"))),
            OAuthGrant::ClientCredentials => {
                let already: Vec<String> = held.grant.iter().flat_map(|grant| grant.scopes.clone()).collect();
                let all: BTreeSet<String> = already.into_iter().chain(scopes.iter().cloned()).collect();
                let all: Vec<String> = all.into_iter().collect();
                let result = self.ask_for_own(held, &all).await;
                if result.is_err() && held.in_vain.len() < MAX_SCOPES {
                    held.in_vain.extend(scopes.iter().cloned());
                }
                result
            }
        }
    }

    async fn renew(&self, held: &mut Held, scopes: &[String]) -> Result<(), AuthError> {
        if let Some((at, error)) = &held.failure
            && at.elapsed() < MIN_BETWEEN
        {
            return Err(error.clone());
        }
        let result = match (self.0.settings.grant, held.grant.clone()) {
            (OAuthGrant::Login, Some(grant)) => match grant.refreshed(self.outside()?).await {
                Ok(Some(grant)) => {
                    self.keep(&grant);
                    held.grant = Some(grant);
                    Ok(())
                }
                Ok(None) => Err(self.login_needed("the token has ended, and the server gives no other one for it")),
                Err(error) => Err(error),
            },
            (OAuthGrant::Login, None) => Err(self.login_needed("nobody has logged in")),
            (OAuthGrant::ClientCredentials, grant) => {
                let known = grant.map(|grant| grant.scopes).unwrap_or_default();
                let all: BTreeSet<String> = known.into_iter().chain(scopes.iter().cloned()).collect();
                self.ask_for_own(held, &all.into_iter().collect::<Vec<_>>()).await
            }
        };
        held.failure = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        result
    }

    async fn ask_for_own(&self, held: &mut Held, scopes: &[String]) -> Result<(), AuthError> {
        let (found, wanted) = self.find().await?;
        let all: BTreeSet<String> = wanted.into_iter().chain(scopes.iter().cloned()).collect();
        let all: Vec<String> = all.into_iter().collect();
        let no_client = || failed("the node's own grant needs oauth.client_id and oauth.client_secret".to_owned());
        let client = grant::configured(&self.0.settings).ok_or_else(no_client)?;
        let asking = Asking { outside: self.outside()?, endpoint: &self.0.endpoint, found: &found, client };
        held.grant = Some(asking.client_credentials(&all).await?);
        Ok(())
    }

    /// Takes what a person gave.
    async fn given(&self, grant: Grant) -> Result<(), AuthError> {
        tracing::info!(
            server = self.0.server,
            issuer = grant.issuer,
            scopes = grant.scopes.join(" "),
            "somebody logged this node in at an MCP server"
        );
        self.keep(&grant);
        *self.0.held.lock().await = Held { grant: Some(grant), looked_for: true, ..Held::default() };
        Ok(())
    }

    fn keep(&self, grant: &Grant) {
        let Some(file) = &self.0.file else { return };
        if let Err(error) = grant.keep(file) {
            tracing::warn!(server = self.0.server, file = %file.display(), %error, "a token is not kept: it is gone with this process");
        }
    }

    async fn held(&self) -> tokio::sync::MutexGuard<'_, Held> {
        let mut held = self.0.held.lock().await;
        if !held.looked_for {
            held.looked_for = true;
            let is_login = self.0.settings.grant == OAuthGrant::Login;
            let file = self.0.file.as_deref().filter(|_| is_login);
            let OAuthSettings { client_id, issuer, .. } = &self.0.settings;
            let fits = |grant: &Grant| {
                issuer.as_ref().is_none_or(|issuer| *issuer == grant.issuer)
                    && client_id.as_ref().is_none_or(|id| *id == grant.client.id)
            };
            held.grant = file.and_then(|file| Grant::kept(file, &self.0.endpoint)).filter(fits);
        }
        held
    }
}
