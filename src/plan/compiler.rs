//! The compiler of whole runs: a recompute budget selects the plan that it compiles.

use std::sync::Arc;

use super::budget::{InfeasibleBudget, ParetoFront, ParetoFronts};
use compile::{Compiled, Program, RecomputePlan, Violation, rank_graphs};
use device::Target;
use spec::RunConfig;

/// Whether what is planned is verified after every pass.
const VERIFIED: bool = cfg!(any(test, debug_assertions));

/// Compiles one run after the other for a target.
#[derive(Clone, Debug)]
pub struct Compiler<'a> {
    compiler: compile::Compiler<'a>,
    /// What meets budgets, for all who share it.
    frontiers: Arc<ParetoFronts>,
}

impl<'a> Compiler<'a> {
    pub fn new(target: &'a Target) -> Compiler<'a> {
        Compiler::sharing(target, Arc::default())
    }

    /// One of several for the same target.
    pub fn sharing(target: &'a Target, frontiers: Arc<ParetoFronts>) -> Compiler<'a> {
        Compiler { compiler: compile::Compiler::new(target, VERIFIED), frontiers }
    }

    /// What a run may compute again to keep within a budget.
    ///
    /// # Errors
    /// As from `compile`.
    pub fn frontier(&self, config: &RunConfig) -> Result<Arc<ParetoFront>, Violation> {
        let target = self.compiler.target();
        self.frontiers.find(&rank_graphs(config, target), config, target)
    }

    /// Compiles a run. What memory does not depend on (rates, seeds) may be that of a run before.
    ///
    /// # Errors
    /// A violation of the program's invariants: a mistake in a pass, never in the configuration.
    pub fn compile(&mut self, config: &RunConfig) -> Result<&Compiled, Violation> {
        Ok(self.compile_within_budget(config)?.0)
    }

    /// The same, and the memory budget that no recompute plan meets.
    ///
    /// # Errors
    /// As from `compile`.
    pub fn compile_within_budget(
        &mut self,
        config: &RunConfig,
    ) -> Result<(&Compiled, Option<InfeasibleBudget>), Violation> {
        let target = self.compiler.target();
        let graphs = rank_graphs(config, target);
        let (recompute_plan, unmet) = self.frontiers.recompute_plan(&graphs, config, target)?;
        Ok((self.compiler.compile(config, graphs, &recompute_plan)?, unmet))
    }

    /// The same with a given recompute plan.
    ///
    /// # Errors
    /// As from `compile`.
    pub fn compile_with(
        &mut self,
        config: &RunConfig,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        let graphs = rank_graphs(config, self.compiler.target());
        self.compiler.compile(config, graphs, recompute_plan)
    }

    /// The same but for the places of storages, which are any run's: what is live is right, but not where it is.
    ///
    /// # Errors
    /// As from `compile`.
    pub fn compile_unplaced(
        &mut self,
        config: &RunConfig,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        let graphs = rank_graphs(config, self.compiler.target());
        self.compiler.compile_unplaced(config, graphs, recompute_plan)
    }
}

/// Compiles a run for a target: what is planned. In debug builds the program is verified after every pass.
///
/// # Errors
/// A violation of the program's invariants: a mistake in a pass, never in the configuration.
pub fn compile(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    compile_checked(config, target, VERIFIED)
}

/// The same, verified after every pass in all builds: what is going to be trained, or shown.
///
/// # Errors
/// As from `compile`, named by the pass.
pub fn compile_verified(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    compile_checked(config, target, true)
}

fn compile_checked(config: &RunConfig, target: &Target, verified: bool) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    let (recompute_plan, _) = ParetoFronts::default().recompute_plan(&graphs, config, target)?;
    compile::compile(&graphs, config, target, &recompute_plan, verified)
}
