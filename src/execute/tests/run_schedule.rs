//! Predictions follow the run schedule: even an allocator with a history is predicted byte for byte.

use proptest::strategy::{Strategy as Any, ValueTree};
use proptest::test_runner::TestRunner;

use super::{batch, evaluation_samples, hold};
use crate::engine::Engine;
use compile::Program;
use device::{Pool, Usage};
use memory::{EvaluationCycle, Failure, RunSchedule, predict_with};
use spec::*;
use testing::ReusingAllocator;
use testing::compile;

/// Random runs of several steps with accumulation and evaluations.
fn runs() -> Vec<RunConfig> {
    let mut runner = TestRunner::deterministic();
    let any = (testing::any_config(), 1..=3usize, 1..=3usize, 1..=2usize, 1..=5usize);
    let mut draw = || any.new_tree(&mut runner).expect("nothing is rejected").current();
    let run = |(mut config, accumulate, every, batches, steps): (RunConfig, usize, usize, usize, usize)| {
        config.train.batch_size = config.train.batch_size.max(accumulate);
        // Compatible with any number of micro-batches.
        let update = Update::AfterBackward;
        let parallel = Parallel::default();
        config.strategy = Strategy {
            accumulate,
            update,
            allocator: Allocator::Direct,
            graph: false,
            parallel,
            ..config.strategy
        };
        config.evaluation = Some(Evaluation { every, batches, ..config.evaluation.unwrap_or_default() });
        config.measure = Measure { warmup_steps: 1, steps, ..Measure::default() };
        config
    };
    // An emulated GPU is slow.
    let count = if testing::on_cuda() { 4 } else { 24 };
    (0..testing::tenth(count)).map(|_| run(draw())).collect()
}

/// Executes a run with a given order of steps and evaluations.
type Order = fn(&RunConfig, &mut Engine) -> Result<(), Failure>;

fn steps(config: &RunConfig, engine: &mut Engine, count: usize) -> Result<(), Failure> {
    for step in 0..count {
        let whole = batch(config, step, config.train.batch_size);
        engine.step(&whole, &config.numbers(step + 1))?;
    }
    Ok(())
}

fn evaluations(config: &RunConfig, engine: &mut Engine, count: usize) -> Result<(), Failure> {
    let samples = evaluation_samples(config);
    (0..count).try_for_each(|step| engine.evaluate_batch(&batch(config, step, samples)).map(drop))?;
    engine.finish_evaluation()
}

fn each_cycle(
    config: &RunConfig,
    mut go: impl FnMut(EvaluationCycle) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut cycles = RunSchedule::of(config).cycles();
    cycles.try_for_each(|(times, cycle)| (0..times).try_for_each(|_| go(cycle)))
}

/// The order of training.
fn in_order(config: &RunConfig, engine: &mut Engine) -> Result<(), Failure> {
    each_cycle(config, |cycle| {
        steps(config, engine, cycle.steps)?;
        evaluations(config, engine, cycle.evaluation_batches)
    })
}

const OTHER_ORDERS: [(&str, Order); 3] = [
    ("evaluations before their steps", |config, engine| {
        each_cycle(config, |cycle| {
            evaluations(config, engine, cycle.evaluation_batches)?;
            steps(config, engine, cycle.steps)
        })
    }),
    ("no evaluations", |config, engine| steps(config, engine, RunSchedule::of(config).steps)),
    ("a single cycle", |config, engine| {
        steps(config, engine, 1)?;
        evaluations(config, engine, 1)
    }),
];

/// Memory usage at the end of a run with an allocator that keeps freed memory.
fn measured(config: &RunConfig, program: &Program, order: Order) -> [Usage; 3] {
    let mut device = testing::device(testing::target());
    let mut engine =
        Engine::with_allocator(program, device.as_mut(), ReusingAllocator::boxed(program)).unwrap();
    engine.start().unwrap();
    hold(&mut engine, config).unwrap();
    order(config, &mut engine).unwrap();
    let ledger = engine.ledger();
    let usage = [*ledger.usage(Pool::Device), *ledger.usage_at(Pool::Host), *ledger.usage(Pool::Pinned)];
    engine.close().unwrap();
    usage
}

#[test]
fn prediction_follows_the_run_schedule() {
    let mut noticed = OTHER_ORDERS.map(|_| 0);
    for config in runs() {
        let program = compile(&config, &testing::target()).unwrap();
        let predicted = predict_with(&program, &testing::target(), RunSchedule::of(&config), &|p| {
            ReusingAllocator::boxed(p)
        });
        let predicted = [predicted.device, predicted.host, predicted.pinned];
        assert_eq!(measured(&config, &program, in_order), predicted, "{config:?}");
        for ((_, order), noticed) in OTHER_ORDERS.iter().zip(&mut noticed) {
            *noticed += usize::from(measured(&config, &program, *order) != predicted);
        }
    }
    for ((order, _), noticed) in OTHER_ORDERS.iter().zip(noticed) {
        assert!(noticed > 0, "{order}: not noticed");
    }
}
