//! Micro-batches of different lengths: a program for each length, of one structure.
//!
//! The run's program is that of the longest sample. The program of a shorter micro-batch has the same values and
//! instructions; only the values of its forward pass have other shapes. Values that live across sections (parameters,
//! gradients, batches in host memory) keep theirs, so that each section can run with a program of its own. In an arena, a
//! shorter micro-batch has the offsets of the longest.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::instantiate::{resize_operations, resize_values};
use super::ir::{Action, Program, Section, SectionKind, ShapeSource};
use super::verify::{Invariant, Violation, verify};
use super::{Verification, rank_graphs};
use data::PaddedLengths;
use device::Target;
use graph::Graphs;
use ops::{Shape, ValueId};
use spec::RunConfig;

/// The padded length of each micro-batch, and the program of each length but the longest.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthPrograms {
    pub lengths: Arc<PaddedLengths>,
    programs: BTreeMap<usize, Program>,
}

impl Program {
    /// The program of a micro-batch of this length.
    pub fn at_length(&self, length: usize) -> &Program {
        self.lengths.as_ref().and_then(|lengths| lengths.programs.get(&length)).unwrap_or(self)
    }

    /// The program of a section that processes a micro-batch of a batch: of an optimizer step or, in an evaluation, of
    /// the evaluation so far. All are counted from 0.
    pub fn of_micro_batch(&self, kind: SectionKind, batch: usize, micro_batch: usize) -> &Program {
        let Some(LengthPrograms { lengths, .. }) = &self.lengths else { return self };
        match kind {
            SectionKind::Start | SectionKind::Update => self,
            SectionKind::First | SectionKind::Micro | SectionKind::Tail => {
                self.at_length(lengths.training(batch, micro_batch))
            }
            SectionKind::Evaluation | SectionKind::EvaluationTail => {
                self.at_length(lengths.evaluation(batch, micro_batch))
            }
        }
    }
}

/// The sections that the steps of a run execute.
pub struct StepSections<'p> {
    pub steps: u64,
    pub sections: Vec<StepSection<'p>>,
}

/// A section in the program of one length.
pub struct StepSection<'p> {
    pub program: &'p Program,
    pub section: &'p Section,
    /// Executions in all steps together.
    pub times: u64,
}

impl StepSections<'_> {
    /// The mean of the steps of a figure that each execution of a section has.
    pub fn mean(&self, figure: impl Fn(&StepSection<'_>) -> u64) -> u64 {
        let total: u128 = self.sections.iter().map(|of| u128::from(of.times) * u128::from(figure(of))).sum();
        (total / u128::from(self.steps)) as u64
    }
}

impl<'p> StepSection<'p> {
    fn new((program, number, times): (&'p Program, usize, u64)) -> StepSection<'p> {
        StepSection { program, section: &program.sections[number], times }
    }
}

impl Program {
    /// The sections of one step, or of all steps of the run if lengths vary.
    pub fn step_sections(&self) -> StepSections<'_> {
        let step_sections = || self.sections.iter().enumerate().filter(|(_, of)| of.kind.is_in_step());
        let Some(of) = self.lengths.as_ref().filter(|of| of.lengths.steps() > 0) else {
            let once = step_sections().map(|(number, of)| (self, number, of.repeat_count as u64));
            return StepSections { steps: 1, sections: once.map(StepSection::new).collect() };
        };
        // Executions by section and length.
        let mut times: BTreeMap<(usize, u32), u64> = BTreeMap::new();
        for step in 0..of.lengths.steps() {
            let mut lengths = of.lengths.of_step(step).iter();
            for (number, section) in step_sections() {
                for _ in 0..section.repeat_count {
                    // The update has no samples.
                    let length = lengths.next().copied().unwrap_or_default();
                    *times.entry((number, length)).or_default() += 1;
                }
            }
        }
        let executed = times.into_iter();
        let executed =
            executed.map(|((number, length), times)| (self.at_length(length as usize), number, times));
        let (steps, sections) = (of.lengths.steps(), executed.map(StepSection::new).collect());
        StepSections { steps: steps as u64, sections }
    }
}

/// Adds the program of each length of the run's micro-batches.
pub(super) fn add_programs(
    program: &mut Program,
    config: &RunConfig,
    target: &Target,
    verification: Verification,
) -> Result<(), Violation> {
    program.lengths = None;
    let Some(lengths) = &config.lengths else { return Ok(()) };
    let mut programs = BTreeMap::new();
    for length in lengths.distinct().into_iter().filter(|length| *length != lengths.longest()) {
        let graphs = rank_graphs(&config.at_length(length), target);
        programs.insert(length, of_length(program, (length, &graphs), target, verification)?);
    }
    for (length, shorter) in &mut programs {
        weigh(shorter, *length as f64 / lengths.longest() as f64);
    }
    program.lengths = Some(LengthPrograms { lengths: Arc::clone(lengths), programs });
    Ok(())
}

/// The program with the forward passes of shorter samples.
fn of_length(
    longest: &Program,
    (length, graphs): (usize, &Graphs),
    target: &Target,
    verification: Verification,
) -> Result<Program, Violation> {
    let mut program = longest.clone();
    let lengths = Arc::new(PaddedLengths::of_one(length));
    program.lengths = Some(LengthPrograms { lengths, programs: BTreeMap::new() });
    let shape = |pass, value: usize| graphs.get(pass).values[value].ty.shape;
    resize_values(&mut program, |_, source| match source {
        ShapeSource::Graph(pass, index) => Some(shape(pass, index)),
        ShapeSource::Rows(pass, index, slice) => Some(shape(pass, index).of_rows(slice)),
        ShapeSource::SampleOffsets(pass, value) => Some(Shape::new(&[shape(pass, value).dims()[0], 2])),
        _ => None,
    });
    let broken = |detail: String| Err(Violation { invariant: Invariant::Overlap, detail, pass: "lengths" });
    if !resize_operations(&mut program, target) {
        return broken("an operation needs a workspace at some lengths only".to_owned());
    }
    // Otherwise it would reach beyond its place in the arena.
    let larger = |id: &ValueId| program.ty(*id).bytes() > longest.ty(*id).bytes();
    if let Some(id) = (0..program.values.len() as u32).map(ValueId).find(larger) {
        return broken(format!("{} is larger in a shorter micro-batch", program.full_name(id)));
    }
    if verification == Verification::AfterEveryPass {
        verify(&program).map_err(|violation| violation.after("lengths"))?;
    }
    Ok(program)
}

/// Multiplies the weights of all losses. Losses are means over all positions of a micro-batch, and weights of samples are
/// relative to those of the longest: a shorter micro-batch has fewer positions.
fn weigh(program: &mut Program, factor: f64) {
    for instruction in program.sections.iter_mut().flat_map(|section| &mut section.code) {
        let Action::Launch { op, .. } = &mut instruction.action else { continue };
        if let Some(loss) = op.as_loss() {
            *op = loss.of_share((f64::from(loss.terms().share) * factor) as f32);
        }
    }
}
