//! What the ways of a command ask about it, so that each has one answer for all commands.

use super::Command;
use crate::{BridgeChange, Message, SignIn, TaskId, TriggerChange};

impl Command {
    /// Whether it brings work, as opposed to what the work that was taken comes to: a disk that runs full refuses it first.
    pub fn makes_work(&self) -> bool {
        match self {
            Command::Submit(_)
            | Command::Continue { .. }
            | Command::Found { .. }
            | Command::MintToken { .. }
            | Command::Upload { .. }
            | Command::Note { .. }
            | Command::AddPeer(_)
            | Command::SetWebhook(_)
            | Command::Enrol(_) => true,
            Command::Bridge(change) => matches!(**change, BridgeChange::Register(_)),
            Command::SignIn(change) => !matches!(**change, SignIn::Revoke(_) | SignIn::Deny { .. }),
            Command::Trigger(change) => matches!(**change, TriggerChange::Add(_) | TriggerChange::Fire(_)),
            Command::Report(_)
            | Command::Testify(_)
            | Command::Resolve(_)
            | Command::Cancel { .. }
            | Command::NodeUp { .. }
            | Command::NodeLost { .. }
            | Command::Certify { .. }
            | Command::RemoveNode { .. }
            | Command::SetRole { .. }
            | Command::Drain { .. }
            | Command::Undrain { .. }
            | Command::AssignPending
            | Command::Sweep
            | Command::Archive { .. }
            | Command::Raise { .. }
            | Command::RemovePeer { .. }
            | Command::RemoveWebhook(_)
            | Command::ClaimWebhooks { .. }
            | Command::ReportWebhook(_)
            | Command::PinTools(_)
            | Command::Lack(_) => false,
            Command::IfGeneration { then, .. } => then.makes_work(),
        }
    }

    /// What a client says with it.
    pub fn message_mut(&mut self) -> Option<&mut Message> {
        match self {
            Command::Submit(submission) => Some(&mut submission.message),
            Command::Continue { message, .. } => Some(message),
            Command::IfGeneration { then, .. } => then.message_mut(),
            Command::Trigger(change) => match &mut **change {
                TriggerChange::Fire(fire) => Some(&mut fire.submission.message),
                TriggerChange::Declare { .. }
                | TriggerChange::Add(_)
                | TriggerChange::Remove { .. }
                | TriggerChange::Claim { .. }
                | TriggerChange::Report(_) => None,
            },
            Command::Cancel { .. }
            | Command::Report(_)
            | Command::Resolve(_)
            | Command::Testify(_)
            | Command::Found { .. }
            | Command::MintToken { .. }
            | Command::Enrol(_)
            | Command::NodeUp { .. }
            | Command::NodeLost { .. }
            | Command::Certify { .. }
            | Command::RemoveNode { .. }
            | Command::SetRole { .. }
            | Command::Drain { .. }
            | Command::Undrain { .. }
            | Command::AssignPending
            | Command::Sweep
            | Command::Archive { .. }
            | Command::Upload { .. }
            | Command::Note { .. }
            | Command::Raise { .. }
            | Command::AddPeer(_)
            | Command::RemovePeer { .. }
            | Command::SignIn(_)
            | Command::SetWebhook(_)
            | Command::RemoveWebhook(_)
            | Command::ClaimWebhooks { .. }
            | Command::ReportWebhook(_)
            | Command::Bridge(_)
            | Command::PinTools(_)
            | Command::Lack(_) => None,
        }
    }

    /// The task that its client no longer wants.
    pub fn canceled(&self) -> Option<TaskId> {
        if let Command::IfGeneration { then, .. } = self {
            return then.canceled();
        }
        if let Command::Cancel { task } = self { Some(*task) } else { None }
    }
}
