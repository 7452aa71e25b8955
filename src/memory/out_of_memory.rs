//! A request that failed, and the operation that it is attributed to.

use super::allocator::{FreeMemory, rounded};
use super::manager::MemoryManager;
use super::system::NoStorage;
use compile::{Action, Program};
use data::WeightsError;
use device::{ByRole, DeviceError, Phase, Pool, Position, Target};
use ops::ValueId;

/// A request that exceeded the pool's limit: a result of the run, not an error.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    pub pool: Pool,
    pub phase: Phase,
    /// The optimizer step of the request, from 1. `None` in start-up and in evaluations.
    pub step: Option<u64>,
    /// With its scope: `blocks.3.mlp linear-gelu`.
    pub operation: String,
    pub value: String,
    pub requested: u64,
    /// Live bytes of that pool at the request.
    pub live: ByRole,
    /// The leaked part of `live`.
    pub leaked: u64,
    /// The part of `live` that the evaluation has collected.
    pub collected: u64,
    /// Reserved but free memory of the pool.
    pub pieces: FreeMemory,
}

/// The shortfall of both limits for a whole run: of device memory, and of host memory (both of its pools).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    pub device: u64,
    pub host: u64,
}

impl Shortfall {
    /// The shortfall of the limit that applies to a pool, and that of the other limit.
    pub fn of(self, pool: Pool) -> (u64, u64) {
        match pool.home() {
            Pool::Device => (self.device, self.host),
            Pool::Host | Pool::Pinned => (self.host, self.device),
        }
    }
}

/// Why an instruction failed.
#[derive(Debug)]
pub enum Failure {
    OutOfMemory(Box<OutOfMemory>),
    Device(DeviceError),
    /// Checkpoint tensors cannot be read.
    Weights(WeightsError),
}

impl Failure {
    /// The failure of an optimizer step, counted from 1.
    #[must_use]
    pub fn in_step(mut self, step: u64) -> Failure {
        if let Failure::OutOfMemory(found) = &mut self {
            found.step = Some(step);
        }
        self
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure::Device(error)
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        Failure::Weights(error)
    }
}

/// A request that exceeded a pool's limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedRequest {
    pub(super) pool: Pool,
    pub(super) requested: u64,
    /// Maximum bytes of the pool, given what other pools hold of the same memory.
    pub(super) capacity: u64,
}

impl OutOfMemory {
    /// An allocation that failed, attributed to the first operation that uses the storage.
    pub(super) fn at(
        program: &Program,
        (storage, Position { section, instruction }): (ValueId, Position),
        RefusedRequest { pool, requested, .. }: RefusedRequest,
        live: ByRole,
    ) -> OutOfMemory {
        let code = &program.sections[section as usize].code[instruction as usize..];
        let uses = |action: &Action| action.touches().any(|id| program.storage(id) == storage);
        let user = code.iter().find(|next| uses(&next.action)).unwrap_or(&code[0]);
        let name = match &user.action {
            Action::Launch { op, .. } => op.name(),
            Action::Copy { .. } => "copy",
            Action::Exchange { collective, .. } => collective.name(),
            Action::Collect { .. } => "collect",
            _ => "allocation",
        };
        OutOfMemory {
            pool,
            phase: code[0].phase,
            step: None,
            operation: format!("{} {name}", program.scope(user.scope).path),
            value: program.full_name(storage),
            requested,
            live,
            leaked: 0,
            collected: 0,
            pieces: FreeMemory::default(),
        }
    }

    /// An initial request that failed, attributed to the first operation at which live bytes exceed the limit, where
    /// any allocator would fail; if only gaps or page rounding exceed it, to the first whose storage ends beyond the
    /// limit, its last page included.
    pub(super) fn at_start(program: &Program, target: &Target, refused: RefusedRequest) -> OutOfMemory {
        let bytes = |storage| rounded(program, storage, target);
        let live = |live: &ByRole, storage| live.total() + bytes(storage) > refused.capacity;
        let exceeds_end = |_: &ByRole, storage: ValueId| {
            let end = program.arena_offsets[storage.index()].unwrap_or(0) + bytes(storage);
            end.next_multiple_of(target.page.0) > refused.capacity
        };
        let find = |matches: &dyn Fn(&ByRole, ValueId) -> bool| {
            first_allocation(program, target, refused.pool, matches)
        };
        let (live, step, allocation) = find(&live)
            .or_else(|| find(&exceeds_end))
            .expect("the initial request ends with the page of its last value");
        OutOfMemory { step, ..OutOfMemory::at(program, allocation, refused, live) }
    }
}

/// The first allocation in a pool that matches, given the live bytes of a run without limits, and its optimizer step.
fn first_allocation(
    program: &Program,
    target: &Target,
    pool: Pool,
    matches: &dyn Fn(&ByRole, ValueId) -> bool,
) -> Option<(ByRole, Option<u64>, (ValueId, Position))> {
    let mut manager = MemoryManager::new(program, &target.boundless(), NoStorage::default()).ok()?;
    let instructions: usize = program.sections.iter().map(|section| section.code.len()).sum();
    for (order, (section, index)) in program.liveness_order().enumerate() {
        let live = manager.ledger().usage(pool).live;
        if let Action::Allocate(storage) = program.sections[section].code[index].action
            && program.value(storage).pool == pool
            && matches(&live, storage)
        {
            let position = Position { section: section as u32, instruction: index as u32 };
            // With lazy initialisation, a second step follows the first.
            let step = if order < instructions { 1 } else { 2 };
            let step = program.sections[section].kind.is_in_step().then_some(step);
            return Some((live, step, (storage, position)));
        }
        manager.advance(section, index).ok()?;
    }
    None
}
