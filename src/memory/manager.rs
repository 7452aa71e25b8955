//! Executes a program's allocations with its allocator and reports them to the ledger. Prediction and execution share
//! it; they differ only in the backing.

use super::allocator::{self, Allocator, CacheStats, FreeMemory, Location, rounded};
use super::collected::Collected;
use super::leaked::{Leaked, subtract};
use super::out_of_memory::{Failure, OutOfMemory, RefusedRequest};
use super::system::{Backing, System};
use compile::{Action, Program};
use device::{ByRole, DeviceError, Ledger, Pool, Position, Region, Role, Target, Tensor};
use ops::ValueId;

/// The memory of one run of a program.
pub struct MemoryManager<'a, B> {
    pub(super) program: &'a Program,
    pub backing: B,
    pub(super) allocator: Box<dyn Allocator<'a> + 'a>,
    pub(super) ledger: Ledger,
    pub(super) target: Target,
    /// By storage: its location, while it is allocated.
    pub(super) locations: Vec<Option<Location>>,
    /// Leaked storages and their locations.
    leaked_storages: Vec<(ValueId, Location)>,
    leaked: Leaked,
    /// The part of `leaked` that has memory of its own, outside of the allocator's pools.
    leaked_unpooled: Leaked,
    /// Outputs that the current evaluation has collected.
    pub(super) collected: Collected,
    /// Bytes of the elements collected by all evaluations so far, by device.
    pub(super) collected_bytes: [u64; Pool::HOMES.len()],
    /// Statistics of the cache in the cycles that were skipped.
    skipped_stats: CacheStats,
}

/// The state that determines all later allocations of the same code. Leaks with memory of their own are excluded:
/// they only take up space.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryState {
    used: UsageByPool,
    /// Bytes of the collected outputs. Rounded, they can be equal after further batches.
    collected: u64,
    /// `None`: unknown.
    allocator: Option<Vec<u64>>,
}

/// By pool: live and reserved bytes, without leaks that have memory of their own.
type UsageByPool = [(ByRole, u64); Pool::ALL.len()];

