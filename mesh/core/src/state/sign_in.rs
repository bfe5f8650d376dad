//! Who is signed in: the requests of devices, what operators said to them, and the sessions. Every node and every restart
//! knows them all. What is over counts for nothing from its moment on, and goes with the next change or sweep.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

use super::{State, done};
use crate::{
    Applied, Approval, Approve, Decision, DeviceAsk, DeviceRequest, Effect, Principal, PrincipalId, PrincipalRole,
    Rejection, Revoke, SecretHash, Session, SessionId, SessionKind, SignIn, SignInRejection, Stamp, Timestamp,
    UserCode, limits,
};

/// When another try is worth it after too many asked: requests end within minutes.
const RETRY_AFTER_MS: u64 = 60_000;
/// How long the end of a launched session is remembered, so that a late repetition of what made it does not make it again.
const LAUNCH_REMEMBERED_MS: u64 = 10 * 60_000;
/// How long a request is kept after its time: whoever still asks after it is told that its time is over.
const REQUEST_KEPT_MS: u64 = 5 * 60_000;
/// What sessions of a node's own launcher belong to.
const OPERATOR: &str = "operator";

/// Requests, names and sessions; shared with the copies that snapshots are made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SignIns {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<UserCode, Arc<DeviceRequest>>,
    /// By the hash of its token: that is how each request asks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sessions: BTreeMap<SecretHash, Arc<Session>>,
    /// When each name was approved last: whoever gets it again gets what it owns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<PrincipalId, Timestamp>,
    /// Launched sessions that were revoked, and until when that is remembered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ended: BTreeMap<SecretHash, Timestamp>,
}

impl SignIns {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.sessions.is_empty() && self.names.is_empty() && self.ended.is_empty()
    }

    /// What stays where a cluster begins with the state of another: no credential, only the names.
    pub(super) fn refound(&mut self) {
        *self = Self { names: std::mem::take(&mut self.names), ..Self::default() };
    }

    pub(super) fn has_over(&self, now: Timestamp) -> bool {
        self.requests.values().any(|request| !is_kept(request, now))
            || self.sessions.values().any(|session| session.is_over(now))
            || self.ended.values().any(|until| *until <= now)
    }

    pub(super) fn forget_over(&mut self, now: Timestamp) {
        self.requests.retain(|_, request| is_kept(request, now));
        self.sessions.retain(|_, session| !session.is_over(now));
        self.ended.retain(|_, until| *until > now);
    }

    fn live_requests(&self, now: Timestamp) -> impl Iterator<Item = &DeviceRequest> {
        self.requests.values().map(Arc::as_ref).filter(move |request| request.expires > now)
    }

    fn live_sessions(&self, now: Timestamp) -> impl Iterator<Item = &Session> {
        self.sessions.values().map(Arc::as_ref).filter(move |session| !session.is_over(now))
    }

    fn waiting(&mut self, code: &UserCode, now: Timestamp) -> Result<&mut DeviceRequest, SignInRejection> {
        let found = self.requests.get_mut(code).filter(|request| request.expires > now);
        found.map(Arc::make_mut).ok_or_else(|| SignInRejection::UnknownCode { code: code.clone() })
    }

    /// Makes room for a request of a source, so that nobody who asks often keeps others from asking: what nobody has decided
    /// goes, the oldest first, of the same source where that has too many, else of the one that has the most.
    ///
    /// Fails when everything that is kept was decided.
    fn make_room(&mut self, source: &str, now: Timestamp) -> Result<(), Rejection> {
        let kept = || self.requests.values().filter(|request| is_kept(request, now));
        let mut waiting: BTreeMap<&str, Vec<(Timestamp, &UserCode)>> = BTreeMap::new();
        for request in kept().filter(|request| request.decision.is_none()) {
            waiting.entry(&request.source).or_default().push((request.created, &request.code));
        }
        let of_source = waiting.get(source).filter(|own| own.len() >= limits::MAX_DEVICE_REQUESTS_PER_SOURCE);
        let is_full = kept().count() >= limits::MAX_DEVICE_REQUESTS;
        let crowded = of_source.or_else(|| waiting.values().max_by_key(|all| all.len()).filter(|_| is_full));
        match crowded.and_then(|all| all.iter().min()) {
            Some((_, code)) => {
                let code = (*code).clone();
                self.requests.remove(&code);
                Ok(())
            }
            None if is_full => Err(full("list of sign-ins that wait", limits::MAX_DEVICE_REQUESTS)),
            None => Ok(()),
        }
    }

    fn check_room(&self, name: &PrincipalId, now: Timestamp) -> Result<(), Rejection> {
        if self.live_sessions(now).count() >= limits::MAX_SESSIONS {
            return Err(full("list of sessions", limits::MAX_SESSIONS));
        }
        if self.live_sessions(now).filter(|session| session.name == *name).count() >= limits::MAX_SESSIONS_PER_NAME {
            return Err(full(&format!("list of sessions of {name}"), limits::MAX_SESSIONS_PER_NAME));
        }
        Ok(())
    }

    /// Remembers that a name was approved, and forgets the one that was not for the longest time where there is no room.
    fn remember_name(&mut self, name: &PrincipalId, now: Timestamp) -> Option<Timestamp> {
        let before = self.names.insert(name.clone(), now);
        if self.names.len() > limits::MAX_REMEMBERED_NAMES
            && let Some(oldest) = self.names.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone())
        {
            self.names.remove(&oldest);
        }
        before
    }
}

