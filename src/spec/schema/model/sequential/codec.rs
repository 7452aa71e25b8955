//! How experiment files write layers: a word (`"relu"`), or a table with one key (`{ linear = 512 }`).

use super::layer::{
    ActivationKeys, ActivationLayer, BatchNormLayer, ConvLayer, GroupNormLayer, Layer, LayerActivation,
    LayerGroup, LinearLayer, NormLayer, PoolLayer, Repeat, ResidualLayer, Statistics,
};
use super::sequence::{AttentionLayer, EmbeddingLayer, TransformerBlock};
use crate::reader::declare::{
    InlineTable, KeyCodec, KeyTable, KeywordEnum, ShortForm, Writable, inline_table,
};
use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser, join};
use crate::reader::list::List;
use crate::reader::parsers::{DIMENSION, UsizeRange};
use crate::reader::reference::{Accepts, DeclaredKey};
use crate::reader::tree::{Node, Value, quoted};
use crate::reader::write::TableWriter;
use crate::schema::model::RATE;
use ops::Activation;

/// The key of the outermost list.
const KEY: &str = "model.sequential.layers";

const LAYER: &str = "a layer";

pub(super) const LAYERS: List<LayerCodec> = List {
    of: "layers",
    example: "[{ linear = 64 }, \"relu\", { linear = 10 }]",
    may_be_empty: false,
    may_repeat: true,
    element: LayerCodec,
};

pub(super) const INNER: InnerLayers = InnerLayers(LAYERS);

pub(super) const INNER_OR_NONE: InnerLayers = InnerLayers(List { may_be_empty: true, ..LAYERS });

const LINEAR: ShortForm<UsizeRange, LinearLayer> = ShortForm {
    value: DIMENSION,
    table: inline_table("linear", "`linear`", "out = 512, bias = false"),
    full: |out| LinearLayer { out, bias: true },
    short: |layer| layer.bias.then_some(layer.out),
};

const RESIDUAL: ShortForm<InnerLayers, ResidualLayer> = ShortForm {
    value: INNER,
    table: inline_table("residual", "`residual`", "layers = [\"relu\"], projection = [{ linear = 64 }]"),
    full: |layers| ResidualLayer { layers, projection: Vec::new() },
    short: |layer| layer.projection.is_empty().then(|| layer.layers.clone()),
};

const RELU: InlineTable<ActivationKeys> = inline_table("relu", "`relu`", "inplace = true");
const SILU: InlineTable<ActivationKeys> = inline_table("silu", "`silu`", "inplace = true");
const LEAKY_RELU: InlineTable<ActivationKeys> = inline_table("leaky_relu", "`leaky_relu`", "inplace = true");
const LAYER_NORM: InlineTable<NormLayer> = inline_table("layer_norm", "`layer_norm`", "epsilon = 1e-6");
const RMS_NORM: InlineTable<NormLayer> = inline_table("rms_norm", "`rms_norm`", "epsilon = 1e-6");
const CONV2D: InlineTable<ConvLayer> =
    inline_table("conv2d", "`conv2d`", "out = 64, kernel = 3, padding = 1");
const MAX_POOL: InlineTable<PoolLayer> = inline_table("max_pool", "`max_pool`", "kernel = 2");
const AVG_POOL: InlineTable<PoolLayer> = inline_table("avg_pool", "`avg_pool`", "kernel = 2");
const BATCH_NORM: InlineTable<BatchNormLayer> = inline_table("batch_norm", "`batch_norm`", "momentum = 0.01");
const GROUP_NORM: InlineTable<GroupNormLayer> = inline_table("group_norm", "`group_norm`", "groups = 8");
const EMBEDDING: InlineTable<EmbeddingLayer> =
    inline_table("embedding", "`embedding`", "count = 50000, dim = 512");
const ATTENTION: InlineTable<AttentionLayer> = inline_table("attention", "`attention`", "heads = 8");
const TRANSFORMER_BLOCK: InlineTable<TransformerBlock> = inline_table(
    "transformer_block",
    "`transformer_block`",
    "heads = 8, hidden = 2048, activation = \"gelu\"",
);
const REPEAT: InlineTable<Repeat> =
    inline_table("repeat", "`repeat`", "times = 4, layers = [{ linear = 64 }, \"relu\"]");
