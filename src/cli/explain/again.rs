//! Lists the recomputed operations of each block, such as those that a budget chose.

use std::fmt::Write as _;

use compile::{Program, SectionKind};

/// A line per range of consecutive layers with equal recomputation. Empty without recomputation.
pub(super) fn lines(program: &Program) -> String {
    let Some(first) = program.section(SectionKind::First) else { return String::new() };
    // By layer: its parts with their recomputed operations, in program order.
    let mut position = vec![None; program.scopes.len()];
    let mut layers = Vec::new();
    for (index, scope) in program.scopes.iter().enumerate().filter(|(_, scope)| scope.parent.is_none()) {
        position[index] = Some(layers.len());
        layers.push(&scope.path);
    }
    let mut again: Vec<String> = vec![String::new(); layers.len()];
    let mut last = None;
    for instruction in first.code.iter().filter(|instruction| instruction.recompute) {
        let scope = program.scope(instruction.scope);
        let Some(layer) = position[scope.layer.index()] else { continue };
        let Some(name) = instruction.action.operation() else { continue };
        let part = scope.path[layers[layer].len()..].strip_prefix('.').unwrap_or("itself");
        let between = match last == Some(instruction.scope) {
            true => ", ".to_owned(),
            false if again[layer].is_empty() => format!("{part} ("),
            false => format!("), {part} ("),
        };
        last = Some(instruction.scope);
        let _ = write!(again[layer], "{between}{name}");
    }
    let mut out = String::new();
    let mut at = 0;
    for run in again.chunk_by(|a, b| a == b) {
        let (from, to) = (layers[at], layers[at + run.len() - 1]);
        at += run.len();
        if run[0].is_empty() {
            continue;
        }
        let which = if run.len() == 1 { from.clone() } else { format!("{from} to {to}") };
        let _ = writeln!(out, "recomputed in {which}: {})", run[0]);
    }
    out
}