impl State {
    /// The session that a token opens at this time.
    pub fn session(&self, token: &SecretHash, now: Timestamp) -> Option<&Session> {
        self.sign_ins.sessions.get(token).map(Arc::as_ref).filter(|session| !session.is_over(now))
    }

    /// All sessions that are not over at this time.
    pub fn sessions(&self, now: Timestamp) -> impl Iterator<Item = &Session> {
        self.sign_ins.live_sessions(now)
    }

    /// The requests of devices whose time is not over, decided or not.
    pub fn device_requests(&self, now: Timestamp) -> impl Iterator<Item = &DeviceRequest> {
        self.sign_ins.live_requests(now)
    }

    /// The request of a device, also when its time is over and it was not swept yet.
    pub fn device_request_of(&self, device: &SecretHash) -> Option<&DeviceRequest> {
        self.sign_ins.requests.values().map(Arc::as_ref).find(|request| request.device == *device)
    }

    /// The request under a code.
    pub fn device_request(&self, code: &UserCode, now: Timestamp) -> Option<&DeviceRequest> {
        self.sign_ins.requests.get(code).map(Arc::as_ref).filter(|request| request.expires > now)
    }

    /// When a name was approved last, if it ever was.
    pub fn approved_before(&self, name: &PrincipalId) -> Option<Timestamp> {
        self.sign_ins.names.get(name).copied()
    }

    pub(super) fn sign_in(&mut self, by: &Principal, change: SignIn, stamp: Stamp) -> Result<Applied, Rejection> {
        let now = stamp.at;
        let mut effects = Vec::new();
        match change {
            SignIn::Ask(ask) => self.ask_device(ask, now)?,
            SignIn::Approve(approve) => self.approve_device(approve, now)?,
            SignIn::Deny { code } => deny(self.sign_ins.waiting(&code, now)?)?,
            SignIn::Redeem { device, session, token } => self.redeem_device(&device, session, token, now)?,
            SignIn::Launch { session, token, ttl_ms } => self.launch(session, token, ttl_ms, now)?,
            SignIn::Revoke(which) => {
                if self.revoke(by, &which, now) {
                    effects.push(Effect::SessionsEnded);
                }
            }
            SignIn::Seen { tokens } => {
                for token in tokens.iter().take(limits::MAX_SESSIONS) {
                    if let Some(session) = self.sign_ins.sessions.get_mut(token) {
                        Arc::make_mut(session).seen = Some(now);
                    }
                }
            }
        }
        self.sign_ins.forget_over(now);
        Ok(done(effects))
    }

