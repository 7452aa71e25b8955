//! Optimizer states in fewer bits: losses, bytes, counts, and stochastic rounding, which preserves small updates.

use super::batch;
use crate::engine::Engine;
use crate::metrics::Counts;
use crate::metrics::{EffectsContext, effects};
use device::{Pool, Region, Role, Tensor};
use memory::{RunSchedule, predict};
use ops::{
    Adam, DType, GradientTerms, Member, Op, OptimizerStep, Rounding as Rounded, Rule, Shape, StateFormat,
    TensorType, UpdateFormat, lay_out,
};
use spec::{OptimizerState, Quantize, Rounding, RunConfig};
use testing::compile;
use testing::keys::Updates;
use testing::with_optimizer;

const MOMENTUM: Updates = &["optimizer.sgd = { lr = 0.1, momentum = 0.9 }"];

fn stored(optimizer_state: OptimizerState, rounding: Rounding) -> RunConfig {
    let mut config = testing::small();
    config.strategy.optimizer_state = optimizer_state;
    config.strategy.rounding = rounding;
    config
}

/// States of every tensor in 8 bits.
fn quantized() -> RunConfig {
    let mut config = stored(OptimizerState::EightBit, Rounding::Nearest);
    config.strategy.quantize = Quantize { from: 0, embeddings: true };
    config
}

const CHOICES: [(OptimizerState, Rounding); 3] = [
    (OptimizerState::Bf16, Rounding::Nearest),
    (OptimizerState::Bf16, Rounding::Stochastic),
    (OptimizerState::EightBit, Rounding::Nearest),
];

