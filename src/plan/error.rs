//! Errors of planning.

use compile::Violation;

/// Why an experiment could not be planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A mistake in this program, with the strategy that shows it.
    #[error("strategy `{strategy}`: {violation}")]
    Violation { strategy: String, violation: Violation },
    /// Strategies whose recompute budgets are infeasible, in an experiment without any other run.
    #[error("{0}")]
    InfeasibleBudget(spec::Error),
}
