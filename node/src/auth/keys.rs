//! The keys of an issuer, as its key set has them: fetched when they are needed first, kept for a while, and fetched anew when a
//! token names one that is not known.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::jwt::{self, BadToken, Expected, Key};

/// Shortest time between two fetches: a token with an invented key name must not make one each.
const MIN_BETWEEN: Duration = Duration::from_secs(30);
/// How long a fetch may take: a caller waits for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest key set.
const MAX_SET_BYTES: usize = 256 * 1024;
/// Keys of a set that are kept.
const MAX_KEYS: usize = 64;
/// How long keys are used that cannot be fetched anew, beyond the time that they are kept: an issuer may be down for a while,
/// and a key that it has withdrawn must end some time.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// Whose tokens are taken, and where its keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    pub(crate) expected: Expected,
    /// Where the key set is.
    pub(crate) url: String,
    /// How long keys are kept.
    pub(crate) kept: Duration,
}

/// Why a token did not become claims.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotVerified {
    #[error(transparent)]
    Bad(#[from] BadToken),
    #[error("fetch the key set {url}: {reason}")]
    NoKeys { url: String, reason: String },
}

/// Verifies the tokens of an issuer.
#[derive(Debug)]
pub(crate) struct Verifier {
    settings: JwtSettings,
    http: reqwest::Client,
    known: RwLock<Fetched>,
    /// When the keys were asked for last. Who fetches holds it; others who need them wait for what that finds.
    tried: Mutex<Option<Instant>>,
}

#[derive(Debug, Clone, Default)]
struct Fetched {
    keys: Arc<Vec<Key>>,
    /// When these keys came.
    at: Option<Instant>,
}

impl Fetched {
    fn has(&self, name: Option<&str>) -> bool {
        name.is_none_or(|name| self.keys.iter().any(|key| key.is_called(name)))
    }

    fn is_younger_than(&self, limit: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() < limit)
    }
}

impl Verifier {
    /// A verifier that has fetched nothing yet.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn new(settings: JwtSettings) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .timeout(FETCH_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { settings, http, known: RwLock::default(), tried: Mutex::default() })
    }

    /// Whose tokens are taken.
    pub fn settings(&self) -> &JwtSettings {
        &self.settings
    }

    /// The claims of a token.
    ///
    /// # Errors
    /// When it is not good, or nothing is there to tell.
    pub async fn verify(&self, token: &str) -> Result<Map<String, Value>, NotVerified> {
        let expected = &self.settings.expected;
        let parsed = jwt::parse(token, &expected.algorithms)?;
        let keys = self.keys(parsed.key_id.as_deref()).await?;
        Ok(parsed.verify(keys.iter(), expected, jwt::now())?)
    }

    fn known(&self) -> Fetched {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The keys, with the named one if the issuer has it.
    async fn keys(&self, name: Option<&str>) -> Result<Arc<Vec<Key>>, NotVerified> {
        let is_enough = |known: &Fetched| known.is_younger_than(self.settings.kept) && known.has(name);
        let known = self.known();
        if is_enough(&known) {
            return Ok(known.keys);
        }
        let mut tried = self.tried.lock().await;
        let known = self.known();
        if is_enough(&known) {
            return Ok(known.keys);
        }
        let usable = known.is_younger_than(self.settings.kept + GRACE).then_some(known.keys);
        if tried.is_some_and(|tried| tried.elapsed() < MIN_BETWEEN) {
            return usable.ok_or_else(|| self.no_keys("it was tried a moment ago"));
        }
        *tried = Some(Instant::now());
        match self.fetch().await {
            Ok(keys) => {
                let keys = Arc::new(keys);
                let fetched = Fetched { keys: Arc::clone(&keys), at: Some(Instant::now()) };
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = fetched;
                Ok(keys)
            }
            Err(reason) => {
                tracing::warn!(url = self.settings.url, reason, known = usable.is_some(), "fetch a key set");
                usable.ok_or_else(|| self.no_keys(&reason))
            }
        }
    }

    fn no_keys(&self, reason: &str) -> NotVerified {
        NotVerified::NoKeys { url: self.settings.url.clone(), reason: reason.to_owned() }
    }

    async fn fetch(&self) -> Result<Vec<Key>, String> {
        let answer = self.http.get(&self.settings.url).send().await.map_err(|error| crate::error::chain(&error))?;
        if !answer.status().is_success() {
            return Err(format!("HTTP {}", answer.status().as_u16()));
        }
        let (mut set, mut pieces) = (Vec::new(), answer.bytes_stream());
        while let Some(piece) = pieces.next().await {
            set.extend_from_slice(&piece.map_err(|error| crate::error::chain(&error))?);
            if set.len() > MAX_SET_BYTES {
                return Err(format!("it has more than {MAX_SET_BYTES} bytes"));
            }
        }
        let keys = jwt::keys_of_set(&set, MAX_KEYS).map_err(|error| format!("it is no key set: {error}"))?;
        if keys.is_empty() { Err("it has no key that can verify a token".to_owned()) } else { Ok(keys) }
    }
}
