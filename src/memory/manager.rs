//! Carries out a program's allocations against a backing store, and tells the ledger. Prediction and execution
//! share it: they differ in the backing alone.

use crate::compile::{Action, Program};
use crate::device::{Buffer, ByRole, DeviceError, Ledger, Phase, Pool, Position, Region, Target, Tensor};
use crate::ops::ValueId;

/// Where memory comes from.
pub trait Backing {
    /// Memory of this many bytes, a multiple of the target's page.
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError>;

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError>;
}

/// A request that the pool could not meet: a result, not an accident.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    pub pool: Pool,
    pub phase: Phase,
    /// With its scope: `blocks.3.mlp linear-gelu`.
    pub operation: String,
    pub value: String,
    pub requested: u64,
    /// What the limit lacked to meet it.
    pub short: u64,
    /// What was live when it was asked for.
    pub live: ByRole,
}

/// Why an instruction was not carried out.
#[derive(Debug)]
pub enum Failure {
    OutOfMemory(Box<OutOfMemory>),
    Device(DeviceError),
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure::Device(error)
    }
}

/// The memory of one run of a program.
pub struct Manager<'a, B> {
    program: &'a Program,
    pub backing: B,
    ledger: Ledger,
    target: Target,
    arenas: [Option<Buffer>; Pool::ALL.len()],
    /// By storage: where it is, while it is allocated.
    locations: Vec<Option<(Buffer, u64)>>,
}

