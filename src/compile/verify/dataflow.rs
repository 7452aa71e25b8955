//! Writers dominate readers, and nothing reads what was overwritten.

use std::collections::{HashMap, HashSet};

use super::{Invariant, Violation, at, broken};
use crate::program::{Program, Section};
use crate::value::{Part, Value, View};
use ops::ValueId;

/// What the walks through all sections know of values. Deep models have so many that each walk must not ask them all.
pub(super) struct Known {
    /// By value: in how many parts it is written, if in parts.
    parts: Vec<u32>,
    /// Those that no other was in the place of before, each with its storage.
    first_versions: Vec<(ValueId, ValueId)>,
}

impl Known {
    pub(super) fn of(program: &Program) -> Known {
        let mut known = Known { parts: vec![0; program.values.len()], first_versions: Vec::new() };
        for (id, value) in (0..).map(ValueId).zip(&program.values) {
            if value.previous.is_none() {
                known.first_versions.push((id, value.storage));
                if let Some(View { of, .. }) = value.view {
                    known.parts[of.index()] += 1;
                }
            }
        }
        known
    }
}

/// What the walk has seen of each value.
struct State<'a> {
    known: &'a Known,
    written: Vec<bool>,
    overwritten: Vec<bool>,
    /// By value: how many of its parts are complete.
    complete: Vec<u32>,
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

pub(super) fn check(program: &Program, section: &Section, known: &Known) -> Result<(), Violation> {
    let mut state = State::at_entry(program, section, known);
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

impl State<'_> {
    fn at_entry<'a>(program: &Program, section: &Section, known: &'a Known) -> State<'a> {
        let count = program.values.len();
        let mut state = State {
            known,
            written: vec![false; count],
            overwritten: vec![false; count],
            complete: vec![0; count],
            parts: HashSet::new(),
            divided: HashMap::new(),
        };
        let entered = program.marked(&section.entry);
        for (id, storage) in &known.first_versions {
            state.written[id.index()] = entered[storage.index()];
        }
        // What the host has read is written again.
        program.host_buffers.results.iter().for_each(|id| state.written[id.index()] = false);
        state
    }

    /// Written as a whole, or in all of its parts.
    fn is_complete(&self, id: ValueId) -> bool {
        let (parts, complete) = (self.known.parts[id.index()], self.complete[id.index()]);
        self.written[id.index()] || parts > 0 && complete == parts
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
        self.written[id.index()] = true;
        // What sums up elsewhere may be stored here as the first that there is: versions before it will never be.
        let mut written = id;
        while let Some(previous) = program.value(written).previous {
            if std::mem::replace(&mut self.written[previous.index()], true) {
                return true;
            }
            self.overwritten[previous.index()] = true;
            written = previous;
        }
        // A part completes what it is part of, if it was the last.
        while let Value { previous: None, view: Some(View { of, .. }), .. } = program.value(written) {
            self.complete[of.index()] += 1;
            if self.complete[of.index()] < self.known.parts[of.index()] {
                break;
            }
            written = *of;
        }
        true
    }
}
