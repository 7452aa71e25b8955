//! The ledger of a program walked without storage.

use super::allocator::{self, Allocator, rounded};
use super::cadence::{Cadence, Round};
use super::manager::Manager;
use super::out_of_memory::{Failure, OutOfMemory, Short};
use super::system::NoStorage;
use crate::compile::{Action, Opened, Program, Section, SectionKind};
use crate::device::{Ledger, Pool, Target, Usage};

/// What a run will need, or where it will run out.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub device: Usage,
    /// Of both of the host's pools together.
    pub host: Usage,
    pub pinned: Usage,
    /// The first request that the limit has no room for.
    pub out_of_memory: Option<OutOfMemory>,
    /// Numbers in the model's parameters, and in those of them that are trained.
    pub parameters: u64,
    pub trainable_parameters: u64,
    /// FLOPs of an optimizer step, without and with what is computed again.
    pub model_flops: u64,
    pub hardware_flops: u64,
}

impl Prediction {
    /// What the target's memory lacks for the whole run: with so much more, it runs.
    pub fn short(&self, target: &Target) -> Short {
        Short {
            device: target.short_of(Pool::Device, self.device.reserved_peak),
            host: target.short_of(Pool::Host, self.host.reserved_peak),
        }
    }
}

/// Predicts a run of a program on a target, in the order that the run goes through it. Where the run will end out of
/// memory, the usage is what it would be with memory enough.
pub fn predict(program: &Program, target: &Target, cadence: Cadence) -> Prediction {
    predict_with(program, target, cadence, &allocator::of)
}

/// The same with any allocator.
pub(crate) fn predict_with<'a>(
    program: &'a Program,
    target: &Target,
    cadence: Cadence,
    allocator: &dyn Fn(&'a Program) -> Box<dyn Allocator + 'a>,
) -> Prediction {
    let within = |target: &Target| {
        let manager = Manager::with_allocator(program, target, NoStorage::default(), allocator(program))?;
        Walk { program, manager, opened: Opened::none(program) }.run(cadence)
    };
    let (ledger, out_of_memory) = match within(target) {
        Ok(ledger) => (ledger, None),
        Err(Failure::OutOfMemory(found)) => match within(&target.boundless()) {
            Ok(ledger) => (ledger, Some(*found)),
            Err(_) => unreachable!("there is memory enough"),
        },
        Err(Failure::Device(error)) => unreachable!("nothing is asked of a device: {error}"),
        Err(Failure::Weights(error)) => unreachable!("no file is read: {error}"),
    };
    Prediction {
        device: *ledger.usage(Pool::Device),
        host: *ledger.usage_at(Pool::Host),
        pinned: *ledger.usage(Pool::Pinned),
        out_of_memory,
        parameters: program.numbers_of(|_| true),
        trainable_parameters: program.numbers_of(|bucket| bucket.trainable),
        model_flops: program.model_flops(),
        hardware_flops: hardware_flops(program),
    }
}

fn hardware_flops(program: &Program) -> u64 {
    program.step().map(|section| section.times as u64 * program.flops_of(&section.code)).sum()
}

/// A run without storage.
struct Walk<'a> {
    program: &'a Program,
    manager: Manager<'a, NoStorage>,
    opened: Opened,
}

impl Walk<'_> {
    fn run(mut self, cadence: Cadence) -> Result<Ledger, Failure> {
        self.sections(|section| section.kind == SectionKind::Start)?;
        for (times, round) in cadence.rounds() {
            self.repeat(times, |walk| walk.round(round))?;
        }
        Ok(self.manager.ledger().clone())
    }

    fn round(&mut self, round: Round) -> Result<(), Failure> {
        self.repeat(round.steps, |walk| walk.sections(|section| section.kind.is_of_step()))?;
        self.repeat(round.evaluated, |walk| walk.sections(|section| section.kind.is_of_evaluation()))
    }

    /// Goes through the sections that are like this, each its times in a row.
    fn sections(&mut self, like: fn(&Section) -> bool) -> Result<(), Failure> {
        let program = self.program;
        for (number, section) in program.sections.iter().enumerate().filter(|(_, section)| like(section)) {
            self.repeat(section.times, |walk| {
                let code = section.code.iter().enumerate();
                let due = code.filter(|(_, instruction)| !walk.opened.leaves_out(number, instruction));
                due.map(|(index, _)| index).try_for_each(|index| walk.manager.advance(number, index))?;
                walk.opened.open(number);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Goes through a part of the run so many times, or as often as has the same effect: once memory is as it was some
    /// times before, what happened since then happens again and again, and no peak is new. Only what is left of the last
    /// such cycle is gone through, so that memory ends as it would. A cycle is found by keeping one state to compare with,
    /// and replacing it after ever more times (Brent 1980).
    fn repeat(
        &mut self,
        times: usize,
        mut part: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut left = times;
        let (mut kept, mut age, mut most) = (self.manager.state(), 0, 1);
        while left > 0 {
            part(self)?;
            left -= 1;
            age += 1;
            let state = self.manager.state();
            if state == kept {
                left %= age;
            } else if age == most {
                (kept, age, most) = (state, 0, 2 * most);
            }
        }
        Ok(())
    }
}

/// The most bytes that are ever live in the pools of a home together: whatever the allocator, it asks the system for as
/// much at least.
pub fn peak_live(program: &Program, target: &Target, home: Pool) -> u64 {
    let (mut live, mut peak) = (0, 0);
    let is_there = |storage| program.value(storage).pool.home() == home;
    for (section, index) in program.walk() {
        match program.sections[section].code[index].action {
            Action::Allocate(storage) if is_there(storage) => {
                live += rounded(program, storage, target);
                peak = peak.max(live);
            }
            Action::Free(storage) if is_there(storage) => {
                live -= rounded(program, storage, target);
            }
            _ => {}
        }
    }
    peak
}

/// Live bytes of the device pool after each instruction, by section, with memory enough; of what is done again and again, once
/// all is there.
pub fn live_bytes(program: &Program, target: &Target) -> Vec<Vec<u64>> {
    let Ok(mut manager) = Manager::new(program, &target.boundless(), NoStorage::default()) else {
        unreachable!("there is memory enough")
    };
    let mut live: Vec<Vec<u64>> =
        program.sections.iter().map(|section| vec![0; section.code.len()]).collect();
    for (section, index) in program.walk() {
        if manager.advance(section, index).is_err() {
            unreachable!("there is memory enough");
        }
        live[section][index] = manager.ledger().usage(Pool::Device).live.total();
    }
    live
}