/// Losses of twenty steps, the digest after them, counts and effects.
fn train(config: &RunConfig) -> (Vec<f32>, String, Counts, String) {
    let program = compile(config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let before = engine.counts();
    let losses = (0..20).map(|step| {
        let batch = batch(config, step % 3, config.train.batch_size);
        engine.step(&batch, &config.numbers(step + 1)).unwrap().loss
    });
    let losses = losses.collect();
    let effects = effects(&before, &engine.counts(), EffectsContext::new(config, &program), None);
    (losses, engine.digest().unwrap(), engine.counts(), effects)
}

#[test]
fn loss_is_within_three_percent_of_fp32_states() {
    for optimizer in [None, Some(MOMENTUM)] {
        let optimized = |config: RunConfig| match optimizer {
            None => config,
            Some(optimizer) => with_optimizer(&config, optimizer),
        };
        let full = train(&optimized(testing::small())).0;
        assert!(full[19] < full[0] - 0.5, "the loss falls: {full:?}");
        let choices = CHOICES.map(|(state, rounding)| stored(state, rounding));
        for config in choices.into_iter().chain([quantized()]) {
            let place = format!("{:?} and {:?}", config.strategy.optimizer_state, config.strategy.rounding);
            let config = optimized(config);
            let found = train(&config);
            for (step, (a, b)) in full.iter().zip(&found.0).enumerate() {
                assert!((a - b).abs() <= 0.03 * a, "{place}, step {}: {a} and {b}", step + 1);
            }
            assert_ne!(full, found.0, "{place} make no difference");
            assert_eq!(train(&config).1, found.1, "{place}: runs are reproducible");
        }
    }
}

/// The seed changes stochastic rounding, but not rounding to nearest.
#[test]
fn stochastic_rounding_depends_on_the_seed() {
    let digest = |rounding, seed| {
        let mut config = stored(OptimizerState::Bf16, rounding);
        let program = compile(&config, &testing::target()).unwrap();
        config.train.seed = seed;
        let mut other = compile(&config, &testing::target()).unwrap();
        // With the same initial parameters.
        for (other, own) in other.sections.iter_mut().zip(&program.sections).take(1) {
            other.code.clone_from(&own.code);
        }
        let mut device = testing::device(testing::target());
        let mut engine = Engine::new(&other, device.as_mut(), true).unwrap();
        engine.start().unwrap();
        engine.step(&batch(&config, 0, 4), &config.numbers(1)).unwrap();
        engine.digest().unwrap()
    };
    assert_eq!(digest(Rounding::Nearest, 7), digest(Rounding::Nearest, 8));
    assert_ne!(digest(Rounding::Stochastic, 7), digest(Rounding::Stochastic, 8));
}

/// C d_model, V vocabulary, T context; two blocks. Tensors begin at multiples of 256 bytes in their narrowest dtype.
#[test]
fn states_take_the_bytes_of_their_dtypes() {
    let [c, v, t] = [32u64, 256, 16];
    let end = |tensors: &[u64], unit: u64| {
        tensors.iter().fold(0u64, |end, tensor| end.next_multiple_of(unit) + tensor)
    };
    let rounded = |bytes: u64| bytes.next_multiple_of(256);
    let embedding = [v * c, t * c];
    let head = [c, c];
    let attention = [c, c, 3 * c * c, 3 * c, c * c, c];
    let mlp = [c, c, 4 * c * c, 4 * c, 4 * c * c, c];
    let block = [&attention[..], &mlp].concat();
    // A block has two tensors of 4,096 elements.
    let large = [4 * c * c, 4 * c * c];
    let small: Vec<u64> = block.iter().copied().filter(|&tensor| tensor < 4096).collect();
    let uniform = |bytes: u64| {
        let unit = 256 / bytes;
        let of = |tensors: &[u64]| 2 * rounded(bytes * end(tensors, unit));
        of(&embedding) + 2 * of(&block) + of(&head)
    };
    let full = |tensors: &[u64]| 2 * rounded(4 * end(tensors, 64));
    let codes = |tensors: &[u64]| {
        let codes = end(tensors, 256);
        2 * rounded(codes) + 2 * rounded(4 * codes.div_ceil(256))
    };
    let by_default = full(&embedding) + full(&head) + 2 * (full(&small) + codes(&large));
    let nearest = |state| stored(state, Rounding::Nearest);
    for (config, expected) in [
        (nearest(OptimizerState::Fp32), uniform(4)),
        (nearest(OptimizerState::Bf16), uniform(2)),
        (nearest(OptimizerState::EightBit), by_default),
        (quantized(), codes(&embedding) + codes(&head) + 2 * codes(&block)),
    ] {
        let program = compile(&config, &testing::target()).unwrap();
        let usage = predict(&program, &testing::target(), RunSchedule::of(&config)).device;
        assert_eq!(
            usage.phase_peak(device::Phase::Forward).live[Role::Optimizer],
            expected,
            "{:?}, {:?}",
            config.strategy.optimizer_state,
            config.strategy.quantize
        );
    }
}

#[test]
fn state_bytes_are_counted_at_each_update() {
    let counted = |config: &RunConfig| {
        let (.., counts, effects) = train(config);
        let Counts { state_bytes_in_16_bits, state_bytes_in_8_bits, random_roundings, .. } = counts;
        ([state_bytes_in_16_bits, state_bytes_in_8_bits, random_roundings].map(|all| all / 20), effects)
    };
    let program = compile(&stored(OptimizerState::Bf16, Rounding::Nearest), &testing::target()).unwrap();
    let halves: u64 = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).bytes()).sum();
    let numbers: usize =
        program.buckets.iter().flat_map(|bucket| bucket.members.iter()).map(Member::elements).sum();
    let plain = stored(OptimizerState::Fp32, Rounding::Nearest);
    assert_eq!(counted(&plain), ([0, 0, 0], String::new()));
    let (counts, effects) = counted(&stored(OptimizerState::Bf16, Rounding::Nearest));
    assert_eq!(counts, [halves, 0, 0]);
    assert!(effects.ends_with(" of states in 16 bits"), "{effects}");
    let (counts, effects) = counted(&stored(OptimizerState::Bf16, Rounding::Stochastic));
    assert_eq!(counts, [halves, 0, 2 * numbers as u64]);
    assert!(effects.ends_with(&format!("{} numbers rounded stochastically", 2 * numbers)), "{effects}");
    // Two moments of two tensors of 4,096 elements in each of two blocks.
    let (counts, effects) = counted(&stored(OptimizerState::EightBit, Rounding::Nearest));
    assert_eq!(counts, [0, 2 * 2 * 2 * 4096, 0]);
    assert_eq!(effects, "32.0 KiB of states in 8 bits");
    // States of every tensor. Tensors begin at multiples of 256 elements, as in the parameter buckets.
    let (counts, _) = counted(&quantized());
    let program = compile(&quantized(), &testing::target()).unwrap();
    let all: usize = program.buckets.iter().map(|bucket| program.ty(bucket.parameters).elements()).sum();
    assert_eq!(counts, [0, 2 * all as u64, 0]);
}

