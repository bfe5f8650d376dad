//! Who may do what. Checked once, at the head of `State::apply`.

use crate::{Command, Occasion, Principal, PrincipalRole, Rejection, SignIn, TriggerChange};

/// Refuses a command that `by` may not give, whatever the state.
pub(crate) fn check(by: &Principal, command: &Command) -> Result<(), Rejection> {
    let allowed = match command {
        // Of the commands to a task only these two, so that none is nested deeper than one level.
        Command::IfGeneration { task, then, .. } => {
            let fits = matches!(then.as_ref(), Command::Continue { task: of, .. } | Command::Cancel { task: of } if of == task);
            fits && check(by, then).is_ok()
        }
        Command::Submit(_)
        | Command::Continue { .. }
        | Command::Cancel { .. }
        | Command::Upload { .. }
        | Command::SetWebhook(_)
        | Command::RemoveWebhook(_)
        | Command::Bridge(_) => match by {
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
        Command::SignIn(change) => match &**change {
            SignIn::Approve(_) | SignIn::Deny { .. } => by.is_operator(),
            // Somebody else than an operator ends its own sessions.
            SignIn::Revoke(_) => by.is_operator() || matches!(by, Principal::Named { .. }),
            SignIn::Ask(_) | SignIn::Redeem { .. } | SignIn::Launch { .. } | SignIn::Seen { .. } => {
                matches!(by, Principal::Node(_))
            }
        },
        Command::Trigger(change) => match &**change {
            TriggerChange::Add(_) | TriggerChange::Remove { .. } => by.is_operator(),
            TriggerChange::Fire(fire) if matches!(fire.occasion, Occasion::Hand { .. }) => by.is_operator(),
            TriggerChange::Declare { node, .. } | TriggerChange::Claim { node, .. } => *by == Principal::Node(*node),
            TriggerChange::Report(_) | TriggerChange::Fire(_) => matches!(by, Principal::Node(_)),
        },
        Command::NodeUp { node, .. } | Command::Certify { node, .. } | Command::ClaimWebhooks { node, .. } => {
            *by == Principal::Node(*node)
        }
        // What is known is replaced by who has looked at it.
        Command::PinTools(pins) => by.is_operator() || (!pins.replaces && matches!(by, Principal::Node(_))),
        Command::Lack(lack) => *by == Principal::Node(lack.node),
        Command::Report(_)
        | Command::ReportWebhook(_)
        | Command::Testify(_)
        | Command::Found { .. }
        | Command::Enrol(_)
        | Command::NodeLost { .. }
        | Command::AssignPending
        | Command::Sweep
        | Command::Archive { .. }
        | Command::Raise { .. } => matches!(by, Principal::Node(_)),
    };
    if allowed { Ok(()) } else { Err(Rejection::NotAllowed { by: by.to_string() }) }
}
