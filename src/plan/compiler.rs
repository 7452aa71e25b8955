//! The compiler of whole runs: a recompute budget selects the plan that it compiles.

use std::sync::Arc;

use super::budget::{ParetoFront, ParetoFronts};
use compile::{Compiled, Program, RecomputePlan, Verification, Violation, rank_graphs};
use device::Target;
use spec::RunConfig;

/// The verification of planned programs.
const VERIFICATION: Verification =
    if cfg!(any(test, debug_assertions)) { Verification::AfterEveryPass } else { Verification::Never };

/// Compiles runs for a target, one after the other.
#[derive(Clone, Debug)]
pub struct Compiler<'a> {
    compiler: compile::Compiler<'a>,
    /// Pareto fronts for recompute budgets, shared between compilers.
    pareto_fronts: Arc<ParetoFronts>,
}

impl<'a> Compiler<'a> {
    pub fn new(target: &'a Target) -> Compiler<'a> {
        Compiler::sharing(target, Arc::default())
    }

    /// A compiler that shares Pareto fronts with others for the same target.
    pub(super) fn sharing(target: &'a Target, pareto_fronts: Arc<ParetoFronts>) -> Compiler<'a> {
        Compiler { compiler: compile::Compiler::new(target, VERIFICATION), pareto_fronts }
    }

    /// The Pareto front of a run's recompute plans.
    ///
    /// # Errors
    /// As from `compile`.
    pub(super) fn pareto_front(&self, config: &RunConfig) -> Result<Arc<ParetoFront>, Violation> {
        let target = self.compiler.target();
        self.pareto_fronts.find(&rank_graphs(config, target), config, target)
    }

    /// Compiles a run. Settings without influence on memory (learning rates, seeds) may be those of an earlier run.
    ///
    /// # Errors
    /// A violation of the program's invariants: a mistake in a pass, never in the configuration.
    pub fn compile(&mut self, config: &RunConfig) -> Result<&Compiled, Violation> {
        let target = self.compiler.target();
        let graphs = rank_graphs(config, target);
        let (recompute_plan, _) = self.pareto_fronts.recompute_plan(&graphs, config, target)?;
        self.compiler.compile(config, graphs, &recompute_plan)
    }

    /// Compiles a run without computing offsets: for its work.
    ///
    /// # Errors
    /// As from `compile`.
    pub(super) fn compile_work(&mut self, config: &RunConfig) -> Result<&Compiled, Violation> {
        let target = self.compiler.target();
        let graphs = rank_graphs(config, target);
        let (recompute_plan, _) = self.pareto_fronts.recompute_plan(&graphs, config, target)?;
        self.compiler.compile_unplaced(config, graphs, &recompute_plan)
    }

    /// Compiles a run with a given recompute plan.
    ///
    /// # Errors
    /// As from `compile`.
    pub(super) fn compile_with(
        &mut self,
        config: &RunConfig,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        let graphs = rank_graphs(config, self.compiler.target());
        self.compiler.compile(config, graphs, recompute_plan)
    }

    /// Compiles a run with a given recompute plan, without computing offsets: those of an earlier run stay. Live bytes
    /// are right, addresses are not.
    ///
    /// # Errors
    /// As from `compile`.
    pub(super) fn compile_unplaced(
        &mut self,
        config: &RunConfig,
        recompute_plan: &RecomputePlan,
    ) -> Result<&Compiled, Violation> {
        let graphs = rank_graphs(config, self.compiler.target());
        self.compiler.compile_unplaced(config, graphs, recompute_plan)
    }
}

/// Compiles a run for a target, for planning. In debug builds the program is verified after every pass.
///
/// # Errors
/// A violation of the program's invariants: a mistake in a pass, never in the configuration.
pub fn compile(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    compile_with_verification(config, target, VERIFICATION)
}

/// Compiles a run for training or display: the program is verified after every pass in all builds.
///
/// # Errors
/// As from `compile`, named by the pass.
pub fn compile_verified(config: &RunConfig, target: &Target) -> Result<Program, Violation> {
    compile_with_verification(config, target, Verification::AfterEveryPass)
}

fn compile_with_verification(
    config: &RunConfig,
    target: &Target,
    verification: Verification,
) -> Result<Program, Violation> {
    let graphs = rank_graphs(config, target);
    let (recompute_plan, _) = ParetoFronts::default().recompute_plan(&graphs, config, target)?;
    compile::compile(&graphs, config, target, &recompute_plan, verification)
}
