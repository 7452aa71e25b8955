//! Forward passes that no model has yet: several losses on one trunk, and a residual stream as input of a matmul.

use super::batch_parts::{CLASSES, FEATURES, Rows, sample};
use crate::engine::Engine;
use compile::Program;
use data::{Batch, Order, Source, TrainingStep};
use graph::{Graph, GraphValue, Graphs, Initial, Node, Scope, ScopeId, ValueKind};
use memory::Failure;
use ops::{CrossEntropy, Linear, LossTerms, Op, StackedRows, Storage, TensorType};
use spec::*;

const BATCH: usize = 7;
const LINEAR: Linear = Linear { bias: false, activation: None, residual: false, tf32: false };

/// A graph builder.
struct Draft {
    graph: Graph,
    features: usize,
    classes: usize,
}

impl Draft {
    fn new(micro_batch: usize) -> Draft {
        let mut draft = Draft {
            graph: Graph { scopes: Vec::new(), values: Vec::new(), nodes: Vec::new() },
            features: 0,
            classes: 1,
        };
        draft.scope("trunk");
        for part in sample().parts {
            draft.value(part.name, part.of_samples(micro_batch), ValueKind::Input(part.role));
        }
        draft
    }

    /// Begins a new scope.
    fn scope(&mut self, path: &str) {
        let layer = ScopeId(self.graph.scopes.len() as u32);
        self.graph.scopes.push(Scope { path: path.to_owned(), parent: None, layer, block: false });
    }

    fn value(&mut self, name: &'static str, ty: TensorType, kind: ValueKind) -> usize {
        let scope = ScopeId(self.graph.scopes.len() as u32 - 1);
        self.graph.values.push(GraphValue { name, scope, ty, kind, stacked: StackedRows::default() });
        self.graph.values.len() - 1
    }

    fn node(&mut self, op: Op, inputs: Vec<usize>, name: &'static str) -> usize {
        let types: Vec<TensorType> = inputs.iter().map(|&input| self.graph.values[input].ty).collect();
        let [ty] = op.outputs(&types).unwrap()[..] else { panic!("one output") };
        let output = self.value(name, ty, ValueKind::Activation);
        let scope = self.graph.values[output].scope;
        self.graph.nodes.push(Node { op, scope, inputs, outputs: vec![output] });
        output
    }

    /// A linear layer with a new weight and an optional residual input.
    fn linear(&mut self, x: usize, features: usize, residual: Option<usize>) -> usize {
        let ty = TensorType::f32(&[features, self.graph.values[x].ty.shape.last()]);
        let kind =
            ValueKind::Parameter { initial: Initial::Normal(0.5), trainable: true, storage: Storage::Plain };
        let weight = self.value("weight", ty, kind);
        let op = Linear { residual: residual.is_some(), ..LINEAR };
        self.node(Op::Linear(op), [x, weight].into_iter().chain(residual).collect(), "y")
    }

    /// A head in a new scope, whose loss is added to `so_far`.
    fn head(&mut self, path: &str, x: usize, so_far: Option<usize>) -> usize {
        self.scope(path);
        let logits = self.linear(x, CLASSES, None);
        self.loss(logits, so_far, 1.0)
    }

    fn loss(&mut self, logits: usize, so_far: Option<usize>, weight: f32) -> usize {
        let terms = LossTerms { accumulate: so_far.is_some(), weight, ..LossTerms::PLAIN };
        let op = CrossEntropy::of(terms);
        let inputs = [logits, self.classes].into_iter().chain(so_far).collect();
        self.node(Op::CrossEntropy(op), inputs, "loss")
    }
}

/// `cross_entropy(features weight^T, classes)`
pub(super) fn classifier(micro_batch: usize) -> Graph {
    let mut draft = Draft::new(micro_batch);
    draft.head("head", draft.features, None);
    draft.graph
}

/// A trunk with `count` heads.
fn heads(micro_batch: usize, count: usize) -> Graph {
    let mut draft = Draft::new(micro_batch);
    let trunk = draft.linear(draft.features, FEATURES, None);
    let paths = ["head0", "head1", "head2"];
    paths[..count].iter().fold(None, |loss, path| Some(draft.head(path, trunk, loss)));
    draft.graph
}