impl<'a, B: Backing> MemoryManager<'a, B> {
    /// Creates the allocator that the program was compiled for, which makes its initial requests.
    ///
    /// # Errors
    /// `OutOfMemory`, attributed to the operation with which the program exceeds the limit.
    pub fn new(program: &'a Program, target: &Target, backing: B) -> Result<MemoryManager<'a, B>, Failure> {
        MemoryManager::with_allocator(program, target, backing, allocator::of(program))
    }

    /// Like `new`, with another allocator.
    ///
    /// # Errors
    /// As for `new`.
    pub fn with_allocator(
        program: &'a Program,
        target: &Target,
        backing: B,
        allocator: Box<dyn Allocator<'a> + 'a>,
    ) -> Result<MemoryManager<'a, B>, Failure> {
        let mut manager = MemoryManager {
            program,
            backing,
            allocator,
            ledger: Ledger::default(),
            target: target.clone(),
            locations: vec![None; program.values.len()],
            leaked_storages: Vec::new(),
            leaked: Leaked::default(),
            leaked_unpooled: Leaked::default(),
            collected: Collected::default(),
            collected_bytes: Default::default(),
            skipped_stats: CacheStats::default(),
        };
        let (allocator, mut system) = manager.split();
        match allocator.open(&mut system) {
            Ok(()) => Ok(manager),
            Err(error) => Err(match manager.refused(&error) {
                Some(refused) => {
                    let found = OutOfMemory::at_start(program, target, refused);
                    Failure::OutOfMemory(Box::new(found))
                }
                None => Failure::Device(error),
            }),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The state between two sections: from equal states, the same sections have the same effect. The allocator's own state
    /// is long if many of its blocks have leaked.
    pub(super) fn state(&self, with_allocator: bool) -> MemoryState {
        MemoryState {
            used: self.used(),
            collected: self.collected.total(),
            allocator: with_allocator.then(|| self.allocator.state().collect()),
        }
    }

    /// Whether the current state equals `state`; `None` if all that is known of `state` is equal.
    pub(super) fn matches(&self, state: &MemoryState) -> Option<bool> {
        // The cheap comparison comes first: it detects leaks into an allocator's blocks.
        if self.used() != state.used || self.collected.total() != state.collected {
            return Some(false);
        }
        state.allocator.as_ref().map(|blocks| self.allocator.state().eq(blocks.iter().copied()))
    }

    /// Whether the program leaks into the allocator's own blocks.
    pub(super) fn leaks_blocks(&self) -> bool {
        let actions = self.program.sections.iter().flat_map(|section| &section.code);
        let mut leaked = actions.filter_map(|instruction| match instruction.action {
            Action::Leak(storage) => Some(storage),
            _ => None,
        });
        leaked.any(|storage| self.allocator.unpooled_bytes(storage, &self.target) == 0)
    }

    fn used(&self) -> UsageByPool {
        Pool::ALL.map(|pool| {
            let (usage, (live, reserved)) = (self.ledger.usage(pool), self.leaked_unpooled.of(pool));
            (subtract(&usage.live, live), usage.reserved - reserved)
        })
    }

    /// Statistics of the cache so far, skipped cycles included.
    pub fn cache_stats(&self) -> CacheStats {
        let mut stats = self.allocator.stats();
        stats += self.skipped_stats;
        stats
    }

    /// Bytes of values leaked so far, without the remainders of their blocks.
    pub fn leaked(&self) -> &Leaked {
        &self.leaked
    }

    /// Accounts for `times` skipped cycles, each of which leaks `leaked` and has the cache statistics `stats`.
    pub(super) fn skip_cycles(&mut self, times: u64, leaked: &Leaked, stats: &CacheStats) {
        self.skipped_stats += stats.times(times);
        for (pool, (live, reserved)) in leaked.iter() {
            let (live, reserved) = (live.map(|bytes| times * bytes), times * reserved);
            self.ledger.grown(pool, &live, reserved);
            // Leaks into an allocator's blocks change its state, so such cycles are never skipped: all of this has
            // memory of its own.
            self.leaked.add(pool, &live, reserved);
            self.leaked_unpooled.add(pool, &live, reserved);
        }
    }

    /// Bytes of the elements that evaluations have collected so far, without skipped ones, in the pools of a device.
    pub fn collected_bytes(&self, device: Pool) -> u64 {
        self.collected_bytes[device as usize]
    }

    /// Selects the program of the next section, of the same structure. Storages that are allocated have the same size in it.
    pub fn select(&mut self, program: &'a Program) {
        self.program = program;
        self.allocator.select(program);
    }

    /// Advances to an instruction, and executes it if it allocates or frees.
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
            Action::Collect { value, concatenate } => self.collect(value, concatenate, position),
            Action::EmptyCache => {
                let (allocator, mut system) = self.split();
                Ok(allocator.empty(&mut system)?)
            }
            _ => Ok(()),
        }
    }

    /// The location of a value.
    ///
    /// Panics if its storage is not allocated: the verifier excludes that.
    pub fn tensor(&self, id: ValueId) -> Tensor {
        let value = self.program.value(id);
        let (buffer, offset) = self.locations[value.storage.index()].expect("verified: live while used");
        Tensor { buffer, offset: offset + value.offset, ty: value.ty }
    }

    /// The memory region of a storage.
    pub fn region(&self, storage: ValueId) -> Region {
        let (buffer, offset) = self.locations[storage.index()].expect("verified: live while used");
        Region { buffer, offset, bytes: self.program.ty(storage).bytes() }
    }

