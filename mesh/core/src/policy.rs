//! Who may do what. Checked once, at the head of `State::apply`.

use crate::{Command, Principal, PrincipalRole, Rejection};

/// Refuses a command that `by` may not give, whatever the state.
pub(crate) fn check(by: &Principal, command: &Command) -> Result<(), Rejection> {
    let allowed = match command {
        Command::Submit(_) | Command::Continue { .. } | Command::Cancel { .. } | Command::Upload { .. } => match by {
            Principal::Operator | Principal::Agent { .. } => true,
            Principal::Named { role, .. } => *role != PrincipalRole::Anonymous,
            Principal::Node(_) => false,
        },
        Command::MintToken { .. }
        | Command::RemoveNode { .. }
        | Command::SetRole { .. }
        | Command::Drain { .. }
        | Command::Undrain { .. }
        | Command::Resolve(_)
        | Command::AddPeer(_)
        | Command::RemovePeer { .. }
        | Command::Note { .. } => by.is_operator(),
        Command::NodeUp { node, .. } | Command::Certify { node, .. } => *by == Principal::Node(*node),
        Command::Report(_)
        | Command::Testify(_)
        | Command::Found { .. }
        | Command::Enrol(_)
        | Command::NodeLost { .. }
        | Command::AssignPending
        | Command::Sweep
        | Command::Archive { .. } => matches!(by, Principal::Node(_)),
    };
    if allowed { Ok(()) } else { Err(Rejection::NotAllowed { by: by.to_string() }) }
}
