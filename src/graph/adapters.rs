//! Low-rank adaptation (LoRA, Hu et al. 2022): the model is frozen, and selected linear layers get two trainable
//! factors of a weight update. `y = x W^T + b` becomes `y = x W^T + b + factor (dropout(x) A^T) B^T`.
//!
//! K and M input and output features of a layer, R rank. A is random, B is zero, so that the adapted model initially
//! equals the base model. A part of a stacked layer, such as the queries of `qkv`, can have factors of its own.

use std::collections::{HashMap, HashSet};

use super::{
    Graph, GraphValue, Initial, LayerMatches, Node, Scope, ScopeId, ValueKind, checkpoint_tensors, named,
    transformer,
};
use data::{Part, TensorNaming};
use ops::{Add, AddColumns, ColumnPlace, Dropout, DropoutMask, Linear, Op, Scale};
use spec::{Lora, Model, StorageDtype};

/// The parts of stacked weights, in row order.
const STACKED: [(&str, &[&str]); 2] = [("qkv", &["q", "k", "v"]), ("gate_up", &["gate", "up"])];

/// Names of the factors.
const FACTORS: [&str; 2] = ["lora_A", "lora_B"];

/// The first dropout site of adapters, above those of any model.
const FIRST_SITE: u32 = 1 << 24;

/// The target that selects all linear layers of the blocks, as in PEFT.
const ALL_LINEAR: &str = "all-linear";

/// A linear layer of a block, or a part of a stacked one, which can have an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptableLinear {
    /// The index of its node.
    node: usize,
    /// The full name of the weight: `blocks.0.attention.qkv.weight`.
    weight: String,
    /// Its path in the block: `attention.qkv`, or `attention.q` for a part.
    pub path: String,
    pub in_features: usize,
    pub out_features: usize,
    /// The part, if it is one of a stacked layer.
    part: Option<StackedPart>,
}

/// A part of a stacked layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StackedPart {
    /// The index among the `count` parts.
    number: usize,
    count: usize,
    /// The rows of the stacked weight.
    rows: usize,
}

impl StackedPart {
    /// Its columns of the output. The parts behind the first one have equal widths.
    fn place(self) -> ColumnPlace {
        if self.number == 0 { ColumnPlace::Start } else { ColumnPlace::FromEnd(self.count - self.number) }
    }
}

impl AdaptableLinear {
    /// Whether both adapt the same rows of a weight.
    pub fn overlaps(&self, other: &AdaptableLinear) -> bool {
        self.node == other.node && self.part.is_some() != other.part.is_some()
    }

    /// Its modules in the libraries' classes, such as `self_attn.q_proj`, by naming scheme. Schemes that store its weight
    /// in another number of tensors are omitted.
    fn modules(&self, model: &Model) -> impl Iterator<Item = (TensorNaming, String)> {
        let (part, count, rows) =
            self.part.map_or((0, 1, self.out_features), |part| (part.number, part.count, part.rows));
        let tensors = checkpoint_tensors(model, &self.weight, rows).into_iter();
        tensors.filter_map(move |(naming, tensors)| {
            let mut names: Vec<String> = tensors.into_iter().map(|tensor| tensor.tensor).collect();
            // Slices of one tensor.
            names.dedup();
            // `layers.0.self_attn.q_proj.weight`
            let path = names.get(part).filter(|_| names.len() == count)?.strip_suffix(".weight")?;
            Some((naming, path.splitn(3, '.').nth(2)?.to_owned()))
        })
    }
}

/// The linear layers of a graph's blocks, in the order of execution; a stacked one is followed by its parts. Routers and
/// experts cannot have adapters: the library stores them as parameters, not in `nn.Linear`.
pub fn adaptable(graph: &Graph) -> Vec<AdaptableLinear> {
    graph.nodes.iter().enumerate().flat_map(|(node, of)| adaptable_in(graph, node, of)).collect()
}

