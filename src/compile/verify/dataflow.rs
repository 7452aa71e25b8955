//! Writers dominate readers, and nothing reads what was overwritten.

use std::collections::{HashMap, HashSet};

use super::{Invariant, Violation, at, broken};
use crate::compile::program::{Program, Section};
use crate::compile::value::{Part, Value, View};
use crate::ops::ValueId;

/// What the walk has seen of each value.
struct State {
    written: Vec<bool>,
    overwritten: Vec<bool>,
    /// By value: how many of its parts are not complete yet, if it has any.
    missing: Vec<Option<usize>>,
    /// The parts that were written anew.
    parts: HashSet<View>,
    /// By what it is a part of: how that is divided.
    divided: HashMap<ValueId, Division>,
}

/// Parts of one division lie apart, if they are not the same; those of two may overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Division {
    Members,
    /// So many slices.
    Rows(usize),
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
            missing: vec![None; count],
            parts: HashSet::new(),
            divided: HashMap::new(),
        };
        for value in program.values.iter().filter(|value| value.previous.is_none()) {
            if let Some(View { of, .. }) = value.view {
                *state.missing[of.index()].get_or_insert(0) += 1;
            }
        }
        let mut entered = vec![false; count];
        section.entry.iter().for_each(|storage| entered[storage.index()] = true);
        for (index, value) in program.values.iter().enumerate() {
            if entered[value.storage.index()] && value.previous.is_none() {
                state.written[index] = true;
            }
        }
        // What the host has read is written again.
        program.exchange.results.iter().for_each(|id| state.written[id.index()] = false);
        state
    }

    /// Written as a whole, or in all of its parts.
    fn is_complete(&self, id: ValueId) -> bool {
        self.written[id.index()] || self.missing[id.index()] == Some(0)
    }

    fn read(&self, program: &Program, id: ValueId) -> Result<(), Invariant> {
        // What a value is part of stands for it, if that was written.
        let within = || std::iter::successors(Some(id), |&id| program.value(id).view.map(|view| view.of));
        if !within().any(|id| self.is_complete(id)) {
            return Err(Invariant::WriterDominates);
        }
        if within().any(|id| self.overwritten[id.index()]) {
            return Err(Invariant::NotOverwritten);
        }
        Ok(())
    }

    /// Whether what is written anew lies apart from all else that was: from what it is part of, from its own parts, and
    /// from other parts of the same.
    fn is_apart(&mut self, program: &Program, id: ValueId) -> bool {
        let value = program.value(id);
        if value.previous.is_some() {
            return true;
        }
        let parent = |view: &View| program.value(view.of).view;
        let mut around = std::iter::successors(value.view, parent);
        if self.divided.contains_key(&id) || around.any(|view| self.written[view.of.index()]) {
            return false;
        }
        let Some(view) = &value.view else { return true };
        let division = match view.part {
            Part::Member(_) => Division::Members,
            Part::Rows(slice) => Division::Rows(slice.of),
        };
        *self.divided.entry(view.of).or_insert(division) == division && self.parts.insert(*view)
    }

    /// False if the value, or part of it, was written before.
    fn write(&mut self, program: &Program, id: ValueId) -> bool {
        let value = program.value(id);
        if let Some(previous) = value.previous {
            self.overwritten[previous.index()] = true;
        }
        if self.written[id.index()] || !self.is_apart(program, id) {
            return false;
        }
        let mut written = id;
        self.written[id.index()] = true;
        // A part completes what it is part of, if it was the last.
        while let Value { previous: None, view: Some(View { of, .. }), .. } = program.value(written) {
            let missing = self.missing[of.index()].as_mut().expect("counted at the beginning");
            *missing -= 1;
            if *missing > 0 {
                break;
            }
            written = *of;
        }
        true
    }
}
