//! Low-rank adaptation (LoRA, Hu et al. 2022): the model is frozen, and selected linear layers get two trainable
//! factors of a weight update. `y = x W^T + b` becomes `y = x W^T + b + alpha/rank (x A^T) B^T`.
//!
//! K and M input and output features of a layer, R rank. A is random, B is zero, so that the adapted model initially
//! equals the base model.

use super::{Graph, Initial, LayerMatches, Node, Scope, ScopeId, ValueKind, named};
use ops::{Add, Linear, Op, Scale};
use spec::{Lora, StorageDtype};

/// A linear layer of a block, which can have an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptableLinear {
    /// The index of its node.
    node: usize,
    /// Its path in the block: `attention.qkv`.
    pub path: String,
    pub in_features: usize,
    pub out_features: usize,
}

/// The linear layers of a graph's blocks, in the order of execution.
pub fn adaptable(graph: &Graph) -> Vec<AdaptableLinear> {
    let layer = |(node, Node { op, scope, inputs, .. }): (usize, &Node)| {
        let scope = &graph.scopes[scope.index()];
        let weight = &graph.values[*inputs.get(1)?];
        let is_weight = matches!((op, weight.kind), (Op::Linear(_), ValueKind::Parameter { .. }));
        let &[out_features, in_features] = weight.ty.shape.dims() else { return None };
        let block = &graph.scopes[scope.layer.index()].path;
        let path = format!("{}.{}", scope.path, weight_prefix(weight.name));
        let path = path.strip_prefix(&format!("{block}."))?.to_owned();
        (scope.block && is_weight).then_some(AdaptableLinear { node, path, in_features, out_features })
    };
    graph.nodes.iter().enumerate().filter_map(layer).collect()
}

/// `qkv` of `qkv.weight`.
fn weight_prefix(weight: &str) -> &str {
    weight.split('.').next().unwrap_or(weight)
}

/// Matches target names with linear layers; `by_scope` has one entry per layer.
pub fn targeted(layers: &[AdaptableLinear], targets: &[String]) -> LayerMatches {
    let scope = |layer: &AdaptableLinear| Scope {
        path: layer.path.clone(),
        parent: None,
        layer: ScopeId(0),
        block: true,
    };
    let scopes: Vec<Scope> = layers.iter().map(scope).collect();
    named(&scopes, targets.iter().map(String::as_str))
}

impl Graph {
    /// Freezes all parameters, stores the weights of the blocks' linear layers in the format of the LoRA base, and adds
    /// factors to the targeted layers.
    pub fn adapt(&mut self, lora: &Lora, params: StorageDtype) {
        let layers = adaptable(self);
        for value in &mut self.values {
            if let ValueKind::Parameter { trainable, .. } = &mut value.kind {
                *trainable = false;
            }
        }
        for layer in &layers {
            let weight = self.nodes[layer.node].inputs[1];
            if let ValueKind::Parameter { storage, .. } = &mut self.values[weight].kind {
                *storage = lora.storage(params);
            }
        }
        let targeted = targeted(&layers, &lora.targets).by_scope;
        let mut layers =
            layers.iter().zip(targeted).filter(|(_, name)| name.is_some()).map(|(layer, _)| layer);
        let mut next = layers.next();
        for (index, node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            match next {
                Some(layer) if layer.node == index => {
                    self.add_factors(node, layer, lora);
                    next = layers.next();
                }
                _ => self.nodes.push(node),
            }
        }
    }

    /// Appends a linear layer with its factors. The sum of both writes the layer's original outputs.
    fn add_factors(&mut self, node: Node, layer: &AdaptableLinear, lora: &Lora) {
        let Op::Linear(linear) = node.op else { unreachable!("only linear layers are adapted") };
        let Node { scope, inputs, outputs, .. } = node;
        let adapter = self.child_scope(scope, weight_prefix(self.values[inputs[1]].name));
        let a = self.parameter("lora_A", adapter, &[lora.rank, layer.in_features], Initial::FanIn);
        let b = self.parameter("lora_B", adapter, &[layer.out_features, lora.rank], Initial::Constant(0.0));
        // B has the rows of the weight.
        self.values[b].stacked = self.values[inputs[1]].stacked;
        let product = Linear { bias: false, activation: None, residual: false, ..linear };
        let [low] = self.node(Op::Linear(product), adapter, vec![inputs[0], a], ["low"]);
        let factor = (lora.alpha / lora.rank as f64) as f32;
        let [scaled] = self.node(Op::Scale(Scale { factor }), adapter, vec![low], ["scaled"]);
        let base = Op::Linear(Linear { activation: None, ..linear });
        let [base] = self.node(base, scope, inputs, ["base"]);
        match linear.activation {
            // The last matmul adds to the base output in place.
            None if linear.residual => {
                let op = Op::Linear(Linear { residual: true, ..product });
                self.nodes.push(Node { op, scope: adapter, inputs: vec![scaled, b, base], outputs });
            }
            activation => {
                assert!(!linear.residual, "a linear layer with a residual has no activation");
                let [change] = self.node(Op::Linear(product), adapter, vec![scaled, b], ["change"]);
                let op = Op::Add(Add { activation, stream: false });
                self.nodes.push(Node { op, scope, inputs: vec![base, change], outputs });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as graph;
    use spec::LoraBase;

    fn paths(graph: &Graph) -> Vec<String> {
        adaptable(graph).into_iter().map(|layer| layer.path).collect()
    }

    /// The model's own values keep their indices, and with them their random sites.
    #[test]
    fn adapter_factors_follow_the_base_parameters() {
        let model = testing::small().model;
        let plain = graph::build(&model, 2);
        assert_eq!(paths(&plain), ["attention.qkv", "attention.out", "mlp.up", "mlp.out"].repeat(2));
        let targets = ["mlp".to_owned(), "*.qkv".to_owned()].to_vec();
        let lora = Lora { rank: 5, alpha: 10.0, targets, base: LoraBase::Nf4, double_quantization: true };
        let mut adapted = plain.clone();
        adapted.adapt(&lora, StorageDtype::Fp32);
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
