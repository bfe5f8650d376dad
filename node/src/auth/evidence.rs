//! Who asks, from the head of a request and its connection alone. The first evidence that is there decides:
//!
//! | | evidence | who it is |
//! |---|---|---|
//! | 1 | the kernel says that the other end of a Unix socket is this user, or root | the operator |
//! | 2 | a session's token | the session's principal, or nobody |
//! | 2 | another bearer, where bearers are checked | the principal of the first bearer rule or token rule, or nobody |
//! | 3 | a verified client certificate | the principal of the first certificate rule; the operator while there is no rule; else nobody |
//! | 4 | nothing of these, and there is an `any` rule | that rule's principal |
//! | 5 | nothing, from this machine, on a loopback bind with nothing configured, and no page asks | the operator |
//! | 6 | anything else | nobody |
//!
//! A bearer that matches nothing is never passed over for what else a request carries: else any junk would be as good as none.
//! One that is good is let in from wherever it comes, however often others failed there: only failures have a bound.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Extensions, HeaderMap, header};
use towline_core::{Labels, Principal};

use super::{
    Auth, KnownBy, Standing,
    certificate::ClientCertificate,
    jwt,
    keys::NotVerified,
    limiter::Source,
    operations::Permits,
    refusal::Refusal,
    rules::{Evidence, Rule, Sha256},
    sessions::Known,
};
use crate::a2a::{
    listener::PeerAddress,
    principal::{self, Caller, Refused},
};

/// A connection is closed with the client certificate that opened it; so long before, its streams say why.
const TOLD_BEFORE: Duration = Duration::from_secs(1);

/// An extension of the requests of a connection whose other end the kernel has told apart: this user, or root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelVouches;

