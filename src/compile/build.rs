//! The forward pass of the model, its parameters in buckets, its batch uploaded: the program's beginning.

use super::program::{
    Action, Bucket, Exchange, Instruction, Like, Parameter, Program, Section, SectionKind, Stage,
};
use crate::device::{Phase, Pool, Queue, Role};
use crate::graph::{self, Graph, Kind, ScopeId};
use crate::ops::{CONTROL_LEN, CrossEntropy, Fill, Normal, Op, Segment, Segments, TensorType, ValueId};
use crate::spec::RunConfig;

/// Tensors in a bucket begin at multiples of this many bytes: what vector loads and matrix libraries like best.
const SEGMENT_ALIGNMENT: usize = 256;

pub(super) fn build(graph: &Graph, config: &RunConfig) -> Program {
    let mut program = Program {
        stage: Stage::Forward,
        scopes: graph.scopes.clone(),
        values: Vec::with_capacity(graph.values.len() * 4),
        sections: Vec::new(),
        parameters: Vec::new(),
        buckets: Vec::new(),
        exchange: Exchange {
            tokens: ValueId(0),
            targets: ValueId(0),
            control: ValueId(0),
            loss: ValueId(0),
            norm: None,
        },
        loss_scaling: None,
        micro_batches: config.strategy.accumulate,
        model_flops: 0,
        events: 0,
        places: Vec::new(),
        arenas: Default::default(),
    };
    let parameters = lay_out(&mut program, graph, config);
    program.exchange = exchange(&mut program, graph);
    let mut persistent: Vec<ValueId> = program.buckets.iter().map(|bucket| bucket.parameters).collect();
    let Exchange { tokens, targets, control, loss, .. } = program.exchange;
    persistent.extend([tokens, targets, control, loss]);

    let start = initialise(&program, config);
    let first = forward(&mut program, graph, &parameters, Phase::Forward);
    let section = |kind, entry: &[ValueId], code| Section {
        kind,
        entry: entry.to_vec(),
        exit: persistent.clone(),
        code,
        segments: Vec::new(),
    };
    program.sections.push(section(SectionKind::Start, &[], start));
    program.sections.push(section(SectionKind::First, &persistent, first));
    if config.evaluation.is_some() {
        let evaluation = forward(&mut program, graph, &parameters, Phase::Evaluation);
        program.sections.push(section(SectionKind::Evaluation, &persistent, evaluation));
    }
    program
}

/// One bucket for each layer that has parameters. Returns the program's value for each parameter of the graph.
fn lay_out(program: &mut Program, graph: &Graph, config: &RunConfig) -> Vec<Option<ValueId>> {
    let mut values = vec![None; graph.values.len()];
    for Layout { layer, members, segments, ty } in layouts(graph, config) {
        let like = Like::Bucket(program.buckets.len());
        let bucket = program.add_value("parameters", layer, (like, ty), Role::Parameter, Pool::Device);
        for (&(index, initial), segment) in members.iter().zip(segments.iter()) {
            let value = &graph.values[index];
            let offset = segment.offset as u64 * value.ty.dtype.bytes();
            let ty = (Like::Graph(index), value.ty);
            let view = program.add_view(value.name, value.scope, ty, bucket, offset);
            values[index] = Some(view);
            let site = program.parameters.len() as u32;
            let bucket = program.buckets.len();
            program.parameters.push(Parameter { value: view, initial, site, bucket, gradient: None });
        }
        program.buckets.push(Bucket {
            scope: layer,
            segments,
            parameters: bucket,
            gradients: None,
            moments: None,
        });
    }
    values
}

/// How the parameters of one layer lie in their bucket.
pub(super) struct Layout {
    layer: ScopeId,
    /// The graph's values and how they start, in the order of `segments`.
    members: Vec<(usize, graph::Initial)>,
    pub(super) segments: Segments,
    pub(super) ty: TensorType,
}

/// A layout for each layer that has parameters, in the order of the layers.
pub(super) fn layouts(graph: &Graph, config: &RunConfig) -> impl Iterator<Item = Layout> {
    let decays = |ty: &TensorType| config.train.optimizer.decays(ty.shape.dims().len());
    let mut layers: Vec<Vec<(usize, graph::Initial)>> = vec![Vec::new(); graph.scopes.len()];
    for (index, value) in graph.values.iter().enumerate() {
        if let Kind::Parameter(initial) = value.kind {
            layers[graph.scopes[value.scope.index()].layer.index()].push((index, initial));
        }
    }
    let layers = layers.into_iter().enumerate().filter(|(_, members)| !members.is_empty());
    layers.map(move |(layer, members)| {
        let mut segments = Vec::with_capacity(members.len());
        let mut end = 0usize;
        for &(index, _) in &members {
            let ty = graph.values[index].ty;
            let offset = end.next_multiple_of(SEGMENT_ALIGNMENT / ty.dtype.bytes() as usize);
            segments.push(Segment { offset, len: ty.elements(), decay: decays(&ty) });
            end = offset + ty.elements();
        }
        let (layer, ty) = (ScopeId(layer as u32), TensorType::f32(&[end]));
        Layout { layer, members, segments: segments.into(), ty }
    })
}

