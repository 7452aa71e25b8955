//! The optimizer step: a fused in-place update of one bucket. A new optimizer is one file in `update/` and one line in
//! the `rules!` list.

mod adafactor;
mod adam;
mod lion;
mod muon;
mod sgd;

use super::{
    Arithmetic, DType, DynamicMap, Member, Members, Operation, QUANTIZED_BLOCK, SCALE, Shape, Sizes,
    StateFormat, TensorType, TypeError, UpdateFormat, WeightFormat, WorkspaceLimits, expect_float,
    expect_inputs, expect_type, lay_out,
};

/// The update rules with their modules, one per line.
macro_rules! rules {
    ($($name:ident in $file:ident),+ $(,)?) => {
        $(pub use $file::$name;)+

        /// The update rule of an optimizer.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Rule {
            $($name($name)),+
        }

        impl std::ops::DerefMut for Rule {
            fn deref_mut(&mut self) -> &mut (dyn UpdateRule + 'static) {
                match self {
                    $(Rule::$name(rule) => rule),+
                }
            }
        }

        impl std::ops::Deref for Rule {
            type Target = dyn UpdateRule;

            fn deref(&self) -> &(dyn UpdateRule + 'static) {
                match self {
                    $(Rule::$name(rule) => rule),+
                }
            }
        }
    };
}

pub use adafactor::Factored;
pub use muon::{Adjust, MuonScratch};

rules! {
    Adafactor in adafactor,
    Adam in adam,
    Lion in lion,
    Muon in muon,
    Sgd in sgd,
}

/// The declarations of an update rule.
pub trait UpdateRule {
    /// The name of its operation.
    fn name(&self) -> &'static str;

    /// The states that it keeps per bucket in this format, at most fourteen. A quantized moment is followed by its
    /// scales.
    fn states(&self, format: StateFormat) -> Vec<State> {
        let stored = |moment: &Moment| {
            let numbers = State::elementwise(moment.name, format.dtype());
            let scales = (format == StateFormat::Quantized).then(|| State::scales(moment.scales));
            [Some(numbers), scales].into_iter().flatten()
        };
        self.moments().iter().flat_map(stored).collect()
    }

    /// The states with one number per parameter element (moments).
    fn moments(&self) -> &'static [Moment] {
        &[]
    }

    /// Scratch bytes for a bucket with these members.
    fn workspace(&self, _members: &Members, _limits: &WorkspaceLimits) -> u64 {
        0
    }

    /// FLOPs of the matmuls for a bucket with these members; a multiply-add counts as two.
    fn flops(&self, _members: &Members) -> u64 {
        0
    }

    /// The number of iterations of its matmuls; 0 without any.
    fn iterations(&self) -> usize {
        0
    }

    /// Sets the precision of its matmuls, if it has any, to that of the forward pass.
    fn set_arithmetic(&mut self, _arithmetic: Arithmetic) {}

    /// Its element-wise form, if it updates each element independently.
    fn elementwise(&self) -> Option<&dyn Elementwise> {
        None
    }

    /// Step-dependent numbers besides the learning rate, at step `step`, counted from 1.
    fn corrections(&self, _step: usize) -> Vec<f64> {
        Vec::new()
    }
}

/// A rule that updates each element independently. Tests compare kernels with its f64 implementation.
pub trait Elementwise {
    /// Returns the updated parameter and updates its moments. `numbers` are those of [`Rule::numbers`]; `decays` tells
    /// whether weight decay applies.
    fn exact(&self, numbers: &[f64], decays: bool, parameter: f64, gradient: f64, moments: &mut [f64])
    -> f64;
}

impl Rule {
    /// The per-step input of an update at step `step`, counted from 1: the learning rate, the step itself (exact up to
    /// 2^24; seeds stochastic rounding) and the rule's corrections.
    pub fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32> {
        let corrections = self.corrections(step).into_iter().map(|correction| correction as f32);
        [learning_rate, step as f32].into_iter().chain(corrections).collect()
    }