const GROUP: InlineTable<LayerGroup> =
    inline_table("group", "`group`", "name = \"encoder\", layers = [{ linear = 64 }]");

/// `Layer::Activation` with keys.
fn activation(activation: Activation, ActivationKeys { inplace }: ActivationKeys) -> Layer {
    Layer::Activation(ActivationLayer { activation: LayerActivation(activation), inplace })
}

/// A layer that is written as a table with its key.
struct LayerKey {
    key: &'static str,
    doc: &'static str,
    accepts: fn() -> Accepts,
    read: for<'a> fn(&Keys<'a>, &'static str, &'a Node) -> Option<Layer>,
}

/// An entry of `LAYER_KEYS`.
macro_rules! layer_key {
    ($key:literal, $doc:expr, $codec:expr, $layer:expr) => {
        LayerKey {
            key: $key,
            doc: $doc,
            accepts: || $codec.accepts(),
            read: |keys, key, node| $codec.read(keys, key, node).map($layer),
        }
    };
}

const LAYER_KEYS: &[LayerKey] = &[
    layer_key!("relu", "ReLU (PyTorch: `nn.ReLU`).", RELU, |keys| activation(Activation::Relu, keys)),
    layer_key!("silu", "SiLU (PyTorch: `nn.SiLU`).", SILU, |keys| activation(Activation::Silu, keys)),
    layer_key!("leaky_relu", "Leaky ReLU of slope 0.01 (PyTorch: `nn.LeakyReLU`).", LEAKY_RELU, |keys| {
        activation(Activation::LeakyRelu, keys)
    }),
    layer_key!("linear", LinearLayer::DOC, LINEAR, Layer::Linear),
    layer_key!(
        "layer_norm",
        "Layer norm of the last dimension (PyTorch: `nn.LayerNorm`).",
        LAYER_NORM,
        Layer::LayerNorm
    ),
    layer_key!(
        "rms_norm",
        "RMS norm of the last dimension (PyTorch: `nn.RMSNorm`).",
        RMS_NORM,
        Layer::RmsNorm
    ),
    layer_key!("conv2d", ConvLayer::DOC, CONV2D, Layer::Conv2d),
    layer_key!(
        "max_pool",
        "Maximum of each window of an image (PyTorch: `nn.MaxPool2d`).",
        MAX_POOL,
        Layer::MaxPool
    ),
    layer_key!(
        "avg_pool",
        "Mean of each window of an image, padding included (PyTorch: `nn.AvgPool2d`).",
        AVG_POOL,
        Layer::AvgPool
    ),
    layer_key!("batch_norm", BatchNormLayer::DOC, BATCH_NORM, |layer| {
        Layer::BatchNorm(layer, Statistics::Batch)
    }),
    layer_key!("group_norm", GroupNormLayer::DOC, GROUP_NORM, Layer::GroupNorm),
    layer_key!("embedding", EmbeddingLayer::DOC, EMBEDDING, Layer::Embedding),
    layer_key!("attention", AttentionLayer::DOC, ATTENTION, Layer::Attention),
    layer_key!("transformer_block", TransformerBlock::DOC, TRANSFORMER_BLOCK, Layer::TransformerBlock),
    layer_key!("dropout", "Dropout, in training only.", RATE, Layer::Dropout),
    layer_key!("block", "Layers that are one module.", INNER, Layer::Block),
    layer_key!("residual", ResidualLayer::DOC, RESIDUAL, Layer::Residual),
    layer_key!("repeat", Repeat::DOC, REPEAT, Layer::Repeat),
    layer_key!("group", LayerGroup::DOC, GROUP, Layer::Group),
];

/// A word, or a table with one key of `LAYER_KEYS`.
pub(super) struct LayerCodec;