    fn ask_device(&mut self, ask: DeviceAsk, now: Timestamp) -> Result<(), Rejection> {
        check_role(ask.wants)?;
        let known = self.sign_ins.requests.get(&ask.code).filter(|request| request.expires > now);
        match known {
            Some(request) if request.device == ask.device => return Ok(()),
            Some(_) => return Err(SignInRejection::CodeTaken { code: ask.code }.into()),
            None => {}
        }
        if ask.client.len() > limits::MAX_CLIENT_NAME_BYTES || ask.source.len() > limits::MAX_CLIENT_NAME_BYTES {
            let limit = limits::MAX_CLIENT_NAME_BYTES as u64;
            return Err(Rejection::TooLarge { what: "name of the client in bytes".into(), limit });
        }
        self.sign_ins.make_room(&ask.source, now)?;
        let DeviceAsk { device, code, client, source, wants, ttl_ms } = ask;
        let expires = Timestamp(now.0.saturating_add(ttl_ms.min(limits::MAX_DEVICE_REQUEST_MS)));
        let request =
            DeviceRequest { device, code: code.clone(), client, source, wants, created: now, expires, decision: None };
        self.sign_ins.requests.insert(code, Arc::new(request));
        Ok(())
    }

    fn approve_device(&mut self, approve: Approve, now: Timestamp) -> Result<(), Rejection> {
        let Approve { code, name, role, ttl_ms } = approve;
        check_role(role)?;
        let request = self.sign_ins.waiting(&code, now)?;
        match &request.decision {
            Some(Decision::Approved(known)) if known.name == name && known.role == role => return Ok(()),
            Some(decision) => return Err(decided(&code, decision)),
            None => {}
        }
        // The most powerful role comes first.
        if role < request.wants {
            return Err(SignInRejection::Widened { code, wants: request.wants, role }.into());
        }
        self.sign_ins.check_room(&name, now)?;
        let before = self.sign_ins.remember_name(&name, now);
        let ttl_ms = ttl_ms.min(limits::MAX_SESSION_MS);
        let approval = Approval { name, role, ttl_ms, before, session: None };
        self.sign_ins.waiting(&code, now)?.decision = Some(Decision::Approved(approval));
        Ok(())
    }

    fn redeem_device(
        &mut self,
        device: &SecretHash,
        id: SessionId,
        token: SecretHash,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        let request = self.device_request_of(device).filter(|request| request.expires > now);
        let request = request.ok_or(SignInRejection::UnknownDevice)?;
        let code = request.code.clone();
        let approval = match &request.decision {
            None => return Err(SignInRejection::Undecided { code }.into()),
            Some(Decision::Denied) => return Err(SignInRejection::Denied { code }.into()),
            Some(Decision::Approved(approval)) => approval,
        };
        match &approval.session {
            Some(known) if *known == id => return Ok(()),
            Some(_) => return Err(SignInRejection::Used.into()),
            None => {}
        }
        self.sign_ins.check_room(&approval.name, now)?;
        let session = Session {
            id: id.clone(),
            kind: SessionKind::Device,
            name: approval.name.clone(),
            role: approval.role,
            client: request.client.clone(),
            created: now,
            expires: Timestamp(now.0.saturating_add(approval.ttl_ms)),
            seen: None,
        };
        if let Some(Decision::Approved(approval)) = &mut self.sign_ins.waiting(&code, now)?.decision {
            approval.session = Some(id);
        }
        self.sign_ins.sessions.insert(token, Arc::new(session));
        Ok(())
    }