    /// The length of [`Rule::numbers`].
    pub fn numbers_len(&self) -> usize {
        self.numbers(1, 0.0).len()
    }

    /// All states of a bucket: those of the rule, followed by the master weights if parameters are stored in 16 bits
    /// with an f32 copy.
    pub fn kept(&self, format: UpdateFormat) -> Vec<State> {
        self.states(format.states).into_iter().chain(format.has_master().then_some(State::MASTER)).collect()
    }
}

/// A state with one number per parameter element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub name: &'static str,
    /// The name of its scales if it is quantized.
    pub scales: &'static str,
    /// The meaning of its codes if it is quantized.
    pub map: DynamicMap,
}

/// A persistent optimizer state of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub name: &'static str,
    pub dtype: DType,
    pub extent: StateGranularity,
    /// Whether it is initialised with the parameters instead of zeros.
    pub copy: bool,
}

/// The granularity of a state: which parts of a tensor have one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateGranularity {
    /// One number per block of this many consecutive elements. A tensor starts at a block boundary; states have the
    /// order of the elements.
    Runs(usize),
    /// One number per row of a matrix, followed by one per column; for a vector one per element.
    Factors,
}

impl State {
    /// One number per parameter element.
    pub const fn elementwise(name: &'static str, dtype: DType) -> State {
        State { name, dtype, extent: StateGranularity::Runs(1), copy: false }
    }

    /// Master weights: the parameters before rounding. They are initialised with the rounded parameters.
    pub const MASTER: State =
        State { name: "master", dtype: DType::F32, extent: StateGranularity::Runs(1), copy: true };

    /// The largest magnitude of each block of quantized elements.
    pub const fn scales(name: &'static str) -> State {
        State { name, dtype: DType::F32, extent: StateGranularity::Runs(QUANTIZED_BLOCK), copy: false }
    }

    /// One number per row and per column.
    pub const fn factors(name: &'static str) -> State {
        State { name, dtype: DType::F32, extent: StateGranularity::Factors, copy: false }
    }

    /// Its layout for a bucket with these members and of this type.
    pub fn layout(&self, members: &Members, bucket: TensorType) -> (Members, TensorType) {
        let per = match self.extent {
            StateGranularity::Runs(1) => {
                return (members.clone(), TensorType { dtype: self.dtype, ..bucket });
            }
            StateGranularity::Runs(per) => per,
            StateGranularity::Factors => {
                let factors = |member: &Member| Member {
                    shape: Shape::new(&[Factored::of(&member.shape).variances()]),
                    ..*member
                };
                return lay_out(members.iter().map(factors), self.dtype, self.dtype);
            }
        };
        let blocks = |member: &Member| {
            assert!(
                member.offset.is_multiple_of(per),
                "a tensor must start at a block of state `{}`",
                self.name
            );
            let shape = Shape::new(&[member.elements().div_ceil(per)]);
            Member { offset: member.offset / per, shape, ..*member }
        };
        let len = bucket.elements().div_ceil(per);
        (members.iter().map(blocks).collect(), TensorType::new(self.dtype, &[len]))
    }
}

/// Bucket layout and gradient terms of an update. Clipping multiplies a gradient by `min(1, clip / (norm + 1e-6))`. If
/// gradients are `scaled`, they are also divided by the loss scale, and a step with a non-finite norm changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientTerms {
    pub members: Members,
    pub clip_norm: Option<f32>,
    pub scaled: bool,
}

impl GradientTerms {
    /// Whether the update reads the global gradient norm.
    pub fn need_norm(&self) -> bool {
        self.clip_norm.is_some() || self.scaled
    }
}