impl KeyCodec for LayerCodec {
    type Output = Layer;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Layer> {
        let Some(table) = node.table() else { return keys.parse(key, node, &LayerWord) };
        let mut layer = keys.table_of(key, node, "", LAYER)?;
        if let [entry] = &table.entries[..]
            && is_only_a_word(&entry.key)
        {
            let problem = Problem::new(format!("the layer `{}` has no keys", entry.key));
            layer.reader().problem(problem.at(node.span).help(format!("write {}", quoted(&entry.key))));
            return None;
        }
        let mut read = Vec::new();
        for known in LAYER_KEYS {
            if let Some(entry) = layer.entry(known.key) {
                read.push((known.read)(&layer, known.key, &entry.node));
            }
        }
        let reader = layer.reader();
        layer.finish();
        if read.len() != 1 && table.entries.iter().all(|entry| is_layer_key(&entry.key)) {
            let names: Vec<String> = table.entries.iter().map(|entry| format!("`{}`", entry.key)).collect();
            let name = keys.name(key);
            let (message, help) = match &names[..] {
                // Its key was not read.
                [only] => (format!("{only} of `{name}` cannot be \"off\""), "remove the layer"),
                _ => (
                    format!("`{name}` must have the key of one layer; it has {}", join(&names, "and")),
                    "write a table for each layer: { linear = 64 }, { dropout = 0.1 }",
                ),
            };
            reader.problem(Problem::new(message).at(node.span).help(help));
            return None;
        }
        read.into_iter().next().flatten()
    }

    fn write(&self, key: &str, value: &Layer, lines: &mut TableWriter) {
        let mut table = TableWriter::empty(lines.form());
        match value {
            Layer::Activation(ActivationLayer { inplace: false, .. })
            | Layer::Softmax
            | Layer::GlobalPool
            | Layer::Flatten
            | Layer::Positions
            | Layer::ToSequence
            | Layer::MeanPool => {
                return lines.line(key, &quoted(word(value)));
            }
            Layer::LayerNorm(norm) | Layer::RmsNorm(norm) if *norm == NormLayer::default() => {
                return lines.line(key, &quoted(word(value)));
            }
            Layer::BatchNorm(norm, _) if *norm == BatchNormLayer::default() => {
                return lines.line(key, &quoted(word(value)));
            }
            Layer::Activation(ActivationLayer { inplace, .. }) => {
                RELU.write(word(value), &ActivationKeys { inplace: *inplace }, &mut table)
            }
            Layer::Linear(layer) => LINEAR.write("linear", layer, &mut table),
            Layer::LayerNorm(norm) => LAYER_NORM.write("layer_norm", norm, &mut table),
            Layer::RmsNorm(norm) => RMS_NORM.write("rms_norm", norm, &mut table),
            Layer::Conv2d(layer) => CONV2D.write("conv2d", layer, &mut table),
            Layer::MaxPool(layer) => MAX_POOL.write("max_pool", layer, &mut table),
            Layer::AvgPool(layer) => AVG_POOL.write("avg_pool", layer, &mut table),
            Layer::BatchNorm(norm, _) => BATCH_NORM.write("batch_norm", norm, &mut table),
            Layer::GroupNorm(norm) => GROUP_NORM.write("group_norm", norm, &mut table),
            Layer::Embedding(layer) => EMBEDDING.write("embedding", layer, &mut table),
            Layer::Attention(layer) => ATTENTION.write("attention", layer, &mut table),
            Layer::TransformerBlock(block) => TRANSFORMER_BLOCK.write("transformer_block", block, &mut table),
            Layer::Dropout(rate) => RATE.write("dropout", rate, &mut table),
            Layer::Block(layers) => INNER.write("block", layers, &mut table),
            Layer::Residual(layer) => RESIDUAL.write("residual", layer, &mut table),
            Layer::Repeat(layer) => REPEAT.write("repeat", layer, &mut table),
            Layer::Group(layer) => GROUP.write("group", layer, &mut table),
        }
        lines.line(key, &table.inline());
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = \"relu\"")
    }

    fn accepts(&self) -> Accepts {
        let key = |layer: &LayerKey| DeclaredKey::new(layer.key, layer.doc.trim(), (layer.accepts)(), None);
        Accepts::parsed(&LayerWord).or_one_of(LAYER_KEYS.iter().map(key).collect())
    }
}

