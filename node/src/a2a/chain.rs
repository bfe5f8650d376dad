//! A message that another mesh delegates carries the chain above it. It is nobody's proof of anything: it only makes us refuse
//! what would go in a circle, or has come too far.

use towline_a2a::{Field, WireError};
use towline_actors::MAX_DEPTH;
use towline_core::{CHAIN_KEY, Command, Message, Principal, Rejection, chain_in};

use super::A2aSettings;

/// How many delegations the message says lie above it.
pub(super) fn length_of(message: &Message) -> u32 {
    u32::try_from(chain_in(message).len()).unwrap_or(u32::MAX)
}

/// Refuses a message whose chain is too long, or holds a task of this mesh that the same agent does, or by which this mesh has
/// come to its own door: a user's delegation would be the operator's from there on.
pub(super) fn check(settings: &A2aSettings, principal: &Principal, command: &Command) -> Result<(), WireError> {
    let Command::Submit(submission) = command else { return Ok(()) };
    let chain = chain_in(&submission.message);
    if chain.len() > MAX_DEPTH {
        return Err(Rejection::TooManyHops { limit: u32::try_from(MAX_DEPTH).unwrap_or(u32::MAX) }.into());
    }
    if principal.is_operator() && settings.cluster.local(|state| state.comes_from_itself(&chain)) {
        let problem = "says that this mesh has sent it to itself, where it would count as the operator's: agents of one \
                       mesh delegate to each other by name, not by a peer that leads back here";
        return Err(Field::new(format!("message.metadata[{CHAIN_KEY}]"), problem).into());
    }
    match settings.cluster.local(|state| state.closes_circle(&chain, &submission.agent)) {
        Some(link) => {
            let problem = format!("task {} of agent {} waits for this: it would go in a circle", link.task, link.agent);
            Err(Field::new(format!("message.metadata[{CHAIN_KEY}]"), problem).into())
        }
        None => Ok(()),
    }
}