fn adaptable_in(graph: &Graph, node: usize, Node { op, scope, inputs, .. }: &Node) -> Vec<AdaptableLinear> {
    let scope = &graph.scopes[scope.index()];
    let Some(weight) = inputs.get(1).map(|&weight| &graph.values[weight]) else { return Vec::new() };
    let is_weight = matches!((op, weight.kind), (Op::Linear(_), ValueKind::Parameter { .. }));
    let is_router = weight.name == transformer::ROUTER;
    let &[out_features, in_features] = weight.ty.shape.dims() else { return Vec::new() };
    if !scope.block || !is_weight || is_router {
        return Vec::new();
    }
    let block = graph.scopes[scope.layer.index()].path.len() + 1;
    // A layer of its own is in no block.
    let Some(sub_layer) = scope.path.get(block..) else { return Vec::new() };
    let layer = |name: &str, out_features, part| AdaptableLinear {
        node,
        weight: graph.full_name(weight),
        path: format!("{sub_layer}.{name}"),
        in_features,
        out_features,
        part,
    };
    let name = weight_prefix(weight.name);
    let parts = STACKED.iter().find(|(stacked, _)| *stacked == name).map_or(&[][..], |(_, parts)| parts);
    let count = parts.len();
    let parts = parts.iter().zip(weight.stacked.ranges(out_features)).enumerate();
    let parts = parts.map(|(number, (name, rows))| {
        layer(name, rows.len(), Some(StackedPart { number, count, rows: out_features }))
    });
    std::iter::once(layer(name, out_features, None)).chain(parts).collect()
}

/// `qkv` of `qkv.weight`.
fn weight_prefix(weight: &str) -> &str {
    weight.split('.').next().unwrap_or(weight)
}

/// The stacked layer of a part, and the part's number: `blocks.0.attention.qkv` and 0 for `blocks.0.attention.q`.
pub fn stacked_layer(path: &str) -> Option<(String, usize)> {
    let (sub_layer, name) = path.rsplit_once('.')?;
    STACKED.iter().find_map(|(stacked, parts)| {
        let part = parts.iter().position(|part| *part == name)?;
        Some((format!("{sub_layer}.{stacked}"), part))
    })
}

/// Whether a parameter is a factor of an adapter, by its name.
pub fn is_factor(name: &str) -> bool {
    FACTORS.contains(&name)
}

/// The layers that targets select, by index, and the targets that select none.
pub struct TargetMatches {
    pub layers: Vec<usize>,
    pub unknown: Vec<usize>,
}

/// Matches targets with layers. A target is the path of a layer in its block, a prefix or pattern of paths, or the name
/// of a module in the library (`q_proj`).
///
/// Prefixes and patterns select the layers that the library's class of this model has: stacked ones if it stacks them,
/// else their parts. They select the other form only if they match no layer of this form.
///
/// `naming`: the tensor names of the model's class in the library, if it has one.
pub fn targeted(
    model: &Model,
    layers: &[AdaptableLinear],
    targets: &[String],
    naming: impl FnOnce() -> Option<TensorNaming>,
) -> TargetMatches {
    let at = |path: &str| (0..layers.len()).filter(|&layer| layers[layer].path == path).collect::<Vec<_>>();
    let mut selected: Vec<Vec<usize>> = targets.iter().map(|target| at(target)).collect();
    if selected.iter().any(Vec::is_empty) {
        let naming = naming();
        let forms = forms(model, layers, naming);
        for (target, found) in targets.iter().zip(&mut selected).filter(|(_, found)| found.is_empty()) {
            let by_path = forms.iter().map(|form| by_path(layers, form, target));
            let by_module = std::iter::once_with(|| by_module(model, layers, naming, target));
            *found = by_path.chain(by_module).find(|found| !found.is_empty()).unwrap_or_default();
        }
    }
    let unknown = (0..targets.len()).filter(|&target| selected[target].is_empty()).collect();
    let mut layers = selected.concat();
    layers.sort_unstable();
    layers.dedup();
    TargetMatches { layers, unknown }
}

/// The layers as the library's class of the model has them, and those of the other form.
fn forms(model: &Model, layers: &[AdaptableLinear], naming: Option<TensorNaming>) -> [Vec<usize>; 2] {
    let is_stacked = |node: usize| layers.iter().any(|layer| layer.node == node && layer.part.is_some());
    let is_own = |&layer: &usize| {
        let layer = &layers[layer];
        let has_module = || layer.modules(model).any(|(of, _)| Some(of) == naming);
        !is_stacked(layer.node) || (if naming.is_some() { has_module() } else { layer.part.is_some() })
    };
    let (own, other) = (0..layers.len()).partition(is_own);
    [own, other]
}