    fn launch(&mut self, id: SessionId, token: SecretHash, ttl_ms: u64, now: Timestamp) -> Result<(), Rejection> {
        if self.sign_ins.sessions.get(&token).is_some_and(|session| session.expires > now) {
            return Ok(());
        }
        if self.sign_ins.ended.contains_key(&token) {
            return Err(SignInRejection::Ended.into());
        }
        if self.sign_ins.ended.len() >= limits::MAX_SESSIONS {
            return Err(full("list of launched sessions that ended", limits::MAX_SESSIONS));
        }
        let name: PrincipalId = OPERATOR.parse().expect("a constant of this file");
        self.sign_ins.check_room(&name, now)?;
        let expires = Timestamp(now.0.saturating_add(ttl_ms.min(limits::MAX_SESSION_MS)));
        let session = Session {
            id,
            kind: SessionKind::Launch,
            name,
            role: PrincipalRole::Operator,
            client: "launch".to_owned(),
            created: now,
            expires,
            seen: None,
        };
        self.sign_ins.sessions.insert(token, Arc::new(session));
        Ok(())
    }

    /// Ends sessions, and says whether any ended. Whoever is no operator ends its own only: others' look as if they did not
    /// exist, and what does not exist has ended.
    fn revoke(&mut self, by: &Principal, which: &Revoke, now: Timestamp) -> bool {
        let is_own = |name: &PrincipalId| by.is_operator() || matches!(by, Principal::Named { id, .. } if id == name);
        let ends = |session: &Session| match which {
            Revoke::Session(id) => session.id == *id && is_own(&session.name),
            Revoke::Name(name) => session.name == *name && is_own(name),
            Revoke::All => by.is_operator(),
        };
        let ended: Vec<SecretHash> = self
            .sign_ins
            .sessions
            .iter()
            .filter(|(_, session)| ends(session))
            .map(|(token, _)| token.clone())
            .collect();
        for token in &ended {
            let session = self.sign_ins.sessions.remove(token);
            if session.is_some_and(|session| session.kind == SessionKind::Launch) {
                let until = Timestamp(now.0.saturating_add(LAUNCH_REMEMBERED_MS));
                self.sign_ins.ended.insert(token.clone(), until);
            }
        }
        for request in self.sign_ins.requests.values_mut() {
            let Some(Decision::Approved(approval)) = &request.decision else { continue };
            let named = match which {
                Revoke::Session(_) => false,
                Revoke::Name(name) => approval.name == *name && is_own(name),
                Revoke::All => by.is_operator(),
            };
            if named && approval.session.is_none() {
                Arc::make_mut(request).decision = Some(Decision::Denied);
            }
        }
        !ended.is_empty()
    }
}

fn is_kept(request: &DeviceRequest, now: Timestamp) -> bool {
    request.expires.0.saturating_add(REQUEST_KEPT_MS) > now.0
}

fn deny(request: &mut DeviceRequest) -> Result<(), Rejection> {
    match &request.decision {
        Some(decision @ Decision::Approved(Approval { session: Some(_), .. })) => Err(decided(&request.code, decision)),
        Some(Decision::Approved(_) | Decision::Denied) | None => {
            request.decision = Some(Decision::Denied);
            Ok(())
        }
    }
}

fn decided(code: &UserCode, decision: &Decision) -> Rejection {
    let how = match decision {
        Decision::Denied => "it was denied".to_owned(),
        Decision::Approved(Approval { name, session: Some(session), .. }) => {
            format!("it was approved as {name}; `towline auth revoke {session}` ends its session")
        }
        Decision::Approved(Approval { name, role, .. }) => format!("it was approved as {name} ({role})"),
    };
    SignInRejection::Decided { code: code.clone(), how }.into()
}

/// People sign in as users or operators; an agent has a credential of its own.
fn check_role(role: PrincipalRole) -> Result<(), Rejection> {
    match role {
        PrincipalRole::Operator | PrincipalRole::User => Ok(()),
        PrincipalRole::Agent | PrincipalRole::Anonymous => Err(SignInRejection::NoSuchRole { role }.into()),
    }
}

fn full(what: &str, limit: usize) -> Rejection {
    Rejection::Full { what: what.to_owned(), limit: limit as u64, retry_after_ms: RETRY_AFTER_MS }
}
