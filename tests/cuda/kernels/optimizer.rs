//! Operations on whole buckets: global norm, optimizer step, loss scale.

use ops::{
    Adam, DType, DynamicMap, GlobalNorm, GradientTerms, Lion, LossScale, Member, Members, Op, OptimizerStep,
    Rounding, Rule, Sgd, Shape, StateFormat, TensorType, UpdateFormat, WeightFormat, lay_out,
};

use super::harness::Devices;
use super::numbers::{Data, NUMBERS};

/// Two members with weight decay and one without, with padding between them.
fn members(len: usize) -> Members {
    let member = |offset, len, decay| Member { offset, ..Member::new(Shape::new(&[len]), decay, 3) };
    [member(0, 7, true), member(16, len - 40, false), member(len - 16, 9, true)].into()
}

/// Many small members: more than a launch table holds.
fn many_members(count: usize) -> Members {
    (0..count)
        .map(|i| {
            let (offset, shape) = (16 * i + i % 2, Shape::new(&[1 + i % 15]));
            Member { offset, ..Member::new(shape, i % 3 == 0, i as u32) }
        })
        .collect()
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn global_norm_matches_the_cpu() {
    let mut devices = Devices::new();
    let lens = [64, 70_000, 200_001, 16 * 150];
    let buckets = vec![members(64), members(70_000), members(200_001), many_members(150)];
    for scaled in [false, true] {
        let mut inputs: Vec<Data> =
            lens.iter().map(|&len| Data::random(DType::F32, &[len], 1.0, len as u64)).collect();
        inputs.extend(scaled.then(|| Data::scalar(64.0)));
        let op = Op::GlobalNorm(GlobalNorm { buckets: buckets.clone(), scaled });
        for dtype in NUMBERS {
            let (gradients, scale) = inputs.split_at(lens.len());
            let gradients: Vec<Data> = gradients.iter().map(|bucket| bucket.stored_as(dtype)).collect();
            devices.check(&op, &op, &[&gradients[..], scale].concat());
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn global_norm_does_not_overflow() {
    let op = Op::GlobalNorm(GlobalNorm { buckets: vec![members(64)], scaled: false });
    let found = Devices::new().cuda(&op, &[Data::new(DType::F32, &[64], vec![1e30; 64])]);
    assert!((found[0].numbers[0] / 1e30 - 40.0_f32.sqrt()).abs() < 1e-5);
}

/// Operands of an update, with an optional norm and loss scale.
fn operands(op: &OptimizerStep, len: usize, norm: Option<f32>, scale: Option<f32>) -> Vec<Data> {
    let numbers = op.rule.numbers(5, 0.01);
    let random = |scale, seed| Data::random(DType::F32, &[len], scale, seed);
    let mut inputs = vec![random(1.0, 1), random(scale.unwrap_or(1.0), 2)];
    inputs.extend(op.rule.moments().iter().zip(3..).map(|(moment, seed)| {
        let random = random(1.0, seed);
        if moment.map == DynamicMap::Unsigned { random.map(f32::abs) } else { random }
    }));
    inputs.push(Data::new(DType::F32, &[numbers.len()], numbers));
    inputs.extend(norm.map(Data::scalar));
    inputs.extend(scale.map(Data::scalar));
    inputs
}

/// Every elementwise rule, with all of its optional terms.
fn rules() -> Vec<Rule> {
    let adam = |decoupled| Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1, decoupled };
    let lion = Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
    let sgds = [(0.0, false, 0.0), (0.0, false, 0.1), (0.9, false, 0.1), (0.9, true, 0.0), (0.9, true, 0.1)];
    let sgd = |(momentum, nesterov, weight_decay)| Rule::Sgd(Sgd { momentum, nesterov, weight_decay });
    let others = [Rule::Adam(adam(true)), Rule::Adam(adam(false)), Rule::Lion(lion)];
    others.into_iter().chain(sgds.map(sgd)).collect()
}

/// One update per rule, with these gradients and this format.
fn every_update(gradients: &GradientTerms, format: UpdateFormat) -> Vec<OptimizerStep> {
    rules()
        .into_iter()
        .map(|rule| OptimizerStep { gradients: gradients.clone(), format, numbers_at: 0, rule })
        .collect()
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn elementwise_updates_match_the_cpu() {
    let mut devices = Devices::new();
    for (len, members) in [(64, members(64)), (50_001, members(50_001)), (16 * 150, many_members(150))] {
        for (clip_norm, scaled) in
            [None, Some(9.0), Some(0.5)].map(|clip| [(clip, false), (clip, true)]).concat()
        {
            let gradients = GradientTerms { members: members.clone(), clip_norm, scaled };
            let norm = gradients.need_norm().then_some(2.0);
            for update in every_update(&gradients, UpdateFormat::default()) {
                let op = Op::OptimizerStep(update.clone());
                // Padding is NaN in the reference's operands too, and stays unchanged.
                devices.check(&op, &op, &operands(&update, len, norm, scaled.then_some(1024.0)));
            }
        }
    }
}

/// The operands of an update for types of parameters and gradients: random states in their own format, and a master
/// copy if the format has one.
pub(super) fn stored_operands(
    update: &OptimizerStep,
    ty: TensorType,
    [parameter_dtype, gradient_dtype]: [DType; 2],
) -> Vec<Data> {
    let (members, len) = (&update.gradients.members, ty.elements());
    let plain = operands(update, len, Some(2.0), None);
    let mut inputs = Vec::new();
    if !update.format.has_master() {
        inputs.push(plain[0].stored_as(parameter_dtype));
    }
    inputs.push(plain[1].stored_as(gradient_dtype));
    for (index, state) in update.kept().iter().enumerate() {
        let ty = state.layout(members, ty).1;
        let random = Data::random(DType::F32, &[ty.elements()], 1.0, 9 + index as u64);
        let (scale, shift) = if ty.dtype == DType::U8 { (127.0, 127.5) } else { (1.0, 0.0) };
        let is_square = state.name.starts_with("moment2") || ty.elements() < len;
        let number = |x: f32| if is_square && ty.dtype != DType::U8 { x.abs() } else { x };
        let numbers = random.numbers.iter().map(|&x| number(x * scale + shift));
        let numbers = numbers.map(|x| if ty.dtype == DType::U8 { x.floor() } else { x }).collect();
        let numbers = Data::new(DType::F32, &[ty.elements()], numbers);
        inputs.push(if ty.dtype == DType::U8 {
            Data::new(DType::U8, &[ty.elements()], numbers.numbers)
        } else {
            numbers.stored_as(ty.dtype)
        });
    }
    inputs.extend_from_slice(&plain[plain.len() - 2..]);
    inputs
}

/// Members of these lengths, every other one with weight decay.
fn tensors(lens: [usize; 3]) -> impl Iterator<Item = Member> + Clone {
    let member = |(index, len)| Member::new(Shape::new(&[len]), index % 2 == 0, 5 + index as u32);
    lens.into_iter().enumerate().map(member)
}

/// Asserts that an update gives the same parameters and states on both devices.
fn assert_same_update(
    devices: &mut Devices,
    update: &OptimizerStep,
    members: &Members,
    ty: TensorType,
    dtypes: [DType; 2],
) {
    let op = Op::OptimizerStep(update.clone());
    let inputs = stored_operands(update, ty, dtypes);
    let expected = devices.cpu(&op, &inputs);
    let found = devices.cuda(&op, &inputs);
    assert_eq!(found.len(), 1 + update.kept().len());
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let label = format!("{op:?} of {}: output {index}", dtypes[0]);
        let members = match index {
            0 => members.clone(),
            index => update.kept()[index - 1].layout(members, ty).0,
        };
        assert_near(found, expected, &members, &label);
    }
}

/// Both devices start from the same bits. Codes and 16-bit numbers near a rounding boundary may differ by one step.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn updates_with_low_precision_states_match_the_cpu() {
    let mut devices = Devices::new();
    let formats = [
        StateFormat::Bf16(Rounding::Nearest),
        StateFormat::Bf16(Rounding::Stochastic { seed: 0x1234_5678_9abc }),
        StateFormat::Quantized,
    ];
    // All remainders modulo 4: a thread updates four elements at once, or the rest of a tensor.
    let lens = [[4096, 7, 302], [1, 256, 13_001]];
    for (format, lens) in formats.into_iter().flat_map(|format| lens.map(|lens| (format, lens))) {
        let (members, ty) = lay_out(tensors(lens), DType::F32, format.dtype());
        let gradients = GradientTerms { members: members.clone(), clip_norm: Some(0.5), scaled: false };
        for update in every_update(&gradients, UpdateFormat::of_states(format))
            .into_iter()
            .filter(|update| !update.states().is_empty())
        {
            assert_same_update(&mut devices, &update, &members, ty, [ty.dtype; 2]);
        }
    }
}

/// Parameters and gradients in 16 bits, with a master copy or rounded to nearest or stochastically, and with states in
/// every format. Results match the CPU's, except for numbers near a rounding boundary.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn updates_of_16_bit_parameters_match_the_cpu() {
    let mut devices = Devices::new();
    let seed = 0x9abc_1234_5678;
    let weights =
        [WeightFormat::InPlace(Rounding::Nearest), WeightFormat::InPlace(Rounding::Stochastic { seed })];
    let types = [DType::BF16, DType::F16].map(|half| [(half, half), (half, DType::F32)]).concat();
    let cases = types.into_iter().flat_map(|types| {
        weights.into_iter().chain([WeightFormat::Master(types.0)]).map(move |weights| (types, weights))
    });
    for ((half, gradient_dtype), weights) in cases {
        for states in
            [StateFormat::F32, StateFormat::Bf16(Rounding::Stochastic { seed: 3 }), StateFormat::Quantized]
        {
            let format = UpdateFormat { states, weights };
            let narrowest = if states == StateFormat::F32 { half } else { states.dtype() };
            let (members, ty) = lay_out(tensors([4098, 7, 13_001]), half, narrowest);
            let gradients = GradientTerms { members: members.clone(), clip_norm: Some(0.5), scaled: false };
            for update in every_update(&gradients, format) {
                assert_same_update(&mut devices, &update, &members, ty, [half, gradient_dtype]);
            }
        }
    }
}

/// A skipped step still writes the parameters from their master copy, because they may not be stored otherwise.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn skipped_step_rounds_the_master_copy() {
    let mut devices = Devices::new();
    for half in [DType::BF16, DType::F16] {
        for states in [StateFormat::F32, StateFormat::Quantized] {
            let tensor = |len| Member::new(Shape::new(&[len]), true, 5);
            let (members, ty) = lay_out([4096, 7, 300].map(tensor).into_iter(), half, states.dtype());
            let gradients = GradientTerms { members: members.clone(), clip_norm: None, scaled: true };
            let format = UpdateFormat { states, weights: WeightFormat::Master(half) };
            for update in every_update(&gradients, format) {
                let op = Op::OptimizerStep(update.clone());
                let mut inputs = stored_operands(&update, ty, [half, half]);
                let norm = inputs.len() - 1;
                inputs[norm] = Data::scalar(f32::INFINITY);
                inputs.push(Data::scalar(1024.0));
                let found = devices.cuda(&op, &inputs);
                let master = &inputs[1 + update.states().len()];
                let rounded = master.stored_as(half);
                assert_eq!(found.last().map(|found| &found.numbers), Some(&master.numbers));
                for i in members.iter().flat_map(|member| member.offset..member.offset + member.elements()) {
                    assert_eq!(found[0].numbers[i], rounded.numbers[i], "{op:?} of {half} at {i}");
                }
            }
        }
    }
}