fn by_path(layers: &[AdaptableLinear], form: &[usize], target: &str) -> Vec<usize> {
    let scope = |&layer: &usize| Scope {
        path: layers[layer].path.clone(),
        parent: None,
        layer: ScopeId(0),
        block: true,
    };
    let scopes: Vec<Scope> = form.iter().map(scope).collect();
    let target = if target == ALL_LINEAR { "*" } else { target };
    let LayerMatches { by_scope, .. } = named(&scopes, [target]);
    form.iter().zip(by_scope).filter(|(_, name)| name.is_some()).map(|(&layer, _)| layer).collect()
}

/// As in PEFT: a module's path ends with the name. Modules of any class, if that of the model is unknown.
fn by_module(
    model: &Model,
    layers: &[AdaptableLinear],
    naming: Option<TensorNaming>,
    target: &str,
) -> Vec<usize> {
    let ends_with =
        |path: &str| path.strip_suffix(target).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let has_name = |layer: &AdaptableLinear| {
        layer.modules(model).any(|(of, path)| naming.is_none_or(|naming| of == naming) && ends_with(&path))
    };
    (0..layers.len()).filter(|&layer| has_name(&layers[layer])).collect()
}

impl Graph {
    /// Freezes all parameters but those of the trained layers, stores the frozen weights of the blocks' linear layers and
    /// experts and the tables in their formats, and adds factors to the targeted layers.
    pub fn adapt(&mut self, model: &Model, lora: &Lora, params: StorageDtype) {
        let layers = adaptable(self);
        let trained = named(&self.scopes, lora.trained.iter().map(String::as_str)).by_scope;
        let of_experts = self.nodes.iter().filter(|node| matches!(node.op, Op::ExpertLinear(_)));
        let adaptable = layers.iter().map(|layer| &self.nodes[layer.node]);
        let stored: HashSet<usize> = adaptable.chain(of_experts).map(|node| node.inputs[1]).collect();
        for (index, value) in self.values.iter_mut().enumerate() {
            let Scope { block, .. } = self.scopes[value.scope.index()];
            let ValueKind::Parameter { trainable, storage, .. } = &mut value.kind else { continue };
            *trainable = trained[value.scope.index()].is_some();
            if *trainable {
                continue;
            }
            if stored.contains(&index) {
                *storage = lora.storage(params);
            } else if !block && value.ty.shape.dims().len() == 2 {
                *storage = lora.table_storage(params);
            }
        }
        let seeds = (lora.dropout > 0.0).then(|| self.seeds());
        let mut adapters = Adapters { graph: self, lora, seeds, next_site: FIRST_SITE };
        let mut selected: HashMap<usize, Vec<&AdaptableLinear>> = HashMap::new();
        for layer in targeted(model, &layers, &lora.targets, || model.naming()).layers {
            selected.entry(layers[layer].node).or_default().push(&layers[layer]);
        }
        for (index, node) in std::mem::take(&mut adapters.graph.nodes).into_iter().enumerate() {
            match selected.get(&index).map(Vec::as_slice) {
                None => adapters.graph.nodes.push(node),
                Some([layer]) if layer.part.is_none() => adapters.add(node, layer),
                Some(parts) => adapters.add_parts(node, parts),
            }
        }
    }

    /// The seeds of the batch's samples. A model without dropout has no such input.
    fn seeds(&mut self) -> usize {
        let part = Part::seeds();
        let inputs: Vec<usize> = self.inputs().collect();
        let present = inputs.iter().find(|&&input| self.values[input].name == part.name);
        let GraphValue { scope, ty, .. } = self.values[inputs[0]];
        present.copied().unwrap_or_else(|| self.input(scope, &part, ty.shape.dims()[0]))
    }
}

/// Adds factors to the layers of a graph.
struct Adapters<'a> {
    graph: &'a mut Graph,
    lora: &'a Lora,
    /// The seeds of the batch's samples, with dropout.
    seeds: Option<usize>,
    /// The next dropout site.
    next_site: u32,
}

