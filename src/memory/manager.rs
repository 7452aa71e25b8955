//! Carries out a program's allocations with its allocator, and tells the ledger. Prediction and execution share it:
//! they differ in the backing alone.

use super::allocator::{self, Allocator, CacheWork, Location, Pieces, rounded};
use super::leaked::{Leaked, less};
use super::out_of_memory::{Failure, OutOfMemory, Refused};
use super::system::{Backing, System};
use compile::{Action, Program};
use device::{ByRole, DeviceError, Ledger, Pool, Position, Region, Target, Tensor};
use ops::ValueId;

/// The memory of one run of a program.
pub struct MemoryManager<'a, B> {
    program: &'a Program,
    pub backing: B,
    allocator: Box<dyn Allocator + 'a>,
    ledger: Ledger,
    target: Target,
    /// By storage: where it is, while it is allocated.
    locations: Vec<Option<Location>>,
    /// Storages that were left behind, and where.
    left_behind: Vec<(ValueId, Location)>,
    leaked: Leaked,
    /// What of it has memory that the allocator keeps no account of.
    leaked_apart: Leaked,
    /// What a cache did while it was not gone through.
    skipped_work: CacheWork,
}

/// What decides what becomes of memory from a moment on, beside the code that follows. What was left behind in memory of its
/// own has no part in it but for the room that it takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State {
    used: Used,
    allocator: Vec<u64>,
}

/// By pool: what is live, and what is reserved, without what was left behind in memory of its own.
type Used = [(ByRole, u64); Pool::ALL.len()];

