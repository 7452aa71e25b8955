//! Gradient norms, optimizer steps and the loss scale.

use crate::cpu::kernels::simd::Level;
use ops::{
    Adam, DynamicMap, GlobalNorm, GradientTerms, Lion, LossScale, Member, Members, Op, OptimizerStep, Rule,
    Sgd, Shape, TensorType, UpdateFormat,
};

use super::harness::{Data, FLOATS, LaunchOptions, cases, check, check_variants, launch};
use super::{adafactor, muon};

/// Two members with weight decay and one without, with padding between them.
fn members(len: usize) -> Members {
    let member = |offset, len, decay| Member { offset, ..Member::new(Shape::new(&[len]), decay, 3) };
    [member(0, 7, true), member(16, len - 40, false), member(len - 16, 9, true)].into()
}

#[test]
fn global_norm_matches_the_reference() {
    let lens = [64, 70_000, 200_001];
    let op = GlobalNorm { buckets: lens.map(members).to_vec(), scaled: false };
    let inputs: Vec<Data> = lens.iter().map(|&len| Data::random(&[len], len as u64)).collect();
    let mut squares = 0.0;
    for (bucket, members) in inputs.iter().zip(&op.buckets) {
        let values = bucket.to_f64();
        for Member { offset, shape, .. } in members.iter() {
            squares += values[*offset..offset + shape.elements()].iter().map(|x| x * x).sum::<f64>();
        }
    }
    check(Op::GlobalNorm(op.clone()), &inputs, &[vec![squares.sqrt()]]);
    for number in FLOATS {
        let inputs: Vec<Data> = inputs.iter().map(|bucket| bucket.clone().stored_as(number)).collect();
        let buckets = op.buckets.iter().zip(&inputs).flat_map(|(members, bucket)| {
            let values = bucket.to_f64();
            let parts = members.iter().map(|member| member.offset..member.offset + member.elements());
            parts.flat_map(|part| values[part].to_vec()).collect::<Vec<_>>()
        });
        let norm = buckets.map(|value| value * value).sum::<f64>().sqrt();
        check(Op::GlobalNorm(op.clone()), &inputs, &[vec![norm]]);
    }
    let inputs: Vec<Data> = inputs.into_iter().chain([Data::scalar(1024.0)]).collect();
    check(Op::GlobalNorm(GlobalNorm { scaled: true, ..op }), &inputs, &[vec![squares.sqrt() / 1024.0]]);
}

/// Every elementwise update rule, with each of its optional terms.
pub(super) fn rules() -> Vec<Rule> {
    let adam = |decoupled, weight_decay| {
        Rule::Adam(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay, decoupled })
    };
    let lion = |weight_decay| Rule::Lion(Lion { beta1: 0.9, beta2: 0.99, weight_decay });
    let sgd = |momentum, nesterov, weight_decay| Rule::Sgd(Sgd { momentum, nesterov, weight_decay });
    vec![
        adam(true, 0.1),
        adam(false, 0.1),
        lion(0.1),
        sgd(0.0, false, 0.0),
        sgd(0.0, false, 0.1),
        sgd(0.9, false, 0.1),
        sgd(0.9, true, 0.1),
        sgd(0.9, true, 0.0),
    ]
}

/// An optimizer step on a bucket of `len` elements, with its inputs. `loss_scale` is the scale of the gradients.
fn update(
    rule: Rule,
    len: usize,
    clip_norm: Option<f32>,
    norm: f32,
    loss_scale: Option<f32>,
) -> (OptimizerStep, Vec<Data>) {
    let gradients = GradientTerms { members: members(len), clip_norm, scaled: loss_scale.is_some() };
    let numbers = rule.numbers(5, 0.01);
    let mut inputs: Vec<Data> = (0..2).map(|seed| Data::random(&[len], seed)).collect();
    inputs.extend(rule.moments().iter().zip(2..).map(|(moment, seed)| {
        let random = Data::random(&[len], seed);
        if moment.map == DynamicMap::Unsigned { random.map(f32::abs) } else { random }
    }));
    inputs.push(Data::F32(TensorType::f32(&[numbers.len()]), numbers));
    inputs.extend((clip_norm.is_some() || loss_scale.is_some()).then(|| Data::scalar(norm)));
    inputs.extend(loss_scale.map(Data::scalar));
    (OptimizerStep { gradients, format: UpdateFormat::default(), numbers_at: 0, rule }, inputs)
}

#[test]
fn updates_match_their_rules() {
    let clips = [(None, 1.0), (Some(9.0), 1.0), (Some(0.5), 0.5 / (2.0 + 1e-6))];
    let (begins, scales, rules) = ([1.0, 0.0], [None, Some(3.0)], rules());
    for ([rule, begin, clip, scale], variants) in
        cases(3, [rules.len(), begins.len(), clips.len(), scales.len()])
    {
        let (rule, (clip_norm, clip), loss_scale) = (&rules[rule], clips[clip], scales[scale]);
        // With moments of zero, as in the first step, the new moments are the weighted gradients alone.
        let initial_scale = begins[begin];
        let (op, mut inputs) = update(rule.clone(), 50_000, clip_norm, 2.0, loss_scale);
        let moments = rule.moments().len();
        for moment in &mut inputs[2..2 + moments] {
            *moment = moment.clone().map(|moment| moment * initial_scale);
        }
        let [mut parameters, gradients] = [0, 1].map(|index| inputs[index].to_f64());
        let mut states: Vec<Vec<f64>> = inputs[2..2 + moments].iter().map(Data::to_f64).collect();
        let numbers = inputs[2 + moments].to_f64();
        for member in op.gradients.members.iter() {
            for i in member.offset..member.offset + member.elements() {
                let gradient = gradients[i] * clip / f64::from(loss_scale.unwrap_or(1.0));
                let mut element_states: Vec<f64> = states.iter().map(|state| state[i]).collect();
                let rule = rule.elementwise().expect("an elementwise rule");
                parameters[i] =
                    rule.exact(&numbers, member.decay, parameters[i], gradient, &mut element_states);
                states.iter_mut().zip(element_states).for_each(|(state, number)| state[i] = number);
            }
        }
        let expected: Vec<Vec<f64>> = [parameters].into_iter().chain(states).collect();
        check_variants(variants, Op::OptimizerStep(op), &inputs, &expected);
    }
}

