//! Instructions: one action, with its scope, phase and device.

use device::{Collective, Event, Phase, Pool, Queue};
use graph::ScopeId;
use ops::{Op, RowSlice, ValueId};

/// The action of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Launch {
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        workspace: Option<ValueId>,
    },
    /// Copies a value between pools. If `from` is a buffer of whole batches, it copies the samples of the current
    /// iteration of the current batch.
    Copy {
        queue: Queue,
        from: ValueId,
        to: ValueId,
    },
    /// Exchanges numbers with the other ranks. `to` is the next version of `from` in an all-reduce; in the others one of
    /// both is this rank's share of the whole.
    Exchange {
        collective: Collective,
        from: ValueId,
        to: ValueId,
    },
    Record {
        queue: Queue,
        event: Event,
    },
    Wait {
        queue: Queue,
        event: Event,
    },
    Allocate(ValueId),
    Free(ValueId),
    /// Leaks a storage instead of freeing it: the next iteration allocates a new one.
    Leak(ValueId),
    /// Adds a value, with its storage, to the outputs that the evaluation collects: as a further tensor, or concatenated
    /// with those of the passes before. They are freed at the end of the evaluation.
    Collect {
        value: ValueId,
        concatenate: bool,
    },
    /// Returns the allocator's unused memory to the system.
    EmptyCache,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub action: Action,
    pub scope: ScopeId,
    pub phase: Phase,
    /// The device of a launch: `Device` or `Host`. Its operands are in that device's memory.
    pub device: Pool,
    /// Whether it recomputes part of the forward pass.
    pub recompute: bool,
    pub when: When,
    /// The slice of a loss that it belongs to. A slice is differentiated right after its loss is computed.
    pub slice: Option<RowSlice>,
}

/// The iterations of its section that execute an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    #[default]
    Always,
    /// The section's first iteration of the run.
    Once,
    /// The section's last iteration of each step.
    Last,
}

impl Instruction {
    pub fn new(action: Action, scope: ScopeId, phase: Phase) -> Instruction {
        Instruction {
            action,
            scope,
            phase,
            device: Pool::Device,
            recompute: false,
            when: When::Always,
            slice: None,
        }
    }

    /// Whether only the first iteration of its section executes it.
    pub fn is_once(&self) -> bool {
        self.when == When::Once
    }

    /// Whether it counts towards the model's FLOPs: neither recomputation nor an optimizer step.
    pub(crate) fn is_model_work(&self) -> bool {
        let is_update = matches!(&self.action, Action::Launch { op, .. } if op.as_update().is_some());
        !self.recompute && !is_update
    }

    /// The queue it runs on. Allocation follows the order of the compute queue.
    pub fn queue(&self) -> Queue {
        match self.action {
            Action::Launch { .. } => self.device.queue(),
            Action::Copy { queue, .. } | Action::Record { queue, .. } | Action::Wait { queue, .. } => queue,
            Action::Exchange { .. } => Queue::Communication,
            Action::Allocate(_)
            | Action::Free(_)
            | Action::Leak(_)
            | Action::Collect { .. }
            | Action::EmptyCache => Queue::Compute,
        }
    }
}

impl Action {
    /// The values that it reads, including the previous versions of values that it updates.
    pub fn reads(&self) -> &[ValueId] {
        match self {
            Action::Launch { inputs, .. } => inputs,
            Action::Copy { from, .. } | Action::Exchange { from, .. } => std::slice::from_ref(from),
            Action::Collect { value, .. } => std::slice::from_ref(value),
            _ => &[],
        }
    }

    pub(crate) fn writes(&self) -> &[ValueId] {
        match self {
            Action::Launch { outputs, .. } => outputs,
            Action::Copy { to, .. } | Action::Exchange { to, .. } => std::slice::from_ref(to),
            _ => &[],
        }
    }

    pub fn workspace(&self) -> Option<ValueId> {
        match self {
            Action::Launch { workspace, .. } => *workspace,
            _ => None,
        }
    }

    pub fn collective(&self) -> Option<Collective> {
        match self {
            Action::Exchange { collective, .. } => Some(*collective),
            _ => None,
        }
    }

    /// The name of the launched operation.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Action::Launch { op, .. } => Some(op.name()),
            _ => None,
        }
    }

    pub fn is_cast(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.is_cast())
    }

    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.as_loss().is_some())
    }

    /// All values whose memory it touches.
    pub fn touches(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.reads().iter().chain(self.writes()).copied().chain(self.workspace())
    }
}
