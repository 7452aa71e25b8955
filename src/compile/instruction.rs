//! What a program is made of: one thing for a device to do, and where it belongs.

use device::{Event, Phase, Pool, Queue};
use graph::ScopeId;
use ops::{Op, Slice, ValueId};

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Launch {
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        workspace: Option<ValueId>,
    },
    /// Copies a value between pools. Where `from` is a part of whole batches, the samples are copied that the section
    /// sees this time of the one that is trained on.
    Copy {
        queue: Queue,
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
    /// Leaves a storage behind for ever, in the place of freeing it: there is another from now on.
    Leak(ValueId),
    /// Gives back to the system what the allocator keeps and nothing is in.
    EmptyCache,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub action: Action,
    pub scope: ScopeId,
    pub phase: Phase,
    /// Whose processor computes a launch, on memory of its own: the device's, or the host's.
    pub home: Pool,
    /// Whether it repeats part of the forward pass.
    pub recompute: bool,
    /// Whether it is left out from the second time on that its section is gone through.
    pub once: bool,
    /// The slice of a loss that it belongs to: what does is differentiated as soon as its loss is there.
    pub slice: Option<Slice>,
}

impl Instruction {
    pub fn new(action: Action, scope: ScopeId, phase: Phase) -> Instruction {
        Instruction { action, scope, phase, home: Pool::Device, recompute: false, once: false, slice: None }
    }

    /// Whether it computes what the model's own passes do: nothing again, and no update.
    pub fn is_of_model(&self) -> bool {
        let is_update = matches!(&self.action, Action::Launch { op, .. } if op.as_update().is_some());
        !self.recompute && !is_update
    }

    /// The queue it runs on. Allocation follows the order of the compute queue.
    pub fn queue(&self) -> Queue {
        match self.action {
            Action::Launch { .. } => self.home.queue(),
            Action::Copy { queue, .. } | Action::Record { queue, .. } | Action::Wait { queue, .. } => queue,
            Action::Allocate(_) | Action::Free(_) | Action::Leak(_) | Action::EmptyCache => Queue::Compute,
        }
    }
}

impl Action {
    /// The values it reads, the previous versions of what it updates among them.
    pub fn reads(&self) -> &[ValueId] {
        match self {
            Action::Launch { inputs, .. } => inputs,
            Action::Copy { from, .. } => std::slice::from_ref(from),
            _ => &[],
        }
    }

    pub fn writes(&self) -> &[ValueId] {
        match self {
            Action::Launch { outputs, .. } => outputs,
            Action::Copy { to, .. } => std::slice::from_ref(to),
            _ => &[],
        }
    }

    pub fn workspace(&self) -> Option<ValueId> {
        match self {
            Action::Launch { workspace, .. } => *workspace,
            _ => None,
        }
    }

    /// What it launches, by name.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Action::Launch { op, .. } => Some(op.name()),
            _ => None,
        }
    }

    pub fn is_cast(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.is_cast())
    }

    pub fn is_loss(&self) -> bool {
        matches!(self, Action::Launch { op, .. } if op.as_loss().is_some())
    }

    /// All values whose memory it touches.
    pub fn touches(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.reads().iter().chain(self.writes()).copied().chain(self.workspace())
    }
}
