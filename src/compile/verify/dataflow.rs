//! Writers dominate readers, and nothing reads what was overwritten.

use super::{Invariant, Violation, at, broken};
use crate::compile::program::{Program, Section};
use crate::ops::ValueId;

/// What the walk has seen of each value.
struct State {
    written: Vec<bool>,
    overwritten: Vec<bool>,
    /// By bucket: the members of a bucket that is written piece by piece and not complete yet.
    missing: Vec<usize>,
    /// By value: the bucket it is a member of, parameters' buckets first.
    member_of: Vec<Option<usize>>,
    /// By value: the bucket that it is.
    bucket: Vec<Option<usize>>,
}

pub(super) fn check(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut state = State::at_entry(program, section);
    for instruction in &section.code {
        for &read in instruction.action.reads() {
            if let Err(invariant) = state.read(program, read) {
                let detail =
                    format!("{} reads {}", at(program, section, instruction), program.full_name(read));
                return broken(invariant, detail);
            }
        }
        for &write in instruction.action.writes() {
            if !state.write(program, write) {
                let what = program.full_name(write);
                let detail = format!("{} writes {what} a second time", at(program, section, instruction));
                return broken(Invariant::NotOverwritten, detail);
            }
        }
    }
    Ok(())
}

impl State {
    fn at_entry(program: &Program, section: &Section) -> State {
        let count = program.values.len();
        let mut state = State {
            written: vec![false; count],
            overwritten: vec![false; count],
            missing: vec![0; 2 * program.buckets.len()],
            member_of: vec![None; count],
            bucket: vec![None; count],
        };
        for (index, bucket) in program.buckets.iter().enumerate() {
            state.bucket[bucket.parameters.index()] = Some(2 * index);
            if let Some(gradients) = bucket.gradients {
                state.bucket[gradients.index()] = Some(2 * index + 1);
            }
        }
        for parameter in &program.parameters {
            state.add_member(parameter.value, 2 * parameter.bucket);
            if let Some(gradient) = parameter.gradient {
                state.add_member(gradient, 2 * parameter.bucket + 1);
            }
        }
        let mut entered = vec![false; count];
        section.entry.iter().for_each(|storage| entered[storage.index()] = true);
        for (index, value) in program.values.iter().enumerate() {
            if entered[value.storage.index()] && value.previous.is_none() {
                state.mark_written(ValueId(index as u32));
            }
        }
        state
    }

    fn add_member(&mut self, member: ValueId, bucket: usize) {
        self.member_of[member.index()] = Some(bucket);
        self.missing[bucket] += 1;
    }

    fn mark_written(&mut self, id: ValueId) {
        self.written[id.index()] = true;
        if let Some(bucket) = self.member_of[id.index()] {
            self.missing[bucket] -= 1;
        }
    }

    fn read(&self, program: &Program, id: ValueId) -> Result<(), Invariant> {
        let complete = self.bucket[id.index()].is_some_and(|bucket| self.missing[bucket] == 0);
        let storage = program.storage(id);
        // A bucket that was filled whole holds all its members.
        let whole = self.member_of[id.index()].is_some() && self.written[storage.index()];
        if !self.written[id.index()] && !complete && !whole {
            return Err(Invariant::WriterDominates);
        }
        let covered = self.member_of[id.index()].is_some() && self.overwritten[storage.index()];
        if self.overwritten[id.index()] || covered {
            return Err(Invariant::NotOverwritten);
        }
        Ok(())
    }

    /// False if the value was written before.
    fn write(&mut self, program: &Program, id: ValueId) -> bool {
        if let Some(previous) = program.value(id).previous {
            self.overwritten[previous.index()] = true;
        }
        if self.written[id.index()] {
            // Memory that the host reads and writes between sections holds the same value again.
            return program.value(id).pool == crate::device::Pool::Host;
        }
        self.mark_written(id);
        true
    }
}
