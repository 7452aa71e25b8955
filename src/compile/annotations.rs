//! What strategies ask of values and scopes, before any of it is carried out.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::{Bucket, Program};
use super::recompute_plan::RecomputePlan;
use device::{Phase, Pool, Role};
use graph::ScopeId;
use ops::ValueId;
use spec::{Init, Offload, Spill};

#[derive(Debug)]
pub struct Annotations {
    /// By scope: what of it is computed again in backward instead of kept.
    pub recompute: RecomputePlan,
    /// By scope: whose processor computes it, the device's if nothing is said.
    pub homes: Vec<Pool>,
    /// Whose processor measures, clips and applies gradients.
    pub updates: Pool,
    /// Where the optimizer's states live.
    pub states: Pool,
    pub parameters: Pool,
    /// The parameters that live with the host because their layer does.
    placed: Vec<ValueId>,
    pub gradients: Pool,
    /// Which of the host's pools offloading uses, for what it keeps there and for what its work takes there.
    pub host: Pool,
    /// Where parameters are made, in pageable memory as the field's tools do; `None`: where they live.
    pub made: Option<Pool>,
    /// From how many bytes on what backward needs of the forward pass leaves the device until then; `None`: it stays.
    pub spilled: Option<u64>,
    /// How many layers before the one that needs it something is brought; none: right before its use.
    pub ahead: usize,
}

impl Default for Annotations {
    fn default() -> Annotations {
        Annotations {
            recompute: RecomputePlan::default(),
            homes: Vec::new(),
            updates: Pool::Device,
            states: Pool::Device,
            parameters: Pool::Device,
            placed: Vec::new(),
            gradients: Pool::Device,
            host: Pool::Pinned,
            made: None,
            spilled: None,
            ahead: 1,
        }
    }
}

pub(super) fn mark(draft: &mut Draft) {
    draft.annotations.recompute = draft.recompute_plan.clone();
    draft.annotations.made = match draft.config.strategy.init {
        Init::Device | Init::Lazy => None,
        Init::Host => Some(Pool::Host),
    };
    if let Some(pool) = draft.annotations.made {
        make_plainly_at(&mut draft.program, pool);
    }
    offload(&mut draft.annotations, draft.config.strategy.offload);
    (draft.change_annotations)(&mut draft.annotations, &draft.program.scopes);
    let buckets = draft.program.buckets.iter().map(|bucket| bucket.parameters);
    draft.annotations.placed =
        buckets.filter(|&id| draft.program.value(id).pool.home() == Pool::Host).collect();
    move_parameters(&mut draft.program, draft.annotations.parameters);
}

fn offload(annotations: &mut Annotations, offload: Offload) {
    let Offload { parameters, optimizer, activations, pinned, ahead } = offload;
    annotations.host = if pinned { Pool::Pinned } else { Pool::Host };
    if parameters {
        annotations.parameters = annotations.host;
    }
    if optimizer {
        (annotations.states, annotations.gradients, annotations.updates) =
            (annotations.host, annotations.host, Pool::Host);
    }
    if let Spill::From(least) = activations {
        annotations.spilled = Some(least.0);
    }
    annotations.ahead = ahead;
}

/// What parameters are, before they become what they are stored as.
fn make_plainly_at(program: &mut Program, pool: Pool) {
    let plain: Vec<ValueId> = program.stand_ins.keys().copied().collect();
    for id in plain {
        program.values[id.index()].pool = pool;
    }
}

/// They have memory already: those of layers that are placed on the host stay there.
fn move_parameters(program: &mut Program, pool: Pool) {
    let buckets: Vec<ValueId> = program.buckets.iter().flat_map(Bucket::stored).collect();
    let moved = program.marked(&buckets);
    // What is stored as a parameter is made where that is.
    let goes_along = |id: ValueId| {
        let is_here = program.value(id).pool == Pool::Device;
        is_here && moved[program.storage(program.stands_for(id)).index()]
    };
    let go_along: Vec<bool> = (0..).map(ValueId).take(program.values.len()).map(goes_along).collect();
    for (value, _) in program.values.iter_mut().zip(go_along).filter(|(_, goes)| *goes) {
        value.pool = pool;
    }
}

/// Whether it is what a parameter begins with.
fn is_first_value(program: &Program, instruction: &Instruction, outputs: &[ValueId]) -> bool {
    instruction.phase == Phase::Start && program.value(outputs[0]).role == Role::Parameter
}

impl Annotations {
    /// Where something of a bucket lives whose parameters these are, if it is for others to say.
    pub(super) fn beside(&self, parameters: ValueId, otherwise: Pool) -> Pool {
        if self.placed.contains(&parameters) { Pool::Host.workplace() } else { otherwise }
    }

    /// Whose processor computes a scope.
    pub(super) fn home_of(&self, scope: ScopeId) -> Pool {
        self.homes.get(scope.index()).copied().unwrap_or(Pool::Device)
    }

    /// Where what is worked on at a home is for the time of that, if it does not live there.
    pub(super) fn at_work(&self, home: Pool, phase: Phase) -> Pool {
        let is_offloaded = home == Pool::Host && phase == Phase::Update && self.updates == Pool::Host;
        match self.made {
            Some(pool) if home == Pool::Host && phase == Phase::Start => pool,
            _ if is_offloaded => self.host,
            _ => home.workplace(),
        }
    }

    /// Whose processor computes an instruction.
    pub(super) fn home(&self, program: &Program, instruction: &Instruction) -> Pool {
        let home = |id: ValueId| program.value(id).pool.home();
        match &instruction.action {
            Action::Launch { op, outputs, .. } if op.as_update().is_some() => {
                self.beside(program.storage(outputs[0]), self.updates).home()
            }
            // Files are read into the host's memory.
            Action::Launch { op, .. } if op.stored_site().is_some() => Pool::Host,
            Action::Launch { outputs, .. } if is_first_value(program, instruction, outputs) => {
                self.made.map_or_else(|| home(outputs[0]), Pool::home)
            }
            // What is there from the start, or is made of nothing, is made where it lives.
            Action::Launch { inputs, outputs, .. }
                if inputs.is_empty() || instruction.phase == Phase::Start =>
            {
                home(outputs[0])
            }
            Action::Launch { .. } if instruction.phase == Phase::Update => self.updates,
            Action::Launch { .. } => self.home_of(instruction.scope),
            _ => Pool::Device,
        }
    }
}
