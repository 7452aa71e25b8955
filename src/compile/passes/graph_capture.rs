//! Finds the ranges of a section that a device can capture once and replay: launches and copies of the compute queue
//! on the same memory in every iteration.

use super::Draft;
use crate::ir::{Action, Instruction, Program};
use device::{DeviceKind, Queue};

pub(super) fn find_ranges(draft: &mut Draft) {
    // Only CUDA has graphs.
    if !draft.config.strategy.graph || draft.target.kind != DeviceKind::Cuda {
        return;
    }
    let program = &draft.program;
    let capture_ranges: Vec<_> =
        program.sections.iter().map(|section| capture_ranges(program, &section.code)).collect();
    for (section, capture_ranges) in draft.program.sections.iter_mut().zip(capture_ranges) {
        section.capture_ranges = capture_ranges;
    }
}

/// The longest ranges without dependencies on other queues. A range with one launch gains nothing.
fn capture_ranges(program: &Program, code: &[Instruction]) -> Vec<std::ops::Range<usize>> {
    let mut capture_ranges = Vec::new();
    let mut begin = 0;
    for end in 0..=code.len() {
        if end < code.len() && is_capturable(program, &code[end]) {
            continue;
        }
        let works = |instruction: &Instruction| {
            !instruction.is_once()
                && matches!(instruction.action, Action::Launch { .. } | Action::Copy { .. })
        };
        if code[begin..end].iter().filter(|instruction| works(instruction)).count() > 1 {
            capture_ranges.push(begin..end);
        }
        begin = end + 1;
    }
    capture_ranges
}

/// Whether it is work of the compute queue on the same memory in every iteration.
fn is_capturable(program: &Program, instruction: &Instruction) -> bool {
    let depends_on_queue_or_batch = match instruction.action {
        Action::Record { .. } | Action::Wait { .. } => true,
        // Its source depends on the batch and the micro-batch.
        Action::Copy { from, .. } => program.value(from).shape_source.batch_buffer().is_some(),
        _ => false,
    };
    // First-iteration instructions run before anything is captured.
    instruction.is_once() || !depends_on_queue_or_batch && instruction.queue() == Queue::Compute
}

#[cfg(test)]
mod tests {
    use crate::{Action, compile_run};
    use device::{DeviceKind, Target};
    use spec::RunConfig;

    #[test]
    fn gpu_captures_all_launches_but_no_waits() {
        let card = Target { kind: DeviceKind::Cuda, threads: 1, ..testing::target() };
        let mut config = testing::small();
        config.strategy.graph = true;
        (config.train.batch_size, config.strategy.accumulate) = (5, 3);
        for section in &compile_run(&config, &card).unwrap().sections {
            let within = |index: usize| section.capture_ranges.iter().any(|segment| segment.contains(&index));
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
            program.sections.iter().all(|section| section.capture_ranges.is_empty())
        };
        assert!(none(&config, &testing::target()), "the CPU device has no graphs");
        config.strategy.graph = false;
        assert!(none(&config, &card));
    }
}