/// The losses of three steps and of an evaluation, and the gradients of all parameters in the first step.
fn trained(config: &RunConfig, graph: impl Fn(usize) -> Graph) -> (Vec<f32>, Vec<Vec<f32>>) {
    let graphs = Graphs::new(config, graph);
    let program: Program = testing::compile_graphs(&graphs, config, &testing::target()).unwrap();
    let mut device = testing::device(testing::target());
    let mut engine = Engine::new(&program, device.as_mut(), true).unwrap();
    engine.start().unwrap();
    let mut batch = Batch::new(&sample().parts, BATCH);
    let mut gradients = Vec::new();
    let mut losses = Vec::new();
    for step in 0..3 {
        Rows.fill_training(
            &TrainingStep { seed: 7, number: step, samples: BATCH as u64, order: Order::Drawn },
            0..BATCH as u64,
            &mut batch,
        )
        .unwrap();
        engine.gradients(&batch, &config.numbers(step as usize + 1)).unwrap();
        for parameter in program.parameters.iter().filter(|_| step == 0) {
            let mut gradient: Vec<f32> = Vec::new();
            let take = |piece: &[u8]| -> Result<(), Failure> {
                gradient.extend(piece.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
                Ok(())
            };
            engine.read(parameter.gradient.unwrap(), take).unwrap();
            gradients.push(gradient);
        }
        losses.push(engine.update().unwrap().loss);
    }
    Rows.fill_evaluation(BATCH as u64, 0..BATCH as u64, &mut batch).unwrap();
    losses.push((engine.evaluate(&batch).unwrap() / BATCH as f64) as f32);
    engine.close().unwrap();
    (losses, gradients)
}

fn config(accumulate: usize, change: impl FnOnce(&mut Strategy)) -> RunConfig {
    let mut config = testing::small();
    config.train.batch_size = BATCH;
    config.train.clip_norm = None;
    config.strategy.accumulate = accumulate;
    change(&mut config.strategy);
    config
}

fn distance(found: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Asserts that losses and gradients agree to the relative tolerance.
fn assert_near(
    (losses, gradients): &(Vec<f32>, Vec<Vec<f32>>),
    expected: &(Vec<f32>, Vec<Vec<f32>>),
    tolerance: f32,
) {
    assert!(distance(losses, &expected.0) <= tolerance, "{losses:?} and {:?}", expected.0);
    for (index, (found, expected)) in gradients.iter().zip(&expected.1).enumerate() {
        let distance = distance(found, expected);
        assert!(distance <= tolerance, "parameter {index} is off by {distance}");
    }
}

/// The heads draw different weights, so the loss of two is not twice that of one.
#[test]
fn losses_add_up() {
    let [one, two] = [1, 2].map(|count| trained(&config(1, |_| {}), |samples| heads(samples, count)));
    let second = two.0[0] - one.0[0];
    assert!(second > 0.1 && (second / one.0[0] - 1.0).abs() > 1e-3, "{one:?} and {two:?}");
    assert_eq!(two.1[1], one.1[1], "the first head's gradient does not depend on the second head");
    assert_ne!(two.1[0], one.1[0], "the trunk's gradient depends on both heads");
    for (accumulate, chunks, gradients) in [
        // 4 + 3, 3 + 3 + 1, 2 + 2 + 2 + 1
        (2, 1, Gradients::Free),
        (1, 2, Gradients::Free),
        (1, 4, Gradients::Zero),
        (2, 3, Gradients::Free),
        (3, 2, Gradients::Zero),
        (4, 2, Gradients::Free),
        (7, 1, Gradients::Zero),
    ] {
        let other = config(accumulate, |strategy| {
            (strategy.loss_chunks, strategy.gradients) = (chunks, gradients);
        });
        assert_near(&trained(&other, |samples| heads(samples, 2)), &two, 1e-5);
    }
    let sliced = trained(&config(1, |strategy| strategy.loss_chunks = 4), |samples| heads(samples, 3));
    assert_near(&sliced, &trained(&config(1, |_| {}), |samples| heads(samples, 3)), 1e-5);
}

/// A head with a tenth of the other's weight, in training and in evaluation. The logits of both are computed before the
/// first loss.
#[test]
fn losses_have_weights() {
    let draft = |samples, weight: Option<f32>| {
        let mut draft = Draft::new(samples);
        let trunk = draft.linear(draft.features, FEATURES, None);
        draft.scope("heads");
        let first = draft.linear(trunk, CLASSES, None);
        let second = weight.map(|weight| (draft.linear(trunk, CLASSES, None), weight));
        let loss = draft.loss(first, None, 1.0);
        if let Some((second, weight)) = second {
            draft.scope("second");
            draft.loss(second, Some(loss), weight);
        }
        draft.graph
    };
    let [one, both, tenth] = [None, Some(1.0), Some(0.1)]
        .map(|weight| trained(&config(1, |_| {}), |samples| draft(samples, weight)));
    let of_second = both.0[0] - one.0[0];
    assert!((tenth.0[0] - one.0[0] - 0.1 * of_second).abs() < 1e-5, "{one:?}, {both:?}, {tenth:?}");
    let sliced =
        trained(&config(1, |strategy| strategy.loss_chunks = 3), |samples| draft(samples, Some(0.1)));
    assert_near(&sliced, &tenth, 1e-5);
    assert_ne!(sliced.1, tenth.1, "slices round differently");
}

/// An f32 residual sum that is cast for a matmul, and its gradient cast back.
#[test]
fn cast_residual_stream_trains_as_well() {
    let graph = |samples| {
        let mut draft = Draft::new(samples);
        let first = draft.linear(draft.features, FEATURES, None);
        let sum = draft.linear(first, FEATURES, Some(draft.features));
        draft.head("head", sum, None);
        draft.graph
    };
    let full = trained(&config(1, |_| {}), graph);
    for chunks in [1, 3] {
        let half = trained(
            &config(1, |strategy| {
                (strategy.precision, strategy.loss_chunks) = (Precision::Bf16, chunks);
            }),
            graph,
        );
        assert_ne!(half, full);
        assert_near(&half, &full, 0.02);
    }
}
