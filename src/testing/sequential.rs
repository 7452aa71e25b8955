//! Models of layers in a list.

use proptest::prelude::{Just, Strategy as Any, any, prop_oneof};
use proptest::sample::select;

use ops::Activation;
use spec::{
    ActivationLayer, AttentionLayer, BlockNorm, CrossEntropyLoss, EmbeddingLayer, KeywordEnum, Layer,
    LayerActivation, LinearLayer, NormLayer, OutputLoss, ResidualLayer, Sequential, TransformerBlock,
};

/// Layers of every kind; the groups have the names of a transformer's layers, which strategies in tests use.
pub(crate) const CLASSIFIER: &str = "{ sequential = { input = [12], layers = [
    { group = { name = 'embedding', layers = [{ linear = 16 }, 'gelu'] } },
    { group = { name = 'blocks', layers = [
        { residual = ['layer_norm', { linear = 24 }, 'relu', { linear = { out = 16, bias = false } }] },
        { residual = { layers = ['rms_norm', { linear = 20 }, 'silu'], projection = [{ linear = 20 }] } },
        { repeat = { times = 2, layers = [{ linear = 20 }, 'relu'] } },
    ] } },
    { group = { name = 'head', layers = [{ linear = 10 }] } },
] } }";

/// Rows of several features, with another loss.
pub(crate) const REGRESSION: &str = "{ sequential = { input = [3, 6], loss = 'squared_error', layers = [
    { group = { name = 'embedding', layers = [{ linear = 48 }] } },
    { group = { name = 'blocks', layers = [{ block = [{ linear = 64 }, 'tanh', 'softmax'] }, { linear = 40 }, 'leaky_relu', 'rms_norm', 'sigmoid'] } },
    { group = { name = 'head', layers = [{ linear = 5 }] } },
] } }";

/// The sum of outputs, which no target belongs to. They are positive, and four steps do not bring their sum near 0.
pub(crate) const SUM: &str = "{ sequential = { input = [3, 6], loss = 'sum', layers = [
    { group = { name = 'embedding', layers = [{ linear = 24 }] } },
    { group = { name = 'blocks', layers = [{ block = [{ linear = 32 }, 'gelu'] }, 'layer_norm', 'silu'] } },
    { group = { name = 'head', layers = [{ linear = 5 }, 'sigmoid'] } },
] } }";

/// Cross-entropy of smoothed labels, of several rows.
pub(crate) const SMOOTHED: &str =
    "{ sequential = { input = [2, 7], loss = { cross_entropy = { label_smoothing = 0.2 } }, layers = [
    { group = { name = 'embedding', layers = [{ linear = 16 }] } },
    { group = { name = 'blocks', layers = [{ residual = [{ linear = 16 }, 'relu'] }, 'rms_norm'] } },
    { group = { name = 'head', layers = [{ linear = 9 }] } },
] } }";

/// Images through convolutions of every kind, pools and group norm.
pub(crate) const CONVOLUTIONS: &str = "{ sequential = { input = [3, 9, 8], layers = [
    { group = { name = 'embedding', layers = [{ conv2d = { out = 8, kernel = 3, padding = 1, bias = false } }] } },
    { group = { name = 'blocks', layers = [
        { residual = { layers = [
            { group_norm = { groups = 2 } }, 'relu', { conv2d = { out = 12, kernel = 3, stride = 2, padding = 1 } }, 'silu',
            { conv2d = { out = 12, kernel = 3, padding = 1, groups = 4 } },
        ], projection = [{ conv2d = { out = 12, kernel = 1, stride = 2 } }] } },
        { conv2d = { out = 10, kernel = 1 } },
        'gelu', { max_pool = { kernel = 3, stride = 2, padding = 1 } }, { avg_pool = { kernel = 2, stride = 1 } },
    ] } },
    { group = { name = 'head', layers = ['flatten', { linear = 10 }] } },
] } }";

/// Images through batch norm.
pub(crate) const BATCH_NORM: &str = "{ sequential = { input = [2, 6, 6], layers = [
    { group = { name = 'embedding', layers = [{ conv2d = { out = 8, kernel = 3, padding = 1, bias = false } }] } },
    { group = { name = 'blocks', layers = [
        { residual = ['batch_norm', 'relu', { conv2d = { out = 8, kernel = 3, padding = 1, bias = false } }, 'batch_norm'] },
        { block = [{ conv2d = { out = 12, kernel = 3, stride = 2, padding = 1 } }, { batch_norm = { momentum = 0.3 } }, 'relu'] },
    ] } },
    { group = { name = 'head', layers = ['global_pool', 'flatten', 'batch_norm', { linear = 10 }] } },
] } }";

/// A vision transformer: patches of images, positions, attention in residual layers and in a block.
pub(crate) const VISION: &str = "{ sequential = { input = [3, 8, 6], layers = [
    { group = { name = 'embedding', layers = [{ conv2d = { out = 16, kernel = 2, stride = 2 } }, 'to_sequence', 'positions'] } },
    { group = { name = 'blocks', layers = [
        { residual = ['layer_norm', { attention = { heads = 2, causal = true } }] },
        { residual = ['layer_norm', { linear = 24 }, 'gelu', { linear = 16 }] },
        { transformer_block = { heads = 4, hidden = 20, activation = 'gelu', norm = 'pre' } },
    ] } },
    { group = { name = 'head', layers = ['layer_norm', 'mean_pool', { linear = 10 }] } },
] } }";

/// Ids through an encoder with norms after additions, with targets for each position.
pub(crate) const ENCODER: &str = "{ sequential = { input = [9], layers = [
    { group = { name = 'embedding', layers = [{ embedding = { count = 30, dim = 16 } }, 'positions'] } },
    { group = { name = 'blocks', layers = [
        { repeat = { times = 2, layers = [{ transformer_block = { heads = 2, hidden = 24 } }] } },
        { attention = { heads = 1, bias = false } },
    ] } },
    { group = { name = 'head', layers = [{ linear = 10 }] } },
] } }";