/// The mean second moment after `steps` gradients of 1 with beta2 = 0.999: in f32, 1 - 0.999^steps.
fn second_moment(format: StateFormat, steps: usize) -> f64 {
    const LEN: usize = 8192;
    let member = Member::new(Shape::new(&[LEN]), false, 1);
    let (members, ty) = lay_out(std::iter::once(member), DType::F32, format.dtype());
    let gradients = GradientTerms { members: members.clone(), clip_norm: None, scaled: false };
    let format = UpdateFormat::of_states(format);
    let rule =
        Rule::Adam(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: true });
    let op = OptimizerStep { gradients, format, numbers_at: 0, rule };
    let states: Vec<TensorType> = op.states().iter().map(|state| state.layout(&members, ty).1).collect();
    let types = [&[ty, ty], &states[..], &[TensorType::f32(&[op.rule.numbers_len()])]].concat();
    let mut device = testing::device(testing::target());
    let tensors: Vec<Tensor> = types
        .iter()
        .map(|&ty| {
            let buffer = device.allocate(Pool::Device, ty.bytes()).unwrap();
            device
                .write(Region { buffer, offset: 0, bytes: ty.bytes() }, &vec![0; ty.bytes() as usize])
                .unwrap();
            Tensor { buffer, offset: 0, ty }
        })
        .collect();
    let ones: Vec<u8> = [1.0f32; LEN].iter().flat_map(|one| one.to_ne_bytes()).collect();
    device.write(tensors[1].region(), &ones).unwrap();
    let outputs: Vec<Tensor> =
        std::iter::once(tensors[0]).chain(tensors[2..types.len() - 1].to_vec()).collect();
    for step in 1..=steps {
        let numbers = op.rule.numbers(step, 0.0);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        device.write(tensors[types.len() - 1].region(), &bytes).unwrap();
        device.launch(&Op::OptimizerStep(op.clone()), &tensors, &outputs, None).unwrap();
    }
    let mut bytes = vec![0; tensors[3].ty.bytes() as usize];
    device.read(tensors[3].region(), &mut bytes).unwrap();
    let halves = bytes.as_chunks::<2>().0.iter().map(|&half| u16::from_ne_bytes(half));
    let sum: f64 = halves.map(|half| f64::from(f32::from_bits(u32::from(half) << 16))).sum();
    sum / LEN as f64
}

/// Increments of a moment shrink as it nears its limit, soon below half a ULP of bf16.
#[test]
fn moments_stall_with_nearest_but_not_with_stochastic_rounding() {
    let nearest = |steps| second_moment(StateFormat::Bf16(Rounded::Nearest), steps);
    let expected = 1.0 - 0.999f64.powi(1000);
    assert_eq!((nearest(300), nearest(1000)), (0.25, 0.25), "it should be {expected}");
    let random = second_moment(StateFormat::Bf16(Rounded::Stochastic { seed: 1 }), 1000);
    assert!((random / expected - 1.0).abs() < 2e-3, "{random} for {expected}");
}