impl<'a, B: Backing> MemoryManager<'a, B> {
    /// With the allocator that the program was compiled for, which makes the requests that it begins with.
    ///
    /// # Errors
    /// `OutOfMemory`, blamed on the operation with which the program passes the limit.
    pub fn new(program: &'a Program, target: &Target, backing: B) -> Result<MemoryManager<'a, B>, Failure> {
        MemoryManager::with_allocator(program, target, backing, allocator::of(program))
    }

    /// With any allocator.
    ///
    /// # Errors
    /// As for `new`.
    pub fn with_allocator(
        program: &'a Program,
        target: &Target,
        backing: B,
        allocator: Box<dyn Allocator + 'a>,
    ) -> Result<MemoryManager<'a, B>, Failure> {
        let mut manager = MemoryManager {
            program,
            backing,
            allocator,
            ledger: Ledger::default(),
            target: target.clone(),
            locations: vec![None; program.values.len()],
            left_behind: Vec::new(),
            leaked: Leaked::default(),
            leaked_apart: Leaked::default(),
            skipped_work: CacheWork::default(),
        };
        let (allocator, mut system) = manager.parts();
        match allocator.open(&mut system) {
            Ok(()) => Ok(manager),
            Err(error) => Err(match manager.refused(&error) {
                Some(refused) => {
                    let found = OutOfMemory::at_the_opening(program, target, refused);
                    Failure::OutOfMemory(Box::new(found))
                }
                None => Failure::Device(error),
            }),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Between two sections: if it is equal at two moments, the same sections have the same effect after each.
    pub(super) fn state(&self) -> State {
        State { used: self.used(), allocator: self.allocator.state().collect() }
    }

    /// Whether the state is this one.
    pub(super) fn is_in(&self, state: &State) -> bool {
        // What takes no time is looked at first: each step that leaves something in an allocator's blocks tells there.
        self.used() == state.used && self.allocator.state().eq(state.allocator.iter().copied())
    }

    fn used(&self) -> Used {
        Pool::ALL.map(|pool| {
            let (usage, (live, reserved)) = (self.ledger.usage(pool), self.leaked_apart.of(pool));
            (less(&usage.live, live), usage.reserved - reserved)
        })
    }

    /// What a cache did so far.
    pub fn cache_work(&self) -> CacheWork {
        let mut work = self.allocator.work();
        work += self.skipped_work;
        work
    }

    /// What was left behind so far.
    pub fn leaked(&self) -> &Leaked {
        &self.leaked
    }

    /// As much is left behind again, and done with a cache, so many times.
    pub(super) fn repeat(&mut self, times: u64, leaked: &Leaked, work: &CacheWork) {
        self.skipped_work += work.times(times);
        for (pool, (live, reserved)) in leaked.iter() {
            let (live, reserved) = (live.map(|bytes| times * bytes), times * reserved);
            self.ledger.grown(pool, &live, reserved);
            // What is left in an allocator's blocks is never as it was.
            self.leaked.add(pool, &live, reserved);
            self.leaked_apart.add(pool, &live, reserved);
        }
    }

    /// Says which instruction comes next, and allocates or frees if that is what it does.
    ///
    /// # Errors
    /// `OutOfMemory` if the limit or the backing store cannot meet a request.
    pub fn advance(&mut self, section: usize, index: usize) -> Result<(), Failure> {
        let instruction = &self.program.sections[section].code[index];
        let position = Position { section: section as u32, instruction: index as u32 };
        self.ledger.advance(instruction.phase, position);
        match instruction.action {
            Action::Allocate(storage) => self.allocate(storage, position),
            Action::Free(storage) => Ok(self.free(storage)?),
            Action::Leak(storage) => {
                self.leak(storage);
                Ok(())
            }
            Action::EmptyCache => {
                let (allocator, mut system) = self.parts();
                Ok(allocator.empty(&mut system)?)
            }
            _ => Ok(()),
        }
    }

    /// Where a value is.
    ///
    /// Panics if its storage is not allocated: the verifier rules that out.
    pub fn tensor(&self, id: ValueId) -> Tensor {
        let value = self.program.value(id);
        let (buffer, offset) = self.locations[value.storage.index()].expect("verified: alive while used");
        Tensor { buffer, offset: offset + value.offset, ty: value.ty }
    }

    /// A storage with its rounding.
    pub fn region(&self, storage: ValueId) -> Region {
        let (buffer, offset) = self.locations[storage.index()].expect("verified: alive while used");
        Region { buffer, offset, bytes: self.program.ty(storage).bytes() }
    }

    fn allocate(&mut self, storage: ValueId, position: Position) -> Result<(), Failure> {
        let (allocator, mut system) = self.parts();
        let location = match allocator.allocate(storage, &mut system) {
            Ok(location) => location,
            Err(error) => return Err(self.blame(error, storage, position)),
        };
        self.locations[storage.index()] = Some(location);
        let value = self.program.value(storage);
        self.ledger.allocated(value.pool, value.role, rounded(self.program, storage, &self.target));
        Ok(())
    }

    fn leak(&mut self, storage: ValueId) {
        let location = self.locations[storage.index()].take().expect("verified: freed once");
        self.left_behind.push((storage, location));
        let value = self.program.value(storage);
        let mut live = ByRole::default();
        live[value.role] = rounded(self.program, storage, &self.target);
        let reserved = self.allocator.asked_for(storage, &self.target);
        self.leaked.add(value.pool, &live, reserved);
        if reserved > 0 {
            self.leaked_apart.add(value.pool, &live, reserved);
        }
    }

    fn free(&mut self, storage: ValueId) -> Result<(), DeviceError> {
        let location = self.locations[storage.index()].take().expect("verified: freed once");
        self.free_at(storage, location)
    }

    fn free_at(&mut self, storage: ValueId, location: Location) -> Result<(), DeviceError> {
        let value = self.program.value(storage);
        self.ledger.freed(value.pool, value.role, rounded(self.program, storage, &self.target));
        let (allocator, mut system) = self.parts();
        allocator.free(storage, location, &mut system)
    }

    /// Gives back whatever is still held.
    ///
    /// # Errors
    /// A device that fails.
    pub fn close(mut self) -> Result<(), Failure> {
        for id in (0..self.locations.len() as u32).map(ValueId) {
            if self.locations[id.index()].is_some() {
                self.free(id)?;
            }
        }
        for (storage, location) in std::mem::take(&mut self.left_behind) {
            self.free_at(storage, location)?;
        }
        let (allocator, mut system) = self.parts();
        Ok(allocator.close(&mut system)?)
    }

    /// The allocator, and what it asks memory of.
    fn parts(&mut self) -> (&mut (dyn Allocator + 'a), System<'_>) {
        let MemoryManager { backing, allocator, ledger, target, .. } = self;
        (allocator.as_mut(), System { backing, ledger, target })
    }

    fn blame(&self, error: DeviceError, storage: ValueId, position: Position) -> Failure {
        let Some(refused) = self.refused(&error) else { return Failure::Device(error) };
        let live = self.ledger.usage(refused.pool).live;
        let leaked = self.leaked.of(refused.pool).0.total();
        let found = OutOfMemory::at(self.program, (storage, position), refused, live);
        let pieces = if refused.pool == Pool::Device { self.allocator.pieces() } else { Pieces::default() };
        // What a cache asks for is not what it was asked for.
        let requested = match self.program.allocator.is_caching() {
            true => rounded(self.program, storage, &self.target),
            false => found.requested,
        };
        Failure::OutOfMemory(Box::new(OutOfMemory { leaked, pieces, requested, ..found }))
    }

    /// What the limit has no room for, if that is what went wrong.
    fn refused(&self, error: &DeviceError) -> Option<Refused> {
        let DeviceError::BeyondLimit { pool, bytes } = *error else { return None };
        let home = pool.home();
        let of_others = self.ledger.usage_at(home).reserved - self.ledger.usage(pool).reserved;
        let room = self.target.available_at(home).saturating_sub(of_others);
        Some(Refused { pool, requested: bytes, room })
    }
}