    fn allocate(&mut self, storage: ValueId, position: Position) -> Result<(), Failure> {
        let (allocator, mut system) = self.split();
        let location = match allocator.allocate(storage, &mut system) {
            Ok(location) => location,
            Err(error) => {
                let bytes = rounded(self.program, storage, &self.target);
                return Err(self.attribute(error, storage, bytes, position));
            }
        };
        self.locations[storage.index()] = Some(location);
        let remainder = self.allocator.remainder(storage, location, &self.target);
        let value = self.program.value(storage);
        self.ledger.allocated(value.pool, value.role, rounded(self.program, storage, &self.target));
        self.ledger.allocated(value.pool, Role::Rounding, remainder);
        Ok(())
    }

    fn leak(&mut self, storage: ValueId) {
        let location = self.locations[storage.index()].take().expect("verified: freed once");
        self.leaked_storages.push((storage, location));
        let value = self.program.value(storage);
        let mut live = ByRole::default();
        live[value.role] = rounded(self.program, storage, &self.target);
        let reserved = self.allocator.unpooled_bytes(storage, &self.target);
        self.leaked.add(value.pool, &live, reserved);
        if reserved > 0 {
            self.leaked_unpooled.add(value.pool, &live, reserved);
        }
    }

    fn free(&mut self, storage: ValueId) -> Result<(), DeviceError> {
        let location = self.locations[storage.index()].take().expect("verified: freed once");
        self.free_at(storage, location)
    }

    pub(super) fn free_at(&mut self, storage: ValueId, location: Location) -> Result<(), DeviceError> {
        let remainder = self.allocator.remainder(storage, location, &self.target);
        let value = self.program.value(storage);
        self.ledger.freed(value.pool, value.role, rounded(self.program, storage, &self.target));
        self.ledger.freed(value.pool, Role::Rounding, remainder);
        let (allocator, mut system) = self.split();
        allocator.free(storage, location, &mut system)
    }

    /// Frees everything that is still allocated.
    ///
    /// # Errors
    /// A device that fails.
    pub fn close(mut self) -> Result<(), Failure> {
        for id in (0..self.locations.len() as u32).map(ValueId) {
            if self.locations[id.index()].is_some() {
                self.free(id)?;
            }
        }
        self.release_collected()?;
        for (storage, location) in std::mem::take(&mut self.leaked_storages) {
            self.free_at(storage, location)?;
        }
        let (allocator, mut system) = self.split();
        Ok(allocator.close(&mut system)?)
    }

    /// The allocator, and the system that it requests memory from.
    pub(super) fn split(&mut self) -> (&mut (dyn Allocator<'a> + 'a), System<'_>) {
        let MemoryManager { backing, allocator, ledger, target, .. } = self;
        (allocator.as_mut(), System { backing, ledger, target })
    }

    /// The failure of a request of `bytes` bytes for a storage.
    pub(super) fn attribute(
        &self,
        error: DeviceError,
        storage: ValueId,
        bytes: u64,
        position: Position,
    ) -> Failure {
        let Some(refused) = self.refused(&error) else { return Failure::Device(error) };
        let live = self.ledger.usage(refused.pool).live;
        let leaked = self.leaked.of(refused.pool).0.total();
        let found = OutOfMemory::at(self.program, (storage, position), refused, live);
        let pieces =
            if refused.pool == Pool::Device { self.allocator.fragments() } else { FreeMemory::default() };
        // A caching allocator requests whole segments: report the storage's bytes instead.
        let requested = if self.program.allocator.is_caching() { bytes } else { found.requested };
        let collected = self.collected.bytes(self.program, refused.pool);
        Failure::OutOfMemory(Box::new(OutOfMemory { leaked, collected, pieces, requested, ..found }))
    }

    /// The refused request, if the error is that a limit was exceeded.
    fn refused(&self, error: &DeviceError) -> Option<RefusedRequest> {
        let DeviceError::BeyondLimit { pool, bytes } = *error else { return None };
        let device = pool.home();
        let other_pools = self.ledger.usage_at(device).reserved - self.ledger.usage(pool).reserved;
        let capacity = self.target.available_at(device).saturating_sub(other_pools);
        Some(RefusedRequest { pool, requested: bytes, capacity })
    }
}
