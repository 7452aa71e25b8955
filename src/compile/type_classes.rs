//! Which values of a program have one type at all sizes, and how these types follow from those of a few.
//!
//! A model repeats its blocks, so a program of a thousand values has some sixty types.

use std::collections::HashMap;

use super::program::{Action, Program, Section, SectionKind};
use super::workspaces;
use crate::ops::{Op, TensorType, TypeError, ValueId, WorkspaceLimits};

#[derive(Clone, Debug)]
pub(super) struct TypeClasses {
    /// By class, in an order in which each follows from those before it.
    sources: Vec<Source>,
    /// By value.
    of: Vec<usize>,
    /// Launches that differ at most in which values of the same types they work on.
    alike: Vec<Alike>,
}

/// Where the type of a class comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// From this value, whose type is given.
    Given(ValueId),
    /// From what an operation makes of its inputs.
    Output { alike: usize, index: usize },
}

/// The classes of a launch's operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Operands {
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Alike {
    /// Where the first of them is: section and instruction.
    first: (usize, usize),
    operands: Operands,
    workspaces: Vec<ValueId>,
    /// How many of them count for the model's FLOPs.
    of_model: u64,
}

impl TypeClasses {
    /// Of a program whose equal types are equal at all sizes. Types of `given` values are never derived.
    pub(super) fn new(program: &Program, given: &[ValueId]) -> TypeClasses {
        let mut classes =
            TypeClasses { sources: Vec::new(), of: vec![0; program.values.len()], alike: Vec::new() };
        let mut by_type: HashMap<TensorType, usize> = HashMap::new();
        let mut derived = vec![false; program.values.len()];
        for instruction in program.sections.iter().flat_map(|section| &section.code) {
            if let Action::Launch { outputs, workspace, .. } = &instruction.action {
                outputs.iter().chain(workspace).for_each(|id| derived[id.index()] = true);
            }
        }
        given.iter().for_each(|id| derived[id.index()] = false);
        for id in (0..program.values.len() as u32).map(ValueId).filter(|id| !derived[id.index()]) {
            classes.of[id.index()] = *by_type.entry(program.ty(id)).or_insert_with(|| {
                classes.sources.push(Source::Given(id));
                classes.sources.len() - 1
            });
        }
        classes.derive(program, &mut by_type);
        classes
    }

    fn derive(&mut self, program: &Program, by_type: &mut HashMap<TensorType, usize>) {
        let mut known: HashMap<Operands, Vec<(usize, &Op)>> = HashMap::new();
        for (number, section) in program.sections.iter().enumerate() {
            for (index, instruction) in section.code.iter().enumerate() {
                let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
                let next = self.alike.len();
                for (index, &output) in outputs.iter().enumerate() {
                    self.of[output.index()] = *by_type.entry(program.ty(output)).or_insert_with(|| {
                        self.sources.push(Source::Output { alike: next, index });
                        self.sources.len() - 1
                    });
                }
                let of = |ids: &[ValueId]| ids.iter().map(|id| self.of[id.index()]).collect();
                let operands = Operands { inputs: of(inputs), outputs: of(outputs) };
                let ops = known.entry(operands.clone()).or_default();
                let alike = match ops.iter().find(|(_, other)| *other == op) {
                    Some(&(alike, _)) => alike,
                    None => {
                        ops.push((next, op));
                        let first = (number, index);
                        self.alike.push(Alike { first, operands, workspaces: Vec::new(), of_model: 0 });
                        next
                    }
                };
                let of_model = section.kind == SectionKind::First && !instruction.recompute;
                self.alike[alike].of_model += u64::from(of_model);
                self.alike[alike].workspaces.extend(workspace);
            }
        }
    }

    /// Gives every value the type that follows from the given ones, and the program its FLOPs.
    ///
    /// # Errors
    /// The given types do not fit an operation.
    pub(super) fn apply(&self, program: &mut Program, limits: &WorkspaceLimits) -> Result<(), TypeError> {
        let mut types: Vec<TensorType> = Vec::with_capacity(self.sources.len());
        for source in &self.sources {
            types.push(match *source {
                Source::Given(id) => program.ty(id),
                Source::Output { alike, index } => {
                    let Alike { first, operands, .. } = &self.alike[alike];
                    let inputs = of_classes(&operands.inputs, &types);
                    operation(&program.sections, *first).outputs(&inputs)?[index]
                }
            });
        }
        for (value, &class) in program.values.iter_mut().zip(&self.of) {
            value.ty = types[class];
        }
        program.model_flops = 0;
        for Alike { first, operands, workspaces, of_model } in &self.alike {
            if workspaces.is_empty() && *of_model == 0 {
                continue;
            }
            let inputs = of_classes(&operands.inputs, &types);
            let outputs = of_classes(&operands.outputs, &types);
            let op = operation(&program.sections, *first);
            program.model_flops += of_model * op.flops(&inputs, &outputs);
            if !workspaces.is_empty() {
                let workspace = workspaces::ty(op.workspace(&inputs, &outputs, limits));
                workspaces.iter().for_each(|id| program.values[id.index()].ty = workspace);
            }
        }
        Ok(())
    }
}

fn of_classes(classes: &[usize], types: &[TensorType]) -> Vec<TensorType> {
    classes.iter().map(|&class| types[class]).collect()
}

/// The operation launched at a section's instruction.
fn operation(sections: &[Section], (section, index): (usize, usize)) -> &Op {
    match &sections[section].code[index].action {
        Action::Launch { op, .. } => op,
        _ => unreachable!("only launches are looked up"),
    }
}
