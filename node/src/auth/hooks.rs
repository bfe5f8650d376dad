//! Bounds on calls of webhooks, which show a credential of their own: the same as for all who ask.

use std::time::Instant;

use http::Extensions;
use towline_core::{Principal, PrincipalId, PrincipalRole, TriggerName};

use super::{Auth, Refusal, limiter::Source};
use crate::a2a::listener::PeerAddress;

impl Auth {
    /// Counts a call that shows nothing right, and says how it is refused.
    pub(crate) fn hook_failed(&self, extensions: &Extensions) -> Refusal {
        let source = extensions.get().map(|PeerAddress(address)| Source::of(address.ip()));
        match source.map_or(Ok(()), |source| self.limiter.failed(source, Instant::now())) {
            Ok(()) => {
                tracing::info!(?source, "a call of a webhook shows nothing right");
                Refusal::Hook
            }
            Err(wait) => Refusal::Guessing { wait },
        }
    }

    /// Counts a call: a trigger has the rate of a principal.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn hook_rate(&self, name: &TriggerName) -> Result<(), Refusal> {
        let id: PrincipalId = format!("trigger:{name}").try_into().map_err(|_| Refusal::Failed)?;
        let by = Principal::Named { id, role: PrincipalRole::Agent };
        self.rates.request(&by, Instant::now()).map_err(|wait| Refusal::TooMany { wait })
    }
}
