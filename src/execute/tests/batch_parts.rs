//! Batches with other parts than text: rows of features and their classes, from a synthetic data set.

use std::ops::Range;
use std::path::PathBuf;

use super::graphs::classifier;
use crate::engine::Engine;
use compile::Program;
use data::{
    Batch, Contents, DataError, DataSet, DigestCache, ErrorKey, KeyedCount, Order, Part, Sample, Source,
    TrainingStep,
};
use device::Device;
use graph::Graphs;
use ops::TensorType;
use spec::*;

pub(super) const FEATURES: usize = 3;
pub(super) const CLASSES: usize = 4;

/// A data set of distinct rows of numbers.
#[derive(Debug)]
pub(super) struct Rows;

impl Rows {
    fn feature(row: u64, column: usize) -> f32 {
        ((row * 7 + column as u64 * 5) % 11) as f32 / 4.0 - 1.25
    }

    fn class(row: u64) -> i32 {
        (row * 3 % CLASSES as u64) as i32
    }

    fn fill(rows: Range<u64>, batch: &mut Batch) {
        for filled in batch.parts_mut() {
            let name = filled.part.name;
            for (row, memory) in rows.clone().zip(filled.samples_mut()) {
                let (numbers, _) = memory.as_chunks_mut();
                for (column, number) in numbers.iter_mut().enumerate() {
                    *number = match name {
                        "features" => Rows::feature(row, column).to_ne_bytes(),
                        _ => Rows::class(row).to_ne_bytes(),
                    };
                }
            }
        }
    }
}

impl DataSet for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    fn inspect(&self, _cache: &mut DigestCache) -> Result<Box<dyn Contents>, Vec<DataError>> {
        Ok(Box::new(Rows))
    }

    fn open(&self, _sample: &Sample, _cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(Rows))
    }
}

impl Contents for Rows {
    fn digest(&self) -> &str {
        "rows"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["features", "classes"]
    }

    fn part(&self, asked: &Part) -> Option<Part> {
        sample().parts.into_iter().find(|part| part.name == asked.name)
    }

    fn check_size(&self, _sample: &Sample, _evaluates: bool) -> Result<(), DataError> {
        Ok(())
    }
}

impl Source for Rows {
    fn contents(&self) -> &dyn Contents {
        self
    }

    fn fill_training(
        &self,
        step: &TrainingStep,
        samples: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        Rows::fill(100 * step.number + samples.start..100 * step.number + samples.end, batch);
        Ok(())
    }

    fn fill_evaluation(&self, _of: u64, samples: Range<u64>, batch: &mut Batch) -> Result<(), DataError> {
        Rows::fill(samples, batch);
        Ok(())
    }
}

/// The sample that a linear classifier requires.
pub(super) fn sample() -> Sample {
    let features =
        Part { role: PartRole::Input, name: "features", ty: TensorType::f32(&[FEATURES]), below: None };
    let below = Some(KeyedCount { key: "classes", count: CLASSES });
    let classes = Part { role: PartRole::Target, name: "classes", ty: TensorType::i32(&[]), below };
    Sample { parts: vec![features, classes], length: None }
}

/// The mean loss of rows, in f64.
fn expected(weight: &[f32], rows: Range<u64>) -> f64 {
    let count = (rows.end - rows.start) as f64;
    let loss = |row: u64| {
        let logit = |class: usize| -> f64 {
            let weights = &weight[class * FEATURES..(class + 1) * FEATURES];
            let terms = weights.iter().enumerate();
            terms.map(|(column, weight)| f64::from(weight * Rows::feature(row, column))).sum()
        };
        let sum: f64 = (0..CLASSES).map(|class| logit(class).exp()).sum();
        sum.ln() - logit(Rows::class(row) as usize)
    };
    rows.map(loss).sum::<f64>() / count
}

fn weight(engine: &mut Engine, program: &Program) -> Vec<f32> {
    let mut weight = Vec::new();
    let take = |piece: &[u8]| -> Result<(), memory::Failure> {
        weight.extend(piece.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        Ok(())
    };
    engine.read(program.parameters[0].value, take).unwrap();
    weight
}

/// The device computes the loss of the requested rows, in training and in evaluation, with a smaller last micro-batch.
#[test]
fn features_and_classes_reach_the_device_unchanged() {
    let mut config = testing::small();
    config.train.batch_size = 7;
    config.strategy.accumulate = 3;
    config.strategy.precision = Precision::Fp32;
    let program =
        testing::compile_graphs(&Graphs::new(&config, classifier), &config, &testing::target()).unwrap();
    let named = program.host_buffers.batch.iter().map(|&id| (program.full_name(id), program.ty(id)));
    let expected_parts = [
        ("batch.features".to_owned(), TensorType::f32(&[7, FEATURES])),
        ("batch.classes".to_owned(), TensorType::i32(&[7])),
    ];
    assert!(named.eq(expected_parts));

    let mut device: Box<dyn Device> = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let data: &dyn Source = &Rows;
    let mut batch = Batch::new(&sample().parts, 7);
    for step in 0..3 {
        let before = weight(&mut engine, &program);
        data.fill_training(
            &TrainingStep { seed: 7, number: step, samples: 7, order: Order::Drawn },
            0..7,
            &mut batch,
        )
        .unwrap();
        let found = engine.step(&batch, &config.numbers(step as usize + 1)).unwrap().loss;
        let wanted = expected(&before, 100 * step..100 * step + 7);
        assert!((f64::from(found) - wanted).abs() < 1e-5, "step {step}: {found} and {wanted}");

        let after = weight(&mut engine, &program);
        assert_ne!(before, after, "the weight is trained");
        data.fill_evaluation(11, 4..11, &mut batch).unwrap();
        let (found, wanted) = (engine.evaluate(&batch).unwrap() / 7.0, expected(&after, 4..11));
        assert!((found - wanted).abs() < 1e-5, "after step {step}: {found} and {wanted}");
    }
    engine.close().unwrap();
}

/// The number of classes is known only after the rows have been read.
#[test]
fn model_with_fewer_classes_than_the_data_is_rejected() {
    let check = |below: Option<usize>| {
        let mut sample = sample();
        sample.parts[1].below = below.map(|count| KeyedCount { key: "model.linear.classes", count });
        assert!(Rows.check_known(&sample).is_ok(), "the classes are not known yet");
        Rows.check(&Rows, &sample, true)
    };
    assert!([Some(CLASSES), Some(CLASSES + 1), None].into_iter().all(|below| check(below).is_ok()));

    let error = check(Some(CLASSES - 1)).unwrap_err();
    let expected = "model.linear.classes = 3 is less than the 4 classes of data.rows";
    assert_eq!(
        (error.to_string().as_str(), error.blame()),
        (expected, ErrorKey::Key("model.linear.classes"))
    );

    let mut features = sample();
    features.parts[0].below = Some(KeyedCount { key: "model.linear.features", count: 10 });
    let error = Rows.check(&Rows, &features, true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "model.linear.features = 10 is less than the unbounded `features` of data.rows"
    );
}
