//! What optimizers have in common: an update of one bucket, in place and in one pass. A new one is a file of its own here, and
//! its line in the list.

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

/// The rules, one a line, by their files.
macro_rules! rules {
    ($($name:ident in $file:ident),+ $(,)?) => {
        $(pub use $file::$name;)+

        /// How a parameter moves, as its file says.
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

/// What each rule says of itself.
pub trait UpdateRule {
    /// Of its instructions.
    fn name(&self) -> &'static str;

    /// What it keeps of a bucket of its own where that is stored like this, at the most fourteen: of moments, what is quantized is
    /// followed by its scales.
    fn states(&self, format: StateFormat) -> Vec<State> {
        let stored = |moment: &Moment| {
            let numbers = State::elementwise(moment.name, format.dtype());
            let scales = (format == StateFormat::Quantized).then(|| State::scales(moment.scales));
            [Some(numbers), scales].into_iter().flatten()
        };
        self.moments().iter().flat_map(stored).collect()
    }

    /// What it keeps of each parameter from step to step.
    fn moments(&self) -> &'static [Moment] {
        &[]
    }

    /// Scratch bytes for a bucket of these members.
    fn workspace(&self, _members: &Members, _limits: &WorkspaceLimits) -> u64 {
        0
    }

    /// Of matrix products for a bucket of these members, a multiply-add counting two.
    fn flops(&self, _members: &Members) -> u64 {
        0
    }

    /// How often it goes through its products, if it has any.
    fn iterations(&self) -> usize {
        0
    }

    /// Multiplies as the forward pass does, if it multiplies matrices.
    fn set_arithmetic(&mut self, _arithmetic: Arithmetic) {}

    /// Itself, if each parameter is updated by itself.
    fn elementwise(&self) -> Option<&dyn Elementwise> {
        None
    }

    /// What else changes from step to step than the learning rate: at the step that is counted so from 1.
    fn corrections(&self, _step: usize) -> Vec<f64> {
        Vec::new()
    }
}

/// A rule that updates each parameter by itself, and says exactly how, for tests to hold kernels to.
pub trait Elementwise {
    /// One parameter updated, and its moments. `numbers` are those of [`Rule::numbers`];
    /// `decays` says whether weight decay applies.
    fn exact(&self, numbers: &[f64], decays: bool, parameter: f64, gradient: f64, moments: &mut [f64])
    -> f64;
}

impl Rule {
    /// What an update takes as the numbers of a step, counted from 1, at a learning rate: that, the step itself, which is exact
    /// up to 2^24, for what is drawn, and what the rule corrects by.
    pub fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32> {
        let corrections = self.corrections(step).into_iter().map(|correction| correction as f32);
        [learning_rate, step as f32].into_iter().chain(corrections).collect()
    }

    /// How many these are.
    pub fn numbers_len(&self) -> usize {
        self.numbers(1, 0.0).len()
    }

    /// What is kept of a bucket: its own states, and behind them the copy of parameters in 16 bits, where there is one.
    pub fn kept(&self, format: UpdateFormat) -> Vec<State> {
        self.states(format.states).into_iter().chain(format.has_master().then_some(State::MASTER)).collect()
    }
}

/// A number that a rule keeps of each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub name: &'static str,
    /// What the scales are called, and what codes stand for, where it is quantized.
    pub scales: &'static str,
    pub map: DynamicMap,
}

/// What an optimizer keeps of every bucket from step to step.
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub name: &'static str,
    pub dtype: DType,
    pub extent: Extent,
    /// Whether it begins as the parameters do, and not as zeros.
    pub copy: bool,
}

/// What of a tensor a state has a number for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Each run of so many elements. A tensor begins where a run does, and they lie as it does.
    Runs(usize),
    /// Of a matrix each row, and behind them each column; of a vector each element.
    Factors,
}

impl State {
    /// A number for each of a parameter's.
    pub const fn elementwise(name: &'static str, dtype: DType) -> State {
        State { name, dtype, extent: Extent::Runs(1), copy: false }
    }

    /// The parameters themselves, before they are rounded; at first, what they are rounded to.
    pub const MASTER: State =
        State { name: "master", dtype: DType::F32, extent: Extent::Runs(1), copy: true };

