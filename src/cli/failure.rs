//! Exit status and errors of commands.

use std::fmt::{self, Display};
use std::process::ExitCode;

use super::output;
use base::brief;
use plan::PlanError;

/// The exit code of a command that did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// Every requested run has a result.
    Complete,
    /// Some run failed, or the machine failed the command.
    Failed,
    /// The input is invalid.
    WrongInput,
    /// Ended by a signal; finished results are kept.
    Interrupted,
}

impl ExitStatus {
    /// Combines the statuses of two parts of a command.
    pub(super) fn and(self, next: ExitStatus) -> ExitStatus {
        match (self, next) {
            (status, ExitStatus::Complete) => status,
            (_, next) => next,
        }
    }
}

impl ExitStatus {
    pub(super) fn code(self) -> u8 {
        match self {
            ExitStatus::Complete => 0,
            ExitStatus::Failed => 1,
            ExitStatus::WrongInput => 2,
            ExitStatus::Interrupted => 130,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(status.code())
    }
}

/// Why a command did not do its work, with the complete message for the user.
#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    status: ExitStatus,
}

/// Maximum number of errors that are shown in full.
pub(super) const MOST_SHOWN: usize = 20;

fn short(message: impl Display) -> String {
    brief::lines(&message.to_string()).into_owned()
}

impl Failure {
    /// Invalid input; nothing was done.
    pub(super) fn input(message: impl Display) -> Failure {
        Failure { message: short(message), status: ExitStatus::WrongInput }
    }

    /// The machine failed, such as an unwritable file.
    pub(super) fn machine(message: impl Display) -> Failure {
        Failure { message: short(message), status: ExitStatus::Failed }
    }

    /// All values, or the first failures combined and the number of the others, so that the user sees many mistakes at once.
    pub(super) fn collect<T>(
        results: impl IntoIterator<Item = Result<T, Failure>>,
    ) -> Result<Vec<T>, Failure> {
        let mut values = Vec::new();
        let mut failure: Option<Failure> = None;
        let mut failures = 0;
        for result in results {
            failures += usize::from(result.is_err());
            match (result, &mut failure) {
                (Ok(value), _) => values.push(value),
                (Err(first), None) => failure = Some(first),
                (Err(_), Some(_)) if failures > MOST_SHOWN => {}
                (Err(next), Some(first)) => {
                    first.message.push_str("\n\nerror: ");
                    first.message.push_str(&next.message);
                }
            }
        }
        if let Some(failure) = failure.as_mut().filter(|_| failures > MOST_SHOWN) {
            let more = failures - MOST_SHOWN;
            failure
                .message
                .push_str(&format!("\n\nand {more} more error{}", if more == 1 { "" } else { "s" }));
        }
        failure.map_or(Ok(values), Err)
    }

    /// Prints the message.
    pub(super) fn report(self) -> ExitStatus {
        output::note(&self.to_string());
        self.status
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        match error {
            PlanError::Violation { .. } => Failure::machine(error),
            PlanError::InfeasibleBudget(_) => Failure::input(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)
    }
}
