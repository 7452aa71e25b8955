//! What strategies ask of values and scopes, before any of it is carried out.

use super::Draft;
use super::program::{Action, Instruction, Program};
use crate::device::Pool;
use crate::graph::{Scope, ScopeId};
use crate::ops::ValueId;
use crate::spec::Recompute;

#[derive(Debug)]
pub(crate) struct Marks {
    /// By scope: whether it is computed again in backward, all of it, instead of kept.
    pub(crate) recompute: Vec<bool>,
    /// By scope: whose processor computes it, the device's if nothing is said.
    pub(crate) homes: Vec<Pool>,
    /// Whose processor applies gradients.
    pub(crate) updates: Pool,
    /// Where the optimizer's states live.
    pub(crate) states: Pool,
    /// How many of the launches that something is brought for may lie between bringing it and its own launch.
    pub(crate) ahead: usize,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            recompute: Vec::new(),
            homes: Vec::new(),
            updates: Pool::Device,
            states: Pool::Device,
            ahead: 1,
        }
    }
}

pub(super) fn mark(draft: &mut Draft) {
    let recompute = |scope: &Scope| match draft.config.strategy.recompute {
        Recompute::None => false,
        Recompute::Block => scope.block && scope.parent.is_none(),
    };
    draft.marks.recompute = draft.program.scopes.iter().map(recompute).collect();
    (draft.change_marks)(&mut draft.marks, &draft.program.scopes);
}

impl Marks {
    /// By scope: the outermost of the marked ones that it lies in, which is computed again as a whole.
    pub(super) fn recomputed(&self, scopes: &[Scope]) -> Vec<Option<ScopeId>> {
        let mut units: Vec<Option<ScopeId>> = Vec::with_capacity(scopes.len());
        for (index, scope) in scopes.iter().enumerate() {
            // Parents come before their parts.
            let of_parent = scope.parent.and_then(|parent| units[parent.index()]);
            let own = self.recompute[index].then_some(ScopeId(index as u32));
            units.push(of_parent.or(own));
        }
        units
    }

    /// Whose processor computes a scope.
    pub(super) fn home_of(&self, scope: ScopeId) -> Pool {
        self.homes.get(scope.index()).copied().unwrap_or(Pool::Device)
    }

    /// Whose processor computes an instruction.
    pub(super) fn home(&self, program: &Program, instruction: &Instruction) -> Pool {
        let pool = |id: ValueId| program.value(id).pool;
        match &instruction.action {
            Action::Launch { op, inputs, .. } if op.as_update().is_some() => match pool(inputs[0]) {
                Pool::Device => self.updates,
                Pool::Host => Pool::Host,
            },
            // What is made of nothing is made where it lives.
            Action::Launch { inputs, outputs, .. } if inputs.is_empty() => pool(outputs[0]),
            Action::Launch { .. } => self.home_of(instruction.scope),
            _ => Pool::Device,
        }
    }
}