impl Auth {
    /// Who asks.
    ///
    /// # Errors
    /// Why that is nobody.
    pub(crate) async fn identify(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Caller, Refusal> {
        if extensions.get::<KernelVouches>().is_some() {
            return Ok(operator(KnownBy::Socket));
        }
        let peer = extensions.get().map(|PeerAddress(address)| *address);
        if let Some(bearer) = bearer_of(headers) {
            let source = peer.map(|peer| Source::of(peer.ip()));
            if let Some(caller) = self.of_bearer(bearer, source).await? {
                return Ok(caller);
            }
        }
        if let Some(ClientCertificate(facts)) = extensions.get() {
            if self.rules.is_empty() {
                let standing = Standing {
                    until: Some(facts.ends.saturating_sub(TOLD_BEFORE)),
                    ..Standing::unlimited(KnownBy::Certificate)
                };
                return Ok(Caller::new(Principal::Operator, standing));
            }
            let rule = self.rules.iter().find(|rule| rule.takes_certificate(facts));
            let mut caller = rule.and_then(of_rule).ok_or(Refusal::NoRule)?;
            caller.standing.until = Some(facts.ends.saturating_sub(TOLD_BEFORE));
            return Ok(caller);
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.evidence == Evidence::Any) {
            return of_rule(rule).ok_or(Refusal::Nobody);
        }
        if !self.is_implicitly_the_operators() {
            return Err(Refusal::Nobody);
        }
        match principal::local_operator(headers, peer, &self.public_url) {
            Ok(()) => Ok(operator(KnownBy::Local)),
            Err(Refused::Host { host }) => Err(Refusal::Host { host }),
            Err(
                Refused::NotLoopback
                | Refused::Origin
                | Refused::Forwarded { .. }
                | Refused::Nobody
                | Refused::NotAdmitted(_)
                | Refused::Header { .. },
            ) => Err(Refusal::Nobody),
        }
    }

    /// Who shows this bearer; none where bearers are not checked, and it says nothing.
    async fn of_bearer(&self, bearer: &[u8], source: Option<Source>) -> Result<Option<Caller>, Refusal> {
        let bearer = std::str::from_utf8(bearer).unwrap_or_default();
        let known = self.sessions.get().map_or(Known::Foreign, |sessions| sessions.look_up(bearer));
        match known {
            Known::Session { principal, id } => {
                let permits = principal.role().map_or(Permits::NONE, |role| Permits::of(role, &[]));
                let labels = self.labels_of(&principal);
                let (known_by, session) = (KnownBy::Session, Some(id.into()));
                let standing = Standing { permits, known_by, session, labels, until: None };
                return Ok(Some(Caller::new(principal, standing)));
            }
            Known::Foreign if !self.checks_bearers() => return Ok(None),
            Known::Foreign | Known::NoSession => {}
        }
        let found = if known == Known::NoSession { None } else { self.of_checked_bearer(bearer).await? };
        if found.is_some() {
            return Ok(found);
        }
        let counted = source.map_or(Ok(()), |source| self.limiter.failed(source, Instant::now()));
        Err(counted.map_or_else(|wait| Refusal::Guessing { wait }, |()| Refusal::Failed))
    }

    /// What the configuration says of somebody who is signed in: the labels of the rule with the same id, if there is one.
    fn labels_of(&self, principal: &Principal) -> Arc<Labels> {
        let Principal::Named { id, .. } = principal else { return Arc::default() };
        let rule = self.rules.iter().find(|rule| rule.id == id.as_str());
        rule.map(|rule| Arc::clone(&rule.labels)).unwrap_or_default()
    }

    async fn of_checked_bearer(&self, bearer: &str) -> Result<Option<Caller>, Refusal> {
        let hash = Sha256::of(bearer.as_bytes());
        // All of them are looked at, whichever it is.
        let mut taking = self.rules.iter().filter(|rule| rule.takes_bearer(&hash)).collect::<Vec<_>>().into_iter();
        if let Some(rule) = taking.next() {
            return Ok(of_rule(rule));
        }
        let Some(verifier) = self.verifier.as_ref().filter(|_| jwt::looks_signed(bearer)) else { return Ok(None) };
        let claims = match verifier.verify(bearer).await {
            Ok(claims) => claims,
            Err(error @ NotVerified::Bad(_)) => {
                tracing::debug!(%error, "a token is not good");
                return Ok(None);
            }
            Err(NotVerified::NoKeys { .. }) => return Err(Refusal::NoKeys),
        };
        let found = self.rules.iter().find_map(|rule| Some((rule, rule.principal_of_claims(&claims)?)));
        if found.is_none()
            && let Some(scope) = self.rules.iter().find_map(|rule| rule.lacking_scope(&claims))
        {
            return Err(Refusal::Scope { scope: scope.to_owned() });
        }
        let until = jwt::good_until(&claims, &verifier.settings().expected);
        Ok(found.map(|(rule, principal)| Caller::new(principal, Standing { until, ..standing(rule) })))
    }
}

/// The text behind `Bearer`. Two headers, and what is no text, are a bearer that matches nothing; other schemes say nothing here.
pub(crate) fn bearer_of(headers: &HeaderMap) -> Option<&[u8]> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let first = shown.next()?.as_bytes();
    if shown.next().is_some() {
        return Some(&[]);
    }
    let (scheme, rest) = first.split_at_checked("bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(|next| *next == b' ');
    is_bearer.then(|| rest.trim_ascii())
}

fn operator(known_by: KnownBy) -> Caller {
    Caller::new(Principal::Operator, Standing::unlimited(known_by))
}

fn of_rule(rule: &Rule) -> Option<Caller> {
    rule.principal().map(|principal| Caller::new(principal, standing(rule)))
}

fn standing(rule: &Rule) -> Standing {
    let known_by = match rule.evidence {
        Evidence::Bearer(_) => KnownBy::Bearer,
        Evidence::Certificate(_) => KnownBy::Certificate,
        Evidence::Jwt(_) => KnownBy::Token,
        Evidence::Any => KnownBy::Anybody,
    };
    Standing { permits: rule.permits, known_by, session: None, labels: Arc::clone(&rule.labels), until: None }
}
