//! Materialized attention.

use super::{Graph, GraphValue, ValueKind};
use ops::{MaterializedAttention, Op, StackedRows};

impl Graph {
    /// Replaces fused attention by materialized attention throughout the model.
    pub(crate) fn materialize_attention(&mut self) {
        let Graph { values, nodes, .. } = self;
        for node in nodes {
            let Op::Attention(fused) = &node.op else { continue };
            let op = MaterializedAttention { attending: fused.attending };
            node.op = Op::MaterializedAttention(op);
            let inputs: Vec<_> = node.inputs.iter().map(|input| values[*input].ty).collect();
            let types = node.op.outputs(&inputs);
            let types = types.unwrap_or_else(|error| panic!("invalid model: {error}"));
            // Only backward reads lse, so its value can hold the probabilities instead.
            let lse = node.outputs[1];
            (values[lse].name, values[lse].ty) = ("probabilities", types[1]);
            let (scope, kind) = (node.scope, ValueKind::Activation);
            for (name, &ty) in ["scores", "dropped"].into_iter().zip(&types[2..]) {
                values.push(GraphValue { name, scope, ty, kind, stacked: StackedRows::default() });
                node.outputs.push(values.len() - 1);
            }
        }
    }
}