/// The word of a layer without keys, or with all keys at their defaults; the key of others.
fn word(layer: &Layer) -> &'static str {
    match layer {
        Layer::Activation(layer) => layer.activation.keyword(),
        Layer::Softmax => "softmax",
        Layer::Linear(_) => "linear",
        Layer::LayerNorm(_) => "layer_norm",
        Layer::RmsNorm(_) => "rms_norm",
        Layer::Conv2d(_) => "conv2d",
        Layer::MaxPool(_) => "max_pool",
        Layer::AvgPool(_) => "avg_pool",
        Layer::GlobalPool => "global_pool",
        Layer::BatchNorm(..) => "batch_norm",
        Layer::GroupNorm(_) => "group_norm",
        Layer::Flatten => "flatten",
        Layer::Embedding(_) => "embedding",
        Layer::Positions => "positions",
        Layer::ToSequence => "to_sequence",
        Layer::MeanPool => "mean_pool",
        Layer::Attention(_) => "attention",
        Layer::TransformerBlock(_) => "transformer_block",
        Layer::Dropout(_) => "dropout",
        Layer::Block(_) => "block",
        Layer::Residual(_) => "residual",
        Layer::Repeat(_) => "repeat",
        Layer::Group(_) => "group",
    }
}

/// The layers that a word suffices for.
fn words() -> impl Iterator<Item = Layer> {
    let activations = Activation::ALL.map(|activation| Layer::Activation(ActivationLayer::new(activation)));
    let norms = [Layer::LayerNorm, Layer::RmsNorm].map(|norm| norm(NormLayer::default()));
    let batch_norm = Layer::BatchNorm(BatchNormLayer::default(), Statistics::Batch);
    let others =
        [batch_norm, Layer::GlobalPool, Layer::Flatten, Layer::Positions, Layer::ToSequence, Layer::MeanPool];
    activations.into_iter().chain([Layer::Softmax]).chain(norms).chain(others)
}

fn is_layer_key(key: &str) -> bool {
    LAYER_KEYS.iter().any(|known| known.key == key)
}

fn is_only_a_word(text: &str) -> bool {
    !is_layer_key(text) && words().any(|layer| word(&layer) == text)
}

struct LayerWord;

impl ValueParser for LayerWord {
    type Output = Layer;

    fn parse(&self, value: &Value) -> Option<Layer> {
        let Value::Text(text) = value else { return None };
        words().find(|layer| word(layer) == text)
    }

    fn expected(&self) -> String {
        let words: Vec<String> = words().map(|layer| quoted(word(&layer))).collect();
        format!("{}, or a table with the key of a layer, such as {{ linear = 64 }}", words.join(", "))
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::words(&self.keywords())]
    }

    fn keywords(&self) -> Vec<&'static str> {
        words().map(|layer| word(&layer)).collect()
    }

    /// The word of a layer that needs a table.
    fn meant(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let example = match text.as_str() {
            "linear" => "{ linear = 64 }",
            "dropout" => "{ dropout = 0.1 }",
            "conv2d" => "{ conv2d = { out = 64, kernel = 3 } }",
            "max_pool" => "{ max_pool = { kernel = 2 } }",
            "avg_pool" => "{ avg_pool = { kernel = 2 } }",
            "group_norm" => "{ group_norm = { groups = 8 } }",
            "embedding" => "{ embedding = { count = 50000, dim = 512 } }",
            "attention" => "{ attention = { heads = 8 } }",
            "transformer_block" => "{ transformer_block = { heads = 8, hidden = 2048 } }",
            _ => return None,
        };
        Some(example.to_owned())
    }
}

/// A name of a Python module, which no other layer can have.
pub(super) struct GroupName;

impl ValueParser for GroupName {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        let Value::Text(text) = value else { return None };
        let is_word = text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        (is_word && !text.starts_with(|first: char| first.is_ascii_digit()) && !text.is_empty())
            .then(|| text.clone())
    }

    fn expected(&self) -> String {
        "a name of letters, digits and _, which does not begin with a digit".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching("^[A-Za-z_][A-Za-z0-9_]*$".to_owned())]
    }
}

impl Writable for GroupName {
    fn text(&self, value: &String) -> String {
        quoted(value)
    }
}

/// Layers within a layer: the same list, to which the reference of keys refers.
pub(super) struct InnerLayers(List<LayerCodec>);

impl KeyCodec for InnerLayers {
    type Output = Vec<Layer>;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<Vec<Layer>> {
        self.0.read(keys, key, node)
    }

    fn write(&self, key: &str, value: &Vec<Layer>, lines: &mut TableWriter) {
        self.0.write(key, value, lines);
    }

    fn example(&self, key: &str) -> String {
        self.0.example(key)
    }

    fn accepts(&self) -> Accepts {
        Accepts::value("a list of layers", vec![Form::ListOf { key: KEY, may_be_empty: self.0.may_be_empty }])
    }
}
