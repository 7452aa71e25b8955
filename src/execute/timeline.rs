//! Where memory stood after each instruction of one step: the profile people look for when they are out of
//! memory.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::compile::{Action, Program};
use crate::device::{ByRole, Role};

/// One instruction, carried out.
struct Moment {
    section: u32,
    instruction: u32,
    live: ByRole,
    took: Duration,
}

#[derive(Default)]
pub struct Timeline {
    moments: Vec<Moment>,
}

impl Timeline {
    /// Room for a program's step and evaluation, so that recording allocates nothing.
    pub fn for_program(program: &Program) -> Timeline {
        let per_section = program.sections.iter().map(|section| section.code.len());
        let further = program.micro_batches.saturating_sub(2) * per_section.clone().max().unwrap_or(0);
        Timeline { moments: Vec::with_capacity(per_section.sum::<usize>() + further) }
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
