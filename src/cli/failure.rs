//! How a command ends.

use std::fmt::Display;
use std::process::ExitCode;

use super::output;

/// What a command that did its work leaves to say with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// Everything that was asked for has a result.
    Complete,
    /// Some run failed, or the command could not do its work.
    Failed,
    /// The input is wrong.
    WrongInput,
    /// Ended by a signal, with everything finished so far kept.
    Interrupted,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(match status {
            ExitStatus::Complete => 0,
            ExitStatus::Failed => 1,
            ExitStatus::WrongInput => 2,
            ExitStatus::Interrupted => 130,
        })
    }
}

/// Why a command did not do its work: the message is all that its user reads.
#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    status: ExitStatus,
}

impl Failure {
    /// What the user wrote cannot be done, and nothing was.
    pub(super) fn input(message: impl Display) -> Failure {
        Failure { message: message.to_string(), status: ExitStatus::WrongInput }
    }

    /// The machine did not do what it should have.
    pub(super) fn machine(message: impl Display) -> Failure {
        Failure { message: message.to_string(), status: ExitStatus::Failed }
    }

    /// Several problems, all of which the user should see; `None` if there are none.
    pub(super) fn all(failures: Vec<Failure>) -> Option<Failure> {
        let status = failures.first()?.status;
        let messages: Vec<String> = failures.into_iter().map(|failure| failure.message).collect();
        Some(Failure { message: messages.join("\n\nerror: "), status })
    }

    /// Prints the message.
    pub(super) fn report(self) -> ExitStatus {
        output::note(&format!("error: {}", self.message));
        self.status
    }
}