/// A step of every elementwise rule.
pub(super) fn updates(clip_norm: Option<f32>, norm: f32, loss_scale: Option<f32>) -> Vec<(Op, Vec<Data>)> {
    let update = |rule| {
        let (op, inputs) = update(rule, 100, clip_norm, norm, loss_scale);
        (Op::OptimizerStep(op), inputs)
    };
    rules().into_iter().map(update).collect()
}

/// A step of every elementwise rule, and of every rule on whole tensors.
fn all_updates(norm: f32, clip_norm: Option<f32>, loss_scale: Option<f32>) -> Vec<(Op, Vec<Data>)> {
    let mut tensor_updates = tensor_updates(clip_norm, loss_scale);
    tensor_updates.iter_mut().for_each(|(_, inputs)| inputs[4] = Data::scalar(norm));
    updates(clip_norm, norm, loss_scale).into_iter().chain(tensor_updates).collect()
}

/// Steps of the rules on whole tensors. Their weight decay is 0.1.
fn tensor_updates(clip_norm: Option<f32>, loss_scale: Option<f32>) -> [(Op, Vec<Data>); 2] {
    [adafactor::usual(clip_norm, loss_scale), muon::usual(clip_norm, loss_scale)]
}

#[test]
fn scaled_step_with_non_finite_norm_is_skipped() {
    for (norm, clip_norm) in [(f32::INFINITY, None), (f32::NAN, None), (f32::NAN, Some(1.0))] {
        for (op, inputs) in all_updates(norm, clip_norm, Some(65536.0)) {
            for level in Level::available() {
                let outputs = launch(&op, &inputs, LaunchOptions { threads: 2, level, alias: false });
                for (output, input) in outputs.iter().zip([0, 2, 3]) {
                    let Data::F32(_, unchanged) = &inputs[input] else { unreachable!("f32 data") };
                    assert_eq!(output, unchanged, "{} at {level:?}, norm {norm}, {clip_norm:?}", op.name());
                }
            }
        }
    }
}

#[test]
fn nan_norm_propagates_to_parameters_without_loss_scale() {
    let options = LaunchOptions { threads: 2, level: Level::best(), alias: false };
    for (op, inputs) in all_updates(f32::NAN, Some(1.0), None) {
        assert!(launch(&op, &inputs, options)[0][0].is_nan(), "{}", op.name());
    }
}

/// For rules whose elements share values of their tensor.
#[test]
fn nan_gradient_propagates_to_the_whole_tensor() {
    for (op, mut inputs) in tensor_updates(None, None) {
        let Op::OptimizerStep(update) = &op else { unreachable!("an optimizer step") };
        let matrix = update.gradients.members[0];
        let Data::F32(_, gradients) = &mut inputs[1] else { unreachable!("gradients in f32") };
        gradients[matrix.offset] = f32::NAN;
        for level in Level::available() {
            let outputs = launch(&op, &inputs, LaunchOptions { threads: 2, level, alias: false });
            let last = outputs[0][matrix.offset + matrix.elements() - 1];
            assert!(last.is_nan(), "{} at {level:?}: {last}", op.name());
        }
    }
}

/// Zero gradients occur in the embedding of an unused token; they must cause no division by 0.
#[test]
fn zero_gradients_change_parameters_by_weight_decay_only() {
    for (op, mut inputs) in tensor_updates(None, None) {
        let Op::OptimizerStep(update) = &op else { unreachable!("an optimizer step") };
        for input in &mut inputs[1..3] {
            *input = input.clone().map(|_| 0.0);
        }
        let parameters = inputs[0].to_f64();
        let updated =
            &launch(&op, &inputs, LaunchOptions { threads: 2, level: Level::best(), alias: false })[0];
        let learning_rate = inputs[3].to_f64()[0];
        for member in update.gradients.members.iter() {
            let decay_factor = if member.decay { 1.0 - 0.1 * learning_rate } else { 1.0 };
            for element in member.offset..member.offset + member.elements() {
                let (found, expected) = (f64::from(updated[element]), parameters[element] * decay_factor);
                assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{}: {found}", op.name());
            }
        }
    }
}

#[test]
fn loss_scale_follows_the_norm() {
    let op = LossScale { backoff: 0.5, growth: 2.0, interval: 3.0 };
    let cases = [
        ("good", 1.0, [0.0, 5.0], 1024.0, [1.0, 5.0]),
        ("at the interval", 1.0, [2.0, 5.0], 2048.0, [0.0, 5.0]),
        ("infinite", f32::INFINITY, [2.0, 5.0], 512.0, [0.0, 6.0]),
        ("not a number", f32::NAN, [1.0, 0.0], 512.0, [0.0, 1.0]),
    ];
    for (name, norm, counts, scale, next) in cases {
        let counts = Data::F32(TensorType::f32(&[2]), counts.to_vec());
        let options = LaunchOptions { threads: 2, level: Level::best(), alias: false };
        let inputs = [Data::scalar(1024.0), counts, Data::scalar(norm)];
        assert_eq!(launch(&Op::LossScale(op), &inputs, options), [vec![scale], next.to_vec()], "{name}");
    }
}