impl<'a, B: Backing> Manager<'a, B> {
    /// With an arena, makes its one request for each pool.
    ///
    /// # Errors
    /// `OutOfMemory`, attributed to the first operation whose placed value passes the limit.
    pub fn new(program: &'a Program, target: &Target, backing: B) -> Result<Manager<'a, B>, Failure> {
        let mut manager = Manager {
            program,
            backing,
            ledger: Ledger::default(),
            target: target.clone(),
            arenas: [None; Pool::ALL.len()],
            locations: vec![None; program.values.len()],
        };
        for pool in Pool::ALL {
            let bytes = program.arenas[pool as usize];
            if bytes > 0 {
                let short = manager.short_of(pool, bytes);
                let buffer = match short {
                    0 => manager.backing.request(pool, bytes),
                    _ => Err(DeviceError::OutOfMemory { pool, bytes }),
                };
                let limit = if short > 0 { bytes - short } else { 0 };
                let buffer = buffer.map_err(|error| manager.attribute(error, pool, limit))?;
                manager.ledger.reserved(pool, bytes);
                manager.arenas[pool as usize] = Some(buffer);
            }
        }
        Ok(manager)
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
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
            Action::Allocate(storage) => self.allocate(storage, section, index),
            Action::Free(storage) => self.free(storage),
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

    fn allocate(&mut self, storage: ValueId, section: usize, index: usize) -> Result<(), Failure> {
        let value = self.program.value(storage);
        let (pool, role) = (value.pool, value.role);
        let location = match (self.arenas[pool as usize], self.program.places[storage.index()]) {
            (Some(arena), Some(offset)) => (arena, offset),
            _ => {
                let bytes = value.ty.bytes().next_multiple_of(self.target.page.0);
                let short = self.short_of(pool, bytes);
                let buffer = match short {
                    0 => self.backing.request(pool, bytes),
                    _ => Err(DeviceError::OutOfMemory { pool, bytes }),
                };
                let buffer = buffer.map_err(|error| match error {
                    DeviceError::OutOfMemory { .. } => {
                        self.out_of_memory(storage, section, index, bytes, short)
                    }
                    error => Failure::Device(error),
                })?;
                self.ledger.reserved(pool, bytes);
                (buffer, 0)
            }
        };
        self.locations[storage.index()] = Some(location);
        self.ledger.allocated(pool, role, self.rounded(storage));
        Ok(())
    }

    fn free(&mut self, storage: ValueId) -> Result<(), Failure> {
        let value = self.program.value(storage);
        let (pool, role) = (value.pool, value.role);
        let (buffer, _) = self.locations[storage.index()].take().expect("verified: freed once");
        self.ledger.freed(pool, role, self.rounded(storage));
        if self.arenas[pool as usize] != Some(buffer) {
            self.backing.give_back(buffer)?;
            self.ledger.returned(pool, self.rounded(storage));
        }
        Ok(())
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
        for arena in self.arenas.into_iter().flatten() {
            self.backing.give_back(arena)?;
        }
        Ok(())
    }

    /// Bytes that a storage takes of its pool.
    fn rounded(&self, storage: ValueId) -> u64 {
        rounded(self.program, storage, &self.target)
    }

    /// By how much the pool would pass its limit.
    fn short_of(&self, pool: Pool, bytes: u64) -> u64 {
        match pool {
            Pool::Device => {
                (self.ledger.usage(pool).reserved + bytes).saturating_sub(self.target.available())
            }
            Pool::Host => 0,
        }
    }

    fn out_of_memory(
        &self,
        storage: ValueId,
        section: usize,
        index: usize,
        requested: u64,
        short: u64,
    ) -> Failure {
        let program = self.program;
        let code = &program.sections[section].code;
        let reader =
            code[index..].iter().find(|next| next.action.touches().any(|id| program.storage(id) == storage));
        let instruction = reader.unwrap_or(&code[index]);
        let name = match &instruction.action {
            Action::Launch { op, .. } => op.name(),
            Action::Copy { .. } => "copy",
            _ => "allocation",
        };
        let pool = program.value(storage).pool;
        Failure::OutOfMemory(Box::new(OutOfMemory {
            pool,
            phase: code[index].phase,
            operation: format!("{} {name}", program.scope(instruction.scope).path),
            value: program.full_name(storage),
            requested,
            short,
            live: self.ledger.usage(pool).live,
        }))
    }

    /// An arena that could not be had: walks the program to the first value that lies past the limit.
    fn attribute(&self, error: DeviceError, pool: Pool, limit: u64) -> Failure {
        let DeviceError::OutOfMemory { bytes, .. } = error else { return Failure::Device(error) };
        let mut walk = Manager {
            program: self.program,
            backing: NoStorage::default(),
            ledger: Ledger::default(),
            target: self.target.clone(),
            arenas: Pool::ALL.map(|_| Some(Buffer(0))),
            locations: vec![None; self.program.values.len()],
        };
        for (section, code) in self.program.sections.iter().map(|section| &section.code).enumerate() {
            for (index, instruction) in code.iter().enumerate() {
                if let Action::Allocate(storage) = instruction.action {
                    let end = self.program.places[storage.index()].unwrap_or(0) + walk.rounded(storage);
                    if self.program.value(storage).pool == pool && end > limit {
                        walk.ledger.advance(instruction.phase, Position::default());
                        return walk.out_of_memory(storage, section, index, bytes, bytes - limit);
                    }
                }
                if let Err(failure) = walk.advance(section, index) {
                    return failure;
                }
            }
        }
        Failure::Device(error)
    }
}

/// Bytes that a storage takes of its pool: a place in an arena, or pages of its own.
pub fn rounded(program: &Program, storage: ValueId, target: &Target) -> u64 {
    let unit = if program.places[storage.index()].is_some() { target.alignment } else { target.page };
    program.ty(storage).bytes().next_multiple_of(unit.0)
}

/// A backing that has all the memory in the world and hands out none.
#[derive(Debug, Default)]
pub(super) struct NoStorage {
    next: u32,
}

impl Backing for NoStorage {
    fn request(&mut self, _pool: Pool, _bytes: u64) -> Result<Buffer, DeviceError> {
        self.next += 1;
        Ok(Buffer(self.next))
    }

    fn give_back(&mut self, _buffer: Buffer) -> Result<(), DeviceError> {
        Ok(())
    }
}