/// The host's side of each step.
fn exchange(program: &mut Program, graph: &Graph) -> Exchange {
    let scope = program.add_scope("batch");
    let micro_batches = program.micro_batches;
    let whole = |kind: Kind| {
        let index = graph.values.iter().position(|value| value.kind == kind).expect("models read a batch");
        let TensorType { dtype, shape } = graph.values[index].ty;
        (Like::Batch(index), TensorType { dtype, shape: shape.times(micro_batches) })
    };
    let (tokens, targets) = (whole(Kind::Tokens), whole(Kind::Targets));
    let mut input = |name, ty| program.add_value(name, scope, ty, Role::Input, Pool::Host);
    Exchange {
        tokens: input("tokens", tokens),
        targets: input("targets", targets),
        control: input("control", (Like::Fixed, TensorType::f32(&[CONTROL_LEN]))),
        loss: input("loss", (Like::Fixed, TensorType::scalar())),
        norm: None,
    }
}

/// Every parameter's first value.
fn initialise(program: &Program, config: &RunConfig) -> Vec<Instruction> {
    let launch = |parameter: &Parameter| {
        let value = program.value(parameter.value);
        let op = match parameter.initial {
            graph::Initial::Constant(constant) => Op::Fill(Fill { output: value.ty, value: constant }),
            graph::Initial::Normal(deviation) => Op::Normal(Normal {
                output: value.ty,
                deviation,
                seed: config.train.seed,
                site: parameter.site,
            }),
        };
        let outputs = vec![parameter.value];
        let action = Action::Launch { op, inputs: Vec::new(), outputs, workspace: None };
        Instruction::new(action, value.scope, Phase::Start)
    };
    program.parameters.iter().map(launch).collect()
}

/// The graph's nodes over values of their own, after the upload of a micro-batch.
fn forward(
    program: &mut Program,
    graph: &Graph,
    parameters: &[Option<ValueId>],
    phase: Phase,
) -> Vec<Instruction> {
    let Exchange { tokens, targets, .. } = program.exchange;
    let mut code = Vec::with_capacity(graph.nodes.len() * 5);
    let values: Vec<ValueId> = graph
        .values
        .iter()
        .zip(parameters)
        .enumerate()
        .map(|(index, (value, parameter))| {
            let role = match value.kind {
                Kind::Parameter(_) => return parameter.expect("every parameter lies in a bucket"),
                Kind::Activation => Role::Activation,
                Kind::Tokens | Kind::Targets => Role::Input,
            };
            let ty = (Like::Graph(index), value.ty);
            let id = program.add_value(value.name, value.scope, ty, role, Pool::Device);
            if role == Role::Input {
                let from = if value.kind == Kind::Tokens { tokens } else { targets };
                let action = Action::Copy { queue: Queue::Copy, from, to: id };
                code.push(Instruction::new(action, program.value(from).scope, phase));
            }
            id
        })
        .collect();
    let mapped = |operands: &[usize]| operands.iter().map(|&operand| values[operand]).collect::<Vec<_>>();
    for node in &graph.nodes {
        let op = match &node.op {
            Op::CrossEntropy(op) if phase == Phase::Forward => {
                // What each micro-batch counts for: their weights sum to one.
                Op::CrossEntropy(CrossEntropy { weight: 1.0 / program.micro_batches as f32, ..*op })
            }
            op => op.clone(),
        };
        let (inputs, outputs) = (mapped(&node.inputs), mapped(&node.outputs));
        let action = Action::Launch { op, inputs, outputs, workspace: None };
        code.push(Instruction::new(action, node.scope, phase));
    }
    if phase == Phase::Evaluation {
        let from = *code.last().and_then(|last| last.action.writes().first()).expect("a model has a loss");
        let action = Action::Copy { queue: Queue::Compute, from, to: program.exchange.loss };
        let scope = program.value(program.exchange.loss).scope;
        code.push(Instruction::new(action, scope, phase));
    }
    code
}