    /// The largest magnitude of each block of quantized numbers.
    pub const fn scales(name: &'static str) -> State {
        State { name, dtype: DType::F32, extent: Extent::Runs(QUANTIZED_BLOCK), copy: false }
    }

    /// Numbers of rows and of columns.
    pub const fn factors(name: &'static str) -> State {
        State { name, dtype: DType::F32, extent: Extent::Factors, copy: false }
    }

    /// How it lies in memory for a bucket of these members and this type.
    pub fn layout(&self, members: &Members, bucket: TensorType) -> (Members, TensorType) {
        let per = match self.extent {
            Extent::Runs(1) => return (members.clone(), TensorType { dtype: self.dtype, ..bucket }),
            Extent::Runs(per) => per,
            Extent::Factors => {
                let of = |member: &Member| Member {
                    shape: Shape::new(&[Factored::of(&member.shape).variances()]),
                    ..*member
                };
                return lay_out(members.iter().map(of), self.dtype, self.dtype);
            }
        };
        let of = |member: &Member| {
            assert!(member.offset.is_multiple_of(per), "a tensor begins where one of `{}` does", self.name);
            let shape = Shape::new(&[member.elements().div_ceil(per)]);
            Member { offset: member.offset / per, shape, ..*member }
        };
        let len = bucket.elements().div_ceil(per);
        (members.iter().map(of).collect(), TensorType::new(self.dtype, &[len]))
    }
}

/// What every update is told of the bucket and its gradients. With clipping, a gradient counts
/// `min(1, clip / (norm + 1e-6))`; if gradients are `scaled`, it counts one over the loss scale of that, and nothing is
/// changed where the norm is not finite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientTerms {
    pub members: Members,
    pub clip_norm: Option<f32>,
    pub scaled: bool,
}

impl GradientTerms {
    /// Whether the norm of all gradients has a say.
    pub fn need_norm(&self) -> bool {
        self.clip_norm.is_some() || self.scaled
    }
}

/// An optimizer's update of one bucket.
///
/// Inputs: parameters, unless they have a copy, and gradients, each num[len]; what is kept; the step's numbers f32[..], those of all rules, which
/// lie in device memory, so that a captured step can be replayed; then
/// the norm f32[1] with clipping or if scaled, and the loss scale f32[1] if scaled. Outputs: parameters, in place or made of
/// their copy, and what is kept, in place.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerStep {
    pub gradients: GradientTerms,
    /// How it stores what it changes.
    pub format: UpdateFormat,
    /// Where its rule's numbers begin among those of the step.
    pub numbers_at: usize,
    pub rule: Rule,
}

impl OptimizerStep {
    /// The rule's own.
    pub fn states(&self) -> Vec<State> {
        self.rule.states(self.format.states)
    }

    pub fn kept(&self) -> Vec<State> {
        self.rule.kept(self.format)
    }

    /// Which input the gradients are. What is kept follows them.
    pub fn gradients_input(&self) -> usize {
        usize::from(!self.format.has_master())
    }

    /// Which input the step's numbers are. Norm and loss scale follow them.
    pub fn numbers_input(&self) -> usize {
        self.gradients_input() + 1 + self.kept().len()
    }
}

/// What an update changes, as (output, input): parameters, and as many states as an optimizer may keep.
const IN_PLACE: [(usize, usize); MOST_STATES + 1] = {
    let mut pairs = [(0, 0); MOST_STATES + 1];
    let mut state = 1;
    while state <= MOST_STATES {
        pairs[state] = (state, 1 + state);
        state += 1;
    }
    pairs
};

/// What it changes where parameters are made of their copy: only what is kept.
const BESIDE: [(usize, usize); MOST_STATES] = {
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
        let of_step = TensorType::f32(&[inputs[numbers].elements().max(least)]);
        expect_type(name, "the step's numbers", &inputs[numbers], of_step)?;
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

    /// Parameters that are made of their copy.
    fn casts(&self, _outputs: usize) -> usize {
        if self.format.has_master() { self.gradients.members.len() } else { 0 }
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.gradients.members = sizes.buckets[0].clone();
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        let kept = self.kept().len();
        if self.format.has_master() { &BESIDE[..kept] } else { &IN_PLACE[..kept + 1] }
    }
}