/// The optimizer step of one bucket.
///
/// Inputs: parameters num[len], unless there are master weights; gradients num[len]; the states; the step's numbers
/// f32[..] of all rules, in device memory so that a captured step can be replayed; the norm f32[1] with clipping or if
/// scaled; the loss scale f32[1] if scaled. Outputs: parameters, in place or computed from the master weights, and the
/// states, in place.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerStep {
    pub gradients: GradientTerms,
    /// Storage format of parameters and states.
    pub format: UpdateFormat,
    /// The index of the rule's first number among the step's numbers.
    pub numbers_at: usize,
    pub rule: Rule,
}

impl OptimizerStep {
    /// The states of the rule, without master weights.
    pub fn states(&self) -> Vec<State> {
        self.rule.states(self.format.states)
    }

    pub fn kept(&self) -> Vec<State> {
        self.rule.kept(self.format)
    }

    /// The index of the gradients among the inputs. The states follow.
    pub fn gradients_input(&self) -> usize {
        usize::from(!self.format.has_master())
    }

    /// The index of the step's numbers among the inputs. Norm and loss scale follow.
    pub fn numbers_input(&self) -> usize {
        self.gradients_input() + 1 + self.kept().len()
    }
}

/// Required aliases as (output, input) without master weights: parameters and up to `MOST_STATES` states.
const ALIASES: [(usize, usize); MOST_STATES + 1] = {
    let mut pairs = [(0, 0); MOST_STATES + 1];
    let mut state = 1;
    while state <= MOST_STATES {
        pairs[state] = (state, 1 + state);
        state += 1;
    }
    pairs
};

/// Required aliases with master weights: only the states.
const ALIASES_WITH_MASTER: [(usize, usize); MOST_STATES] = {
    let mut pairs = [(0, 0); MOST_STATES];
    let mut state = 1;
    while state <= MOST_STATES {
        pairs[state - 1] = (state, state);
        state += 1;
    }
    pairs
};

const MOST_STATES: usize = 15;

impl Operation for OptimizerStep {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn as_update(&self) -> Option<&OptimizerStep> {
        Some(self)
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let name = self.name();
        let GradientTerms { ref members, clip_norm: _, scaled } = self.gradients;
        let norm = usize::from(self.gradients.need_norm());
        let (gradients, numbers) = (self.gradients_input(), self.numbers_input());
        expect_inputs(name, inputs, numbers + 1 + norm + usize::from(scaled))?;
        let dtype = expect_float(name, "gradients", &inputs[gradients])?;
        let parameters = match self.format.weights {
            WeightFormat::InPlace(_) => {
                expect_type(name, "gradients", &inputs[gradients], TensorType { dtype, ..inputs[0] })?;
                inputs[0]
            }
            WeightFormat::Master(dtype) => TensorType { dtype, ..inputs[gradients] },
        };
        expect_float(name, "parameters", &parameters)?;
        let states = &inputs[gradients + 1..numbers];
        for (state, found) in self.kept().iter().zip(states) {
            expect_type(name, state.name, found, state.layout(members, parameters).1)?;
        }
        let least = self.numbers_at + self.rule.numbers_len();
        let numbers_type = TensorType::f32(&[inputs[numbers].elements().max(least)]);
        expect_type(name, "the step's numbers", &inputs[numbers], numbers_type)?;
        if norm > 0 {
            expect_type(name, "norm", &inputs[numbers + 1], TensorType::scalar())?;
        }
        if scaled {
            expect_type(name, "the loss scale", &inputs[numbers + 2], SCALE)?;
        }
        Ok([&[parameters], states].concat())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        self.rule.workspace(&self.gradients.members, limits)
    }

    fn flops(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        self.rule.flops(&self.gradients.members)
    }

    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.rule.set_arithmetic(arithmetic);
    }

    /// Parameters computed from master weights.
    fn casts(&self, _outputs: usize) -> usize {
        if self.format.has_master() { self.gradients.members.len() } else { 0 }
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.gradients.members = sizes.buckets[0].clone();
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        let kept = self.kept().len();
        if self.format.has_master() { &ALIASES_WITH_MASTER[..kept] } else { &ALIASES[..kept + 1] }
    }
}