/// Any list of layers under the names of a transformer's. Sizes are small, so that different dimensions are often equal.
pub(super) fn any_sequential() -> impl Any<Value = Sequential> {
    prop_oneof![3 => any_plain(), 1 => any_sequence_model()]
}

/// Any layers of sequences, which all have one width: of ids, or of numbers.
fn any_sequence_model() -> impl Any<Value = Sequential> {
    let sizes = (1..=8usize, 1..=3usize, any::<bool>(), any::<bool>());
    let attention = (select(&[1, 2, 4]), any::<bool>(), any::<bool>(), select(&[0.0, 0.2]));
    let layer = (0..8usize, attention, select(BlockNorm::ALL), select(LayerActivation::ALL));
    let all = (sizes, proptest::collection::vec(layer, 2..=6), 1..=12usize, any_loss());
    all.prop_map(|((length, quarter, reads_ids, pools), drawn, outputs, loss)| {
        let width = 4 * quarter;
        let linear = |out| Layer::Linear(LinearLayer { out, bias: true });
        let blocks =
            drawn.into_iter().map(|(kind, (heads, causal, bias, dropout), norm, activation)| match kind {
                0 => linear(width),
                1 => Layer::LayerNorm(NormLayer { epsilon: 1e-4 }),
                2 => Layer::Activation(ActivationLayer::new(activation.0)),
                3 => Layer::Positions,
                4 | 5 => Layer::Attention(AttentionLayer { heads, causal, bias, dropout }),
                _ => {
                    let hidden = outputs;
                    let block = TransformerBlock { heads, hidden, activation, norm, causal, dropout };
                    Layer::TransformerBlock(block)
                }
            });
        let (input, first) = match reads_ids {
            true => (vec![length], Layer::Embedding(EmbeddingLayer { count: 30, dim: width })),
            false => (vec![length, quarter], linear(width)),
        };
        let pool = pools.then_some(Layer::MeanPool);
        let layers = vec![
            Layer::group("embedding", vec![first]),
            Layer::group("blocks", blocks.collect()),
            Layer::group("head", pool.into_iter().chain([linear(outputs)]).collect()),
        ];
        Sequential { input, layers, loss, weights: None }
    })
}

fn any_loss() -> impl Any<Value = OutputLoss> {
    select(vec![
        OutputLoss::default(),
        OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing: 0.25 }),
        OutputLoss::SquaredError,
        OutputLoss::BinaryCrossEntropy,
        OutputLoss::Sum,
    ])
}

fn any_plain() -> impl Any<Value = Sequential> {
    let size = 1..=12usize;
    let input = proptest::collection::vec(size.clone(), 1..=3);
    let linear = (size.clone(), any::<bool>());
    let linear = linear.prop_map(|(out, bias)| Layer::Linear(LinearLayer { out, bias }));
    let activation =
        select(&Activation::ALL).prop_map(|function| Layer::Activation(ActivationLayer::new(function)));
    // In place where nothing else needs the input.
    let inplace = ActivationLayer { inplace: true, ..ActivationLayer::new(Activation::Silu) };
    let inplace =
        Layer::Block(vec![Layer::Linear(LinearLayer { out: 6, bias: true }), Layer::Activation(inplace)]);
    let norm = NormLayer { epsilon: 1e-4 };
    let norm = select(vec![Layer::LayerNorm(norm), Layer::RmsNorm(norm)]);
    let dropout = select(&[0.0, 0.1, 0.5]).prop_map(Layer::Dropout);
    let plain = prop_oneof![3 => linear, 2 => activation, 1 => Just(Layer::Softmax), 1 => Just(inplace), 1 => norm, 1 => dropout];
    let some = proptest::collection::vec(plain.clone(), 1..=4);
    // The last layer gives both branches one shape.
    let residual =
        (some.clone(), some.clone(), size.clone(), any::<bool>()).prop_map(|(inner, others, out, bias)| {
            let with_last = |mut layers: Vec<Layer>| {
                layers.push(Layer::Linear(LinearLayer { out, bias }));
                layers
            };
            Layer::Residual(ResidualLayer { layers: with_last(inner), projection: with_last(others) })
        });
    let block = some.clone().prop_map(Layer::Block);
    let module = prop_oneof![3 => plain, 1 => residual, 1 => block];
    let blocks = proptest::collection::vec(module, 2..=6);
    (input, size.clone(), blocks, size, any_loss()).prop_map(|(input, width, blocks, outputs, loss)| {
        let linear = |out| vec![Layer::Linear(LinearLayer { out, bias: true })];
        let group = |name: &str, layers| Layer::group(name, layers);
        let layers =
            vec![group("embedding", linear(width)), group("blocks", blocks), group("head", linear(outputs))];
        Sequential { input, layers, loss, weights: None }
    })
}

/// The number of input features of `sizes`, with the structure of `other`. The sizes of images and
/// sequences are part of the structure.
pub(super) fn alike(sizes: &Sequential, other: &Sequential) -> Sequential {
    if other.has_images() || other.has_sequences() {
        return other.clone();
    }
    let mut input = other.input.clone();
    if let (Some(own), Some(of_sizes)) = (input.last_mut(), sizes.input.last()) {
        *own = *of_sizes;
    }
    Sequential { input, ..other.clone() }
}

/// Sets the probability of each dropout.
pub(super) fn set_dropout(model: &mut Sequential, rate: f64) {
    model.for_each_layer(&mut |layer| layer.dropout_mut().into_iter().for_each(|own| *own = rate));
}
