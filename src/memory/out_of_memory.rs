//! A request that could not be met, and what it is blamed on.

use super::allocator::{Pieces, rounded};
use super::manager::MemoryManager;
use super::system::NoStorage;
use compile::{Action, Program};
use data::WeightsError;
use device::{ByRole, DeviceError, Phase, Pool, Position, Target};
use ops::ValueId;

/// A request that the pool could not meet: a result, not an accident.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    pub pool: Pool,
    pub phase: Phase,
    /// With its scope: `blocks.3.mlp linear-gelu`.
    pub operation: String,
    pub value: String,
    pub requested: u64,
    /// What was live in that pool when it was asked for.
    pub live: ByRole,
    /// What of it had been left behind before.
    pub leaked: u64,
    /// What of the pool was reserved and free.
    pub pieces: Pieces,
}

/// What two limits lack for a whole run: that on the device's memory, and that on the host's, for both of its pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short {
    pub device: u64,
    pub host: u64,
}

impl Short {
    /// What the limit lacks that a pool is under, and what the other one does.
    pub fn of(self, pool: Pool) -> (u64, u64) {
        match pool.home() {
            Pool::Device => (self.device, self.host),
            Pool::Host | Pool::Pinned => (self.host, self.device),
        }
    }
}

/// Why an instruction was not carried out.
#[derive(Debug)]
pub enum Failure {
    OutOfMemory(Box<OutOfMemory>),
    Device(DeviceError),
    /// What parameters start from cannot be read.
    Weights(WeightsError),
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

/// What a pool was asked for beyond its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) pool: Pool,
    pub(super) requested: u64,
    /// All that there could have been in the pool, beside what others hold of the same memory.
    pub(super) room: u64,
}

impl OutOfMemory {
    /// Where a storage was to be allocated: blamed on the first operation that uses it.
    pub(super) fn at(
        program: &Program,
        (storage, Position { section, instruction }): (ValueId, Position),
        Refused { pool, requested, .. }: Refused,
        live: ByRole,
    ) -> OutOfMemory {
        let code = &program.sections[section as usize].code[instruction as usize..];
        let uses = |action: &Action| action.touches().any(|id| program.storage(id) == storage);
        let user = code.iter().find(|next| uses(&next.action)).unwrap_or(&code[0]);
        let name = match &user.action {
            Action::Launch { op, .. } => op.name(),
            Action::Copy { .. } => "copy",
            _ => "allocation",
        };
        OutOfMemory {
            pool,
            phase: code[0].phase,
            operation: format!("{} {name}", program.scope(user.scope).path),
            value: program.full_name(storage),
            requested,
            live,
            leaked: 0,
            pieces: Pieces::default(),
        }
    }

    /// Before the program began: blamed on the first operation with which what is live passes the limit, where any
    /// allocator would run out. Where gaps between values or the rest of a page make the request too large, it is the
    /// first whose place, with the page that it ends in, passes the limit.
    pub(super) fn at_the_opening(program: &Program, target: &Target, refused: Refused) -> OutOfMemory {
        let bytes = |storage| rounded(program, storage, target);
        let live = |live: &ByRole, storage| live.total() + bytes(storage) > refused.room;
        let placed = |_: &ByRole, storage: ValueId| {
            let end = program.places[storage.index()].unwrap_or(0) + bytes(storage);
            end.next_multiple_of(target.page.0) > refused.room
        };
        let first = |like: &dyn Fn(&ByRole, ValueId) -> bool| first(program, target, refused.pool, like);
        let (live, allocation) = first(&live)
            .or_else(|| first(&placed))
            .expect("what is asked for before the program begins ends with the page of its last value");
        OutOfMemory::at(program, allocation, refused, live)
    }
}

/// The first allocation in a pool that is like this, given what is live then, were there memory enough.
fn first(
    program: &Program,
    target: &Target,
    pool: Pool,
    like: &dyn Fn(&ByRole, ValueId) -> bool,
) -> Option<(ByRole, (ValueId, Position))> {
    let mut walk = MemoryManager::new(program, &target.boundless(), NoStorage::default()).ok()?;
    for (section, index) in program.walk() {
        let live = walk.ledger().usage(pool).live;
        if let Action::Allocate(storage) = program.sections[section].code[index].action
            && program.value(storage).pool == pool
            && like(&live, storage)
        {
            let position = Position { section: section as u32, instruction: index as u32 };
            return Some((live, (storage, position)));
        }
        walk.advance(section, index).ok()?;
    }
    None
}
