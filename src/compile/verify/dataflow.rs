//! Writers dominate readers, and no overwritten value is read.

use std::collections::{HashMap, HashSet};

use super::{Invariant, Violation, at, broken};
use crate::ir::{Program, Section, Stage, SubRange, Value, View};
use ops::ValueId;

/// Properties of values that the checks of all sections share: deep models have too many values to scan them per
/// section.
pub(super) struct VersionIndex {
    /// By value: the number of its views, if it is written through views.
    parts: Vec<u32>,
    /// First versions, each with its storage.
    first_versions: Vec<(ValueId, ValueId)>,
}

impl VersionIndex {
    pub(super) fn of(program: &Program) -> VersionIndex {
        let mut versions = VersionIndex { parts: vec![0; program.values.len()], first_versions: Vec::new() };
        for (id, value) in (0..).map(ValueId).zip(&program.values) {
            if value.previous.is_none() {
                versions.first_versions.push((id, value.storage));
                // Shares of ranks are read and updated, never a value's first version.
                if let Some(View { of, range: SubRange::Member(_) | SubRange::Rows(_) }) = value.view {
                    versions.parts[of.index()] += 1;
                }
            }
        }
        versions
    }
}

/// The state of each value at a point of a section.
struct ValueStates<'a> {
    versions: &'a VersionIndex,
    written: Vec<bool>,
    overwritten: Vec<bool>,
    /// By value: how many of its views are complete.
    complete: Vec<u32>,
    /// Views that were written as first versions.
    parts: HashSet<View>,
    /// By parent: how it is divided into views.
    divided: HashMap<ValueId, Division>,
}

/// Views of one division are disjoint unless they are equal; views of different divisions may overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Division {
    Members,
    /// Slices of rows, by their number.
    Rows(usize),
    /// Shares of ranks, by their number.
    Shares(usize),
}

pub(super) fn check(program: &Program, section: &Section, versions: &VersionIndex) -> Result<(), Violation> {
    let mut state = ValueStates::at_entry(program, section, versions);
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

impl ValueStates<'_> {
    fn at_entry<'a>(program: &Program, section: &Section, versions: &'a VersionIndex) -> ValueStates<'a> {
        let count = program.values.len();
        let mut state = ValueStates {
            versions,
            written: vec![false; count],
            overwritten: vec![false; count],
            complete: vec![0; count],
            parts: HashSet::new(),
            divided: HashMap::new(),
        };
        let live_in = program.mask(&section.live_in);
        for (id, storage) in &versions.first_versions {
            state.written[id.index()] = live_in[storage.index()];
        }
        // Parameters that ranks divide are gathered once operands are transferred.
        if program.stage < Stage::Transferred {
            for bucket in program.buckets.iter().filter(|bucket| bucket.parameters != bucket.whole) {
                state.written[bucket.whole.index()] = live_in[bucket.parameters.index()];
            }
        }
        // The host has read the results of the last step: they are written again.
        program.host_buffers.results.iter().for_each(|id| state.written[id.index()] = false);
        state
    }

    /// Written as a whole, or through all of its views.
    fn is_complete(&self, id: ValueId) -> bool {
        let (parts, complete) = (self.versions.parts[id.index()], self.complete[id.index()]);
        self.written[id.index()] || parts > 0 && complete == parts
    }

    fn read(&self, program: &Program, id: ValueId) -> Result<(), Invariant> {
        // A view counts as written if its parent was written.
        let with_parents =
            || std::iter::successors(Some(id), |&id| program.value(id).view.map(|view| view.of));
        if !with_parents().any(|id| self.is_complete(id)) {
            return Err(Invariant::WriterDominates);
        }
        if with_parents().any(|id| self.overwritten[id.index()]) {
            return Err(Invariant::NotOverwritten);
        }
        Ok(())
    }

    /// Whether a first version that is written overlaps nothing that was written before: neither a parent, nor its
    /// own views, nor other views of the parent.
    fn is_disjoint(&mut self, program: &Program, id: ValueId) -> bool {
        let value = program.value(id);
        if value.previous.is_some() {
            return true;
        }
        let parent = |view: &View| program.value(view.of).view;
        let mut parents = std::iter::successors(value.view, parent);
        if self.divided.contains_key(&id) || parents.any(|view| self.written[view.of.index()]) {
            return false;
        }
        let Some(view) = &value.view else { return true };
        let division = match view.range {
            SubRange::Member(_) => Division::Members,
            SubRange::Rows(slice) => Division::Rows(slice.of),
            SubRange::Share(share) => Division::Shares(share.of),
        };
        *self.divided.entry(view.of).or_insert(division) == division && self.parts.insert(*view)
    }

    /// Records a write. False if the value, or part of it, was written before.
    fn write(&mut self, program: &Program, id: ValueId) -> bool {
        let value = program.value(id);
        if let Some(previous) = value.previous {
            self.overwritten[previous.index()] = true;
        }
        if self.written[id.index()] || !self.is_disjoint(program, id) {
            return false;
        }
        self.written[id.index()] = true;
        // A sum that is accumulated elsewhere may be stored here as the first version: the versions before it are
        // never written.
        let mut written = id;
        while let Some(previous) = program.value(written).previous {
            if std::mem::replace(&mut self.written[previous.index()], true) {
                return true;
            }
            self.overwritten[previous.index()] = true;
            written = previous;
        }
        // The last view completes its parent.
        while let Value { previous: None, view: Some(View { of, .. }), .. } = program.value(written) {
            self.complete[of.index()] += 1;
            if self.complete[of.index()] < self.versions.parts[of.index()] {
                break;
            }
            written = *of;
        }
        true
    }
}
