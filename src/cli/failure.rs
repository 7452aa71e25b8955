//! How a command ends.

use std::fmt::{self, Display};
use std::process::ExitCode;

use super::output;
use base::brief;

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

impl ExitStatus {
    /// How a command ends of which one part ended so and the next so.
    pub(super) fn and(self, next: ExitStatus) -> ExitStatus {
        match (self, next) {
            (status, ExitStatus::Complete) => status,
            (_, next) => next,
        }
    }
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

fn short(message: impl Display) -> String {
    brief::lines(&message.to_string()).into_owned()
}

impl Failure {
    /// What the user wrote cannot be done, and nothing was.
    pub(super) fn input(message: impl Display) -> Failure {
        Failure { message: short(message), status: ExitStatus::WrongInput }
    }

    /// The machine did not do what it should have.
    pub(super) fn machine(message: impl Display) -> Failure {
        Failure { message: short(message), status: ExitStatus::Failed }
    }

    /// All values, or all failures in one: a user who mends the first should not meet the second only then.
    pub(super) fn collect<T>(
        results: impl IntoIterator<Item = Result<T, Failure>>,
    ) -> Result<Vec<T>, Failure> {
        let mut values = Vec::new();
        let mut failure: Option<Failure> = None;
        for result in results {
            match (result, &mut failure) {
                (Ok(value), _) => values.push(value),
                (Err(first), None) => failure = Some(first),
                (Err(next), Some(first)) => {
                    first.message.push_str("\n\nerror: ");
                    first.message.push_str(&next.message);
                }
            }
        }
        failure.map_or(Ok(values), Err)
    }

    /// Prints the message.
    pub(super) fn report(self) -> ExitStatus {
        output::note(&self.to_string());
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)
    }
}
