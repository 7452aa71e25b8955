//! Lists the live bytes at a run's peak by role, layer and value.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::profile::group;
use base::units::Bytes;
use compile::{Action, Program};
use device::{Peak, Pool, Position, Role, Target};
use memory::{LiveValue, live_at};

/// The most lines per list.
const LARGEST: usize = 10;

/// Several values' bytes in total.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    name: String,
    bytes: u64,
    /// The number of layers or values that share the name.
    members: Vec<String>,
}

/// The peak's position and the values live there, largest first.
pub(super) fn text(program: &Program, target: &Target, peak: &Peak) -> String {
    let values = live_at_peak(program, target, peak);
    let all = peak.live.total();
    let mut out = format!("live at the peak, {}: {}\n", Bytes(all), place(program, peak.position));
    let by_role = parts(&values, |value| (value.role.name().to_owned(), value.name.clone()));
    let by_layer = parts(&values, |value| (group(&value.scope), value.scope.clone()));
    let by_value = parts(&values, |value| (group(&value.name), value.name.clone()));
    let titles = ["by role", "by layer", "by value"];
    for (title, parts) in titles.into_iter().zip([by_role, by_layer, by_value]) {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {title}");
        let counts = title != titles[0];
        for part in parts.iter().take(LARGEST) {
            out.push_str(&line(part, all, counts));
        }
        if let Some(rest) = parts.get(LARGEST..).filter(|rest| !rest.is_empty()) {
            let (name, bytes) = (format!("{} more", rest.len()), rest.iter().map(|part| part.bytes).sum());
            out.push_str(&line(&Part { name, bytes, members: Vec::new() }, all, false));
        }
    }
    out
}

/// `    12.0 MiB   41%  blocks.*.mlp (4)`
fn line(part: &Part, all: u64, counts: bool) -> String {
    let share = 100.0 * part.bytes as f64 / all.max(1) as f64;
    let count = match part.members.len() {
        count if counts && count > 1 => format!(" ({count})"),
        _ => String::new(),
    };
    format!("    {:>10}  {share:>3.0}%  {}{count}\n", Bytes(part.bytes).to_string(), part.name)
}

/// Sums by name, largest first.
fn parts(values: &[LiveValue], names: impl Fn(&LiveValue) -> (String, String)) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for value in values {
        let (name, member) = names(value);
        let index = parts.iter().position(|part| part.name == name).unwrap_or_else(|| {
            parts.push(Part { name, bytes: 0, members: Vec::new() });
            parts.len() - 1
        });
        let part = &mut parts[index];
        part.bytes += value.bytes;
        if !part.members.contains(&member) {
            part.members.push(member);
        }
    }
    for part in &mut parts {
        // A single layer keeps its number.
        if let ([only], true) = (part.members.as_slice(), part.name.contains('*')) {
            part.name.clone_from(only);
        }
    }
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts
}

/// `backward of blocks.3.mlp, at linear-input-gradient`: the first launch at or after the position.
fn place(program: &Program, position: Position) -> String {
    let section = &program.sections[position.section as usize];
    let rest = &section.code[position.instruction as usize..];
    let computes = rest.iter().find_map(|instruction| match &instruction.action {
        Action::Launch { op, .. } => Some((instruction, op.name())),
        _ => None,
    });
    let Some((instruction, operation)) = computes else { return section.kind.name().to_owned() };
    let again = if instruction.recompute { " again" } else { "" };
    let scope = &program.scope(instruction.scope).path;
    format!("{} of {scope}, for {operation}{again}", instruction.phase.name())
}

/// The values live at a peak, including those that earlier steps and micro-batches leaked or collected, and the
/// undivided remainders of blocks.
fn live_at_peak(program: &Program, target: &Target, peak: &Peak) -> Vec<LiveValue> {
    let mut values = live_at(program, target, Pool::Device, peak.position);
    for (role, live) in peak.live.iter() {
        let own: u64 = values.iter().filter(|value| value.role == role).map(|value| value.bytes).sum();
        if live > own {
            let section = program.sections[peak.position.section as usize].kind;
            let name = match role {
                Role::Rounding => "remainders of blocks",
                _ if section.is_in_evaluation() && collects(program) => "collected before",
                _ => "leaked before",
            };
            let name = name.to_owned();
            values.push(LiveValue { scope: name.clone(), name, role, bytes: live - own });
        }
    }
    values
}

fn collects(program: &Program) -> bool {
    let mut actions = program.evaluation().flat_map(|section| &section.code);
    actions.any(|instruction| matches!(instruction.action, Action::Collect { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{RunSchedule, predict};
    use spec::Leak;
    use testing::compile;

    /// The first entry is the leak of a hundred steps.
    #[test]
    fn all_that_is_live_at_the_peak_is_told_three_times() {
        let mut config = testing::small();
        config.measure.steps = 100;
        for leak in [None, Some(Leak::Logits)] {
            config.strategy.leak = leak;
            let target = testing::target();
            let program = compile(&config, &target).unwrap();
            let prediction = predict(&program, &target, RunSchedule::of(&config));
            let peak = prediction.device.steady_peak();
            let values = live_at_peak(&program, &target, peak);
            let sum = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<u64>();
            let by_role = parts(&values, |value| (value.role.name().to_owned(), value.name.clone()));
            for part in &by_role {
                let of_role = peak.live.iter().find(|(role, _)| role.name() == part.name);
                assert_eq!(of_role.map(|(_, bytes)| bytes), Some(part.bytes), "{}", part.name);
            }
            let by_layer = parts(&values, |value| (group(&value.scope), value.scope.clone()));
            let by_value = parts(&values, |value| (group(&value.name), value.name.clone()));
            assert_eq!([&by_role, &by_layer, &by_value].map(|parts| sum(parts)), [peak.live.total(); 3]);
            assert_eq!(by_value[0].name == "leaked before", leak.is_some());
            // Layers of one kind share a line.
            let blocks = by_layer.iter().find(|part| part.name.starts_with("blocks.*")).unwrap();
            assert!(blocks.members.len() > 1, "{blocks:?}");
        }
    }
}
