//! Models of layers in a list.

use proptest::prelude::{Strategy as Any, any, prop_oneof};
use proptest::sample::select;

use ops::Activation;
use spec::{
    CrossEntropyLoss, Layer, LayerActivation, LinearLayer, NormLayer, OutputLoss, ResidualLayer, Sequential,
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
    { group = { name = 'blocks', layers = [{ block = [{ linear = 64 }, 'silu'] }, 'rms_norm', 'gelu_tanh'] } },
    { group = { name = 'head', layers = [{ linear = 5 }] } },
] } }";

/// The sum of outputs, which no target belongs to. They are not negative, so that their sum is not near 0.
pub(crate) const SUM: &str = "{ sequential = { input = [3, 6], loss = 'sum', layers = [
    { group = { name = 'embedding', layers = [{ linear = 24 }] } },
    { group = { name = 'blocks', layers = [{ block = [{ linear = 32 }, 'gelu'] }, 'layer_norm', 'silu'] } },
    { group = { name = 'head', layers = [{ linear = 5 }, 'relu'] } },
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

/// Any list of layers under the names of a transformer's. Sizes are small, so that different dimensions are often equal.
pub(super) fn any_sequential() -> impl Any<Value = Sequential> {
    let size = 1..=12usize;
    let input = proptest::collection::vec(size.clone(), 1..=3);
    let linear = (size.clone(), any::<bool>());
    let linear = linear.prop_map(|(out, bias)| Layer::Linear(LinearLayer { out, bias }));
    let activation =
        select(&Activation::ALL).prop_map(|function| Layer::Activation(LayerActivation(function)));
    let norm = NormLayer { epsilon: 1e-4 };
    let norm = select(vec![Layer::LayerNorm(norm), Layer::RmsNorm(norm)]);
    let dropout = select(&[0.0, 0.1, 0.5]).prop_map(Layer::Dropout);
    let plain = prop_oneof![3 => linear, 2 => activation, 1 => norm, 1 => dropout];
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
    let loss = select(vec![
        OutputLoss::default(),
        OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing: 0.25 }),
        OutputLoss::SquaredError,
        OutputLoss::BinaryCrossEntropy,
        OutputLoss::Sum,
    ]);
    (input, size.clone(), blocks, size, loss).prop_map(|(input, width, blocks, outputs, loss)| {
        let linear = |out| vec![Layer::Linear(LinearLayer { out, bias: true })];
        let group = |name: &str, layers| Layer::group(name, layers);
        let layers =
            vec![group("embedding", linear(width)), group("blocks", blocks), group("head", linear(outputs))];
        Sequential { input, layers, loss, weights: None }
    })
}

/// The number of input features of `sizes`, with the structure of `other`. The sizes of images are part of the structure.
pub(super) fn alike(sizes: &Sequential, other: &Sequential) -> Sequential {
    if other.has_images() {
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
    model.for_each_layer(&mut |layer| {
        if let Layer::Dropout(own) = layer {
            *own = rate;
        }
    });
}
