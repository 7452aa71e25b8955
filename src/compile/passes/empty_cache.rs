//! Inserts `empty_cache` where the strategy requests it.

use super::Draft;
use crate::ir::{Action, Instruction, Program, Section, SectionKind};
use spec::EmptyCache;

pub(super) fn empty(draft: &mut Draft) {
    let when = draft.config.strategy.empty_cache;
    let empties = |section: &Section| match when {
        EmptyCache::Never => false,
        EmptyCache::Step => section.kind == SectionKind::Update,
        EmptyCache::Micro => section.kind.is_in_step(),
    };
    for section in draft.program.sections.iter_mut().filter(|section| empties(section)) {
        let last = section.code.last().map(|last| (last.scope, last.phase));
        section.code.extend(last.map(|(scope, phase)| Instruction::new(Action::EmptyCache, scope, phase)));
    }
}

impl Program {
    /// Whether the programs differ in nothing except `EmptyCache` instructions.
    pub fn equal_except_empty_cache(&self, other: &Program) -> bool {
        let [own, other] = [self, other].map(|program| {
            let mut program = program.clone();
            for section in &mut program.sections {
                section.code.retain(|instruction| instruction.action != Action::EmptyCache);
            }
            program
        });
        own == other
    }
}