impl Adapters<'_> {
    /// Appends a linear layer with its factors. The sum of both writes the layer's original outputs.
    fn add(&mut self, node: Node, layer: &AdaptableLinear) {
        let Op::Linear(linear) = node.op else { unreachable!("only linear layers are adapted") };
        let Node { scope, inputs, outputs, .. } = node;
        let product = Linear { bias: false, activation: None, residual: false, ..linear };
        let (adapter, [scaled, b]) = self.factors(product, scope, inputs[0], layer);
        let graph = &mut *self.graph;
        // B has the rows of the weight.
        graph.values[b].stacked = graph.values[inputs[1]].stacked;
        let base = Op::Linear(Linear { activation: None, ..linear });
        let [base] = graph.node(base, scope, inputs, ["base"]);
        match linear.activation {
            // The last matmul adds to the base output in place.
            None if linear.residual => {
                let op = Op::Linear(Linear { residual: true, ..product });
                graph.nodes.push(Node { op, scope: adapter, inputs: vec![scaled, b, base], outputs });
            }
            activation => {
                assert!(!linear.residual, "a linear layer with a residual has no activation");
                let [change] = graph.node(Op::Linear(product), adapter, vec![scaled, b], ["change"]);
                let op = Op::Add(Add { activation, stream: false });
                graph.nodes.push(Node { op, scope, inputs: vec![base, change], outputs });
            }
        }
    }

    /// Appends a stacked linear layer with the factors of some of its parts. The last sum writes the layer's original
    /// output.
    fn add_parts(&mut self, node: Node, parts: &[&AdaptableLinear]) {
        let Op::Linear(linear) = node.op else { unreachable!("only linear layers are adapted") };
        assert!(linear.activation.is_none() && !linear.residual, "stacked layers have one plain output");
        let Node { scope, inputs, outputs, .. } = node;
        let (x, product) = (inputs[0], Linear { bias: false, ..linear });
        let [mut sum] = self.graph.node(Op::Linear(linear), scope, inputs, ["base"]);
        for (index, layer) in parts.iter().enumerate() {
            let place = layer.part.expect("parts of stacked layers").place();
            let (adapter, [scaled, b]) = self.factors(product, scope, x, layer);
            let [change] = self.graph.node(Op::Linear(product), adapter, vec![scaled, b], ["change"]);
            let op = Op::AddColumns(AddColumns { place });
            if index + 1 < parts.len() {
                [sum] = self.graph.node(op, scope, vec![sum, change], ["sum"]);
            } else {
                let outputs = outputs.clone();
                self.graph.nodes.push(Node { op, scope, inputs: vec![sum, change], outputs });
            }
        }
    }

    /// Adds the factors of a layer with input x, in a scope of their own. Returns that scope and the operands of the last
    /// matmul: `factor (dropout(x) A^T)` and B.
    fn factors(
        &mut self,
        product: Linear,
        scope: ScopeId,
        x: usize,
        layer: &AdaptableLinear,
    ) -> (ScopeId, [usize; 2]) {
        let Adapters { graph, lora, .. } = self;
        let name = layer.path.rsplit('.').next().unwrap_or(&layer.path);
        let adapter = graph.child_scope(scope, name);
        let [a, b] = FACTORS;
        let a = graph.parameter(a, adapter, &[lora.rank, layer.in_features], Initial::FanIn);
        let b = graph.parameter(b, adapter, &[layer.out_features, lora.rank], Initial::Constant(0.0));
        let factor = lora.factor();
        let x = self.dropout(adapter, x);
        let [low] = self.graph.node(Op::Linear(product), adapter, vec![x, a], ["low"]);
        let [scaled] = self.graph.node(Op::Scale(Scale { factor }), adapter, vec![low], ["scaled"]);
        (adapter, [scaled, b])
    }

    /// Dropout of x, at a site that does not depend on the rate.
    fn dropout(&mut self, scope: ScopeId, x: usize) -> usize {
        let site = self.next_site;
        self.next_site += 1;
        let Some((dropped, seeds)) = DropoutMask::at_rate(self.lora.dropout, site).zip(self.seeds) else {
            return x;
        };
        let op = Op::Dropout(Dropout { dropped, residual: false, stream: false, to: None });
        let [x] = self.graph.node(op, scope, vec![x, seeds], ["dropped"]);
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;

    fn paths(graph: &Graph) -> Vec<String> {
        adaptable(graph).into_iter().map(|layer| layer.path).collect()
    }

    /// PEFT's count of rank 32 on all linear layers of Mistral 7B, and that of one pair of factors per stacked layer.
    #[test]
    fn mistral_7b_has_the_trained_parameters_of_peft() {
        let model = spec::Transformer {
            vocabulary: 32_000,
            kv_heads: 8,
            d_ff: 14_336,
            activation: spec::MlpActivation::Gate(ops::Activation::Silu),
            norm: spec::Norm::Rms,
            positions: spec::Positions::Rotary,
            bias: false,
            qkv_bias: false,
            tied: false,
            ..spec::Transformer::new(32, 4096, 32, 2048)
        };
        let trained = |model: &spec::Transformer, targets: &[&str]| {
            let model = Model::Transformer(model.clone());
            let targets = targets.iter().map(|target| (*target).to_owned()).collect();
            let mut graph = graph::build(&model, 1);
            graph.adapt(&model, &Lora::new(32, 64.0, targets), StorageDtype::Fp32);
            let factors = graph.values.iter().filter(|value| is_factor(value.name));
            factors.map(|value| value.ty.elements()).sum::<usize>()
        };
        assert_eq!(trained(&model, &["all-linear"]), 83_886_080);
        let stacked = ["*.qkv", "*.gate_up", "*.out"];
        assert_eq!(trained(&model, &stacked), 71_303_168);
        assert_eq!(trained(&model, &["q_proj", "down_proj"]), 32 * 32 * (2 * 4096 + 4096 + 14_336));
        // Phi-3 has the same architecture, and stacked layers.
        let phi = spec::Transformer { family: Some(spec::ModelFamily::Phi3), ..model.clone() };
        assert_eq!(trained(&phi, &["all-linear"]), 71_303_168);
        // The library's routers and experts are not `nn.Linear`.
        let experts = spec::Experts { count: 8, per_token: 2, normalize: true };
        let mixtral = spec::Transformer { experts: Some(experts), ..model };
        let of_attention = 32 * 32 * (4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096);
        assert_eq!(trained(&mixtral, &["all-linear"]), of_attention);
    }

    /// The model's own values keep their indices, and with them their random sites.
    #[test]
    fn adapter_factors_follow_the_base_parameters() {
        let model = testing::small().model;
        let plain = graph::build(&model, 2);
        let attention = ["attention.qkv", "attention.q", "attention.k", "attention.v", "attention.out"];
        assert_eq!(paths(&plain), [&attention[..], &["mlp.up", "mlp.out"]].concat().repeat(2));
        let targets = ["mlp".to_owned(), "*.qkv".to_owned()].to_vec();
        let mut adapted = plain.clone();
        adapted.adapt(&model, &Lora::new(5, 10.0, targets), StorageDtype::Fp32);
        let (base, added) = adapted.values.split_at(plain.values.len());
        assert!(
            base.iter().zip(&plain.values).all(|(a, b)| (a.name, a.scope, a.ty) == (b.name, b.scope, b.ty))
        );
        let is_trained =
            |value: &&graph::GraphValue| matches!(value.kind, ValueKind::Parameter { trainable: true, .. });
        assert_eq!(base.iter().filter(is_trained).count(), 0);
        let factors = added.iter().filter(is_trained).map(|value| {
            let path = &adapted.scopes[value.scope.index()].path;
            format!("{path}.{} {}", value.name, value.ty.shape)
        });
        let block_factors = |block: usize| {
            [("attention.qkv", 32, 96), ("mlp.up", 32, 128), ("mlp.out", 128, 32)].into_iter().flat_map(
                move |(layer, inner, out)| {
                    let factor = |name: &str, rows: usize, columns: usize| {
                        format!("blocks.{block}.{layer}.lora_{name} [{rows}, {columns}]")
                    };
                    [factor("A", 5, inner), factor("B", out, 5)]
                },
            )
        };
        assert_eq!(factors.collect::<Vec<_>>(), (0..2).flat_map(block_factors).collect::<Vec<_>>());
        // Every original value still has the same number of writers.
        for value in 0..plain.values.len() {
            let writers =
                |graph: &Graph| graph.nodes.iter().filter(|node| node.outputs.contains(&value)).count();
            assert_eq!(writers(&adapted), writers(&plain), "{}", plain.values[value].name);
        }
    }
}
