//! Stretches of a section that a device may capture once and replay: work of the compute queue alone, on the same
//! memory each time.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::Program;
use device::{DeviceKind, Queue};

pub(super) fn mark(draft: &mut Draft) {
    // Only a card's driver replays.
    if !draft.config.strategy.graph || draft.target.kind != DeviceKind::Cuda {
        return;
    }
    let program = &draft.program;
    let segments: Vec<_> = program.sections.iter().map(|section| stretches(program, &section.code)).collect();
    for (section, segments) in draft.program.sections.iter_mut().zip(segments) {
        section.segments = segments;
    }
}

/// The longest stretches without anything that concerns another queue. One launch alone is as quick by itself.
fn stretches(program: &Program, code: &[Instruction]) -> Vec<std::ops::Range<usize>> {
    let mut stretches = Vec::new();
    let mut begin = 0;
    for end in 0..=code.len() {
        if end < code.len() && stays(program, &code[end]) {
            continue;
        }
        let works = |instruction: &Instruction| {
            !instruction.once && matches!(instruction.action, Action::Launch { .. } | Action::Copy { .. })
        };
        if code[begin..end].iter().filter(|instruction| works(instruction)).count() > 1 {
            stretches.push(begin..end);
        }
        begin = end + 1;
    }
    stretches
}

/// Whether it is work of the compute queue on the same memory each time.
fn stays(program: &Program, instruction: &Instruction) -> bool {
    let concerns_another = match instruction.action {
        Action::Record { .. } | Action::Wait { .. } => true,
        // Of one batch or another, of one micro-batch or another.
        Action::Copy { from, .. } => program.value(from).like.batches().is_some(),
        _ => false,
    };
    // What is done once is done before anything is captured.
    instruction.once || !concerns_another && instruction.queue() == Queue::Compute
}

#[cfg(test)]
mod tests {
    use crate::{Action, compile_run};
    use device::{DeviceKind, Target};
    use spec::RunConfig;

    #[test]
    fn a_card_replays_everything_but_what_waits() {
        let card = Target { kind: DeviceKind::Cuda, threads: 1, ..testing::target() };
        let mut config = testing::small();
        config.strategy.graph = true;
        (config.train.batch_size, config.strategy.accumulate) = (5, 3);
        for section in &compile_run(&config, &card).unwrap().sections {
            let within = |index: usize| section.segments.iter().any(|segment| segment.contains(&index));
            for (index, instruction) in section.code.iter().enumerate() {
                match instruction.action {
                    Action::Launch { .. } => assert!(within(index), "{} {index}", section.kind.name()),
                    Action::Record { .. } | Action::Wait { .. } => assert!(!within(index)),
                    _ => {}
                }
            }
        }
        let none = |config: &RunConfig, target: &Target| {
            let program = compile_run(config, target).unwrap();
            program.sections.iter().all(|section| section.segments.is_empty())
        };
        assert!(none(&config, &testing::target()), "a processor has nothing to replay with");
        config.strategy.graph = false;
        assert!(none(&config, &card));
    }
}