/// Asserts that the members' elements agree; padding is ignored.
pub(super) fn assert_near(found: &Data, expected: &Data, members: &Members, label: &str) {
    let TensorType { dtype, .. } = found.ty;
    let mut differing = 0;
    for i in members.iter().flat_map(|member| member.offset..member.offset + member.elements()) {
        let (found, expected) = (found.numbers[i], expected.numbers[i]);
        let near = match dtype {
            DType::U8 => (found - expected).abs() <= 1.0,
            // Where terms cancel, the f32 sum's own error of up to 1e-7 remains.
            DType::BF16 => (found - expected).abs() <= expected.abs() / 127.0 + 1e-7,
            DType::F16 => (found - expected).abs() <= expected.abs() / 1023.0 + 6e-8,
            _ => (found - expected).abs() <= 1e-5 * expected.abs().max(1e-2),
        };
        assert!(near, "{label}, {dtype} at {i}: {found} instead of {expected}");
        differing += usize::from(found != expected && dtype != DType::F32);
    }
    let all: usize = members.iter().map(Member::elements).sum();
    assert!(differing <= 1 + all / 100, "{label}: {differing} of {all} differ");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn non_finite_norm_skips_the_step() {
    let mut devices = Devices::new();
    for norm in [f32::INFINITY, f32::NAN] {
        for clip_norm in [None, Some(1.0)] {
            for update in every_update(
                &GradientTerms { members: members(5000), clip_norm, scaled: true },
                UpdateFormat::default(),
            ) {
                let inputs = operands(&update, 5000, Some(norm), Some(1024.0));
                let op = Op::OptimizerStep(update.clone());
                let outputs = devices.cuda(&op, &inputs);
                assert_eq!(outputs.len(), 1 + update.states().len());
                for (output, input) in outputs.iter().zip([0, 2, 3]) {
                    assert_eq!(output.numbers, inputs[input].numbers, "{op:?}, norm {norm}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn loss_scale_follows_the_norms() {
    let mut devices = Devices::new();
    let rule = LossScale { backoff: 0.5, growth: 2.0, interval: 3.0 };
    for (scale, counts, norm) in [
        (1024.0, [0.0, 0.0], 1.0),
        (1024.0, [1.0, 4.0], 1.0),
        (1024.0, [2.0, 4.0], 1.0),
        (1024.0, [2.0, 4.0], f32::INFINITY),
        (1024.0, [2.0, 4.0], f32::NAN),
        (2e38, [2.0, 4.0], 1.0),
    ] {
        let inputs = [Data::scalar(scale), Data::new(DType::F32, &[2], counts.to_vec()), Data::scalar(norm)];
        let outputs = devices.cuda(&Op::LossScale(rule), &inputs);
        let (expected, next) = rule.next(scale, ops::StepCounts::from_array(counts), norm);
        assert_eq!(outputs[0].numbers, [expected]);
        assert_eq!(outputs[1].numbers, [next.good, next.skipped]);
    }
}
