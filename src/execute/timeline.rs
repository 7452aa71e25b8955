//! Where memory stood after each instruction, of each section once: the profile people look for when they are out
//! of memory.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::compile::{Action, Program, SectionKind};
use crate::device::{ByRole, Role};

/// One instruction, carried out.
#[derive(Clone, Copy, Default)]
struct Moment {
    section: u32,
    instruction: u32,
    live: ByRole,
    took: Duration,
}

pub struct Timeline {
    moments: Vec<Moment>,
    /// By section: whether its next pass is recorded.
    wanted: Vec<bool>,
}

impl Timeline {
    /// Wants start-up alone at first. Its memory is resident already, so that recording asks for none.
    pub fn of_start(program: &Program) -> Timeline {
        let instructions = program.sections.iter().map(|section| section.code.len()).sum();
        let mut moments = vec![Moment::default(); instructions];
        moments.fill(Moment { section: 1, ..Moment::default() });
        moments.clear();
        let wanted = program.sections.iter().map(|section| section.kind == SectionKind::Start).collect();
        Timeline { moments, wanted }
    }

    /// Wants the next pass of every section but start-up.
    pub(super) fn want_step(&mut self, program: &Program) {
        self.wanted = program.sections.iter().map(|section| section.kind != SectionKind::Start).collect();
    }

    /// Whether this pass of a section is recorded; later ones are not.
    pub(super) fn take_wanted(&mut self, section: usize) -> bool {
        std::mem::replace(&mut self.wanted[section], false)
    }

    pub(super) fn push(&mut self, section: usize, instruction: usize, live: ByRole, took: Duration) {
        self.moments.push(Moment { section: section as u32, instruction: instruction as u32, live, took });
    }

    /// `memory.csv`: one line for each instruction that does something.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, program: &Program, file: &Path) -> io::Result<()> {
        let mut csv = csv::Writer::from_path(file)?;
        let mut header = vec!["section", "phase", "scope", "operation", "value", "ms", "live_bytes"];
        let roles: Vec<String> =
            Role::ALL.iter().map(|role| format!("{}_bytes", role.name().replace(' ', "_"))).collect();
        header.extend(roles.iter().map(String::as_str));
        csv.write_record(&header)?;
        for moment in &self.moments {
            let section = &program.sections[moment.section as usize];
            let instruction = &section.code[moment.instruction as usize];
            let (operation, value) = match &instruction.action {
                Action::Launch { op, outputs, .. } => (op.name(), outputs[0]),
                Action::Copy { to, .. } => ("copy", *to),
                Action::Allocate(storage) => ("allocate", *storage),
                Action::Free(storage) => ("free", *storage),
                Action::Record { .. } | Action::Wait { .. } => continue,
            };
            let mut record = vec![
                section.kind.name().to_owned(),
                instruction.phase.name().to_owned(),
                program.scope(instruction.scope).path.clone(),
                operation.to_owned(),
                program.full_name(value),
                format!("{:.4}", moment.took.as_secs_f64() * 1e3),
                moment.live.total().to_string(),
            ];
            record.extend(moment.live.iter().map(|(_, bytes)| bytes.to_string()));
            csv.write_record(&record)?;
        }
        csv.flush()
    }
}
