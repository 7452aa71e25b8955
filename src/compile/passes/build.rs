//! Builds the initial program: parameter buckets, the upload of the batch, and the model's forward pass.

use std::collections::HashMap;

use super::dtypes::Dtypes;
use super::host_buffers::{host_buffers, staged};
use super::inputs::SectionInputs;
use super::placement::devices;
use crate::ir::{
    Action, Bucket, HostBuffers, Instruction, Parameter, Program, Results, Section, SectionKind, ShapeSource,
    Stage, SubRange, Value, View,
};
use device::{Phase, Pool, Queue, Role};
use graph::{Graph, GraphValue, Graphs, Node, Pass, ScopeId, ValueKind};
use ops::{
    DType, Deviation, Fill, LoadParameter, Member, Members, Normal, Op, Storage, TensorType, UpdateFormat,
    ValueId, lay_out,
};
use spec::{RunConfig, group_of};

/// `config`: the rank's configuration of a run.
pub(crate) fn build(graphs: &Graphs, config: &RunConfig, run: &RunConfig) -> Program {
    let graph = &graphs.full;
    let mut program = Program {
        stage: Stage::Forward,
        scopes: graph.scopes.clone(),
        values: Vec::with_capacity(graph.values.len() * 4),
        sections: Vec::new(),
        parameters: Vec::new(),
        buckets: Vec::new(),
        host_buffers: HostBuffers {
            batch: Vec::new(),
            staged: Vec::new(),
            evaluation: Vec::new(),
            held: Vec::new(),
            step_scalars: ValueId(0),
            results: results(ValueId(0), None),
        },
        loss: None,
        loss_scaling: None,
        loss_slices: Vec::new(),
        offloadable: Vec::new(),
        batch_size: run.train.batch_size,
        ranks: run.ranks(),
        share: None,
        evaluation_batch_size: run.evaluation_batch().unwrap_or(run.train.batch_size),
        samples: config.train.batch_size,
        evaluation_samples: config.evaluation_batch().unwrap_or(config.train.batch_size),
        slots: config.strategy.loader.slots(),
        events: 0,
        originals: HashMap::new(),
        allocator: config.strategy.allocator,
        arena_offsets: Vec::new(),
        arenas: Default::default(),
        lengths: None,
    };
    let parameters = add_buckets(&mut program, graphs, config);
    program.host_buffers = host_buffers(&mut program, graphs, config);
    program.host_buffers.staged = staged(&mut program, config);
    let mut persistent: Vec<ValueId> = program.buckets.iter().map(|bucket| bucket.parameters).collect();
    persistent.extend(&program.host_buffers.batch);
    persistent.extend(&program.host_buffers.staged);
    persistent.extend(&program.host_buffers.evaluation);
    persistent.extend(&program.host_buffers.held);
    persistent.push(program.host_buffers.step_scalars);
    persistent.extend(program.host_buffers.results.iter());

    let code = initialise(&program, config);
    let start = Section { live_out: persistent.clone(), code, ..Section::new(SectionKind::Start, config) };
    program.sections.push(start);
    for kind in forward_sections(graphs, config) {
        let section = Section {
            live_in: persistent.clone(),
            live_out: persistent.clone(),
            ..Section::new(kind, config)
        };
        let section = forward(&mut program, graphs, &parameters, config, section);
        program.sections.push(section);
    }
    program
}

/// The kinds of sections that get a forward pass. Those of further micro-batches are derived from the first's later.
fn forward_sections(graphs: &Graphs, config: &RunConfig) -> impl Iterator<Item = SectionKind> {
    use SectionKind::{Evaluation, EvaluationTail, First, Tail};
    let (tail, evaluated) = (graphs.tail.is_some(), config.evaluation.is_some());
    let evaluates_tail = tail && config.evaluation_batch().is_none();
    let all = [First, Tail, Evaluation, EvaluationTail].into_iter();
    all.filter(move |kind| match kind {
        Tail => tail,
        EvaluationTail => evaluated && evaluates_tail,
        Evaluation => evaluated,
        _ => true,
    })
}

/// Adds the parameter buckets. Returns the program's value of each graph parameter, in the graph's order.
fn add_buckets(program: &mut Program, graphs: &Graphs, config: &RunConfig) -> Vec<ValueId> {
    let graph = &graphs.full;
    let mut values = vec![None; graph.values.len()];
    let looked_up = graph.looked_up();
    for (bucket, Layout { group, parameters, members, ty }) in layouts(graphs, config).enumerate() {
        let ty = (ShapeSource::Bucket(bucket), ty);
        let (name, role) =
            if group.buffers { ("buffers", Role::Buffer) } else { ("parameters", Role::Parameter) };
        let of = program.add_value(name, group.layer, ty, role, group.device.workplace());
        program.buckets.push(Bucket {
            scope: group.layer,
            trainable: group.trainable,
            storage: group.storage,
            format: group.format,
            update: group.update,
            cast_to: group.cast_to,
            members: members.clone(),
            parameters: of,
            whole: of,
            scales: Vec::new(),
            gradients: None,
            states: Vec::new(),
        });
        for (member, (index, initial)) in parameters.into_iter().enumerate() {
            let value = &graph.values[index];
            let shape = (ShapeSource::Graph(Pass::FULL, index), value.ty.shape);
            let view = View { of, range: SubRange::Member(member) };
            let view = program.add_view(value.name, value.scope, shape, view);
            values[index] = Some(view);
            program.parameters.push(Parameter {
                value: view,
                initial,
                site: members[member].site,
                bucket,
                looked_up: looked_up[index],
                scales: Vec::new(),
                gradient: None,
            });
        }
    }
    values.into_iter().flatten().collect()
}

/// The properties that the parameters of one bucket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    layer: ScopeId,
    trainable: bool,
    /// Whether they are buffers of the model, not parameters.
    buffers: bool,
    dtype: DType,
    /// The narrower dtype that ranks gather them in, if they divide them.
    cast_to: Option<DType>,
    /// The storage format of frozen parameters.
    storage: Storage,
    pub(crate) format: UpdateFormat,
    /// Index of the optimizer's parameter group.
    pub(crate) update: usize,
    device: Pool,
}

/// The layout of a bucket.
pub(crate) struct Layout {
    pub(crate) group: Group,
    /// Indices of graph values, with their initialisation.
    parameters: Vec<(usize, graph::Initial)>,
    /// In the order of `parameters`.
    pub(crate) members: Members,
    pub(crate) ty: TensorType,
}

/// One layout per group of parameters, ordered by layer and, within a layer, by first parameter: so gradient norms
/// are summed in the same order however a layer is divided.
pub(crate) fn layouts(graphs: &Graphs, config: &RunConfig) -> impl Iterator<Item = Layout> {
    let graph = &graphs.full;
    let dtypes = Dtypes::of(config);
    let format_of = config.update_format();
    let (looked_up, hidden_matrices) = (graph.looked_up(), graph.hidden_matrices());
    let updates = config.train.optimizer.groups();
    let devices = devices(&graph.scopes, config);
    let ranks = config.ranks();
    let narrower = config.shards_parameters().then(|| dtypes.narrower(graphs));
    // Random sites follow the order of the graph's parameters, whatever the buckets.
    let mut next = 0..;
    let site = |value: &GraphValue| match value.kind {
        ValueKind::Parameter { .. } | ValueKind::Buffer { .. } => {
            next.next().expect("fewer than 2^32 parameters")
        }
        ValueKind::Activation | ValueKind::Input(_) => 0,
    };
    let sites: Vec<u32> = graph.values.iter().map(site).collect();
    let mut groups: Vec<(Group, Vec<(usize, graph::Initial)>)> = Vec::new();
    let mut group_index: HashMap<Group, usize> = HashMap::new();
    for (index, value) in graph.values.iter().enumerate() {
        let (initial, trainable, storage, dtype) = match value.kind {
            ValueKind::Parameter { initial, trainable, storage } => {
                (initial, trainable, storage, dtypes.parameters)
            }
            ValueKind::Buffer { initial } => (initial, false, Storage::Plain, DType::F32),
            ValueKind::Activation | ValueKind::Input(_) => continue,
        };
        let buffers = matches!(value.kind, ValueKind::Buffer { .. });
        let layer = graph.scopes[value.scope.index()].layer;
        let update =
            if trainable { group_of(&updates, &graph.full_name(value), hidden_matrices[index]) } else { 0 };
        let format = if trainable {
            format_of(&updates[update].rule, &value.ty.shape, looked_up[index])
        } else {
            UpdateFormat::default()
        };
        let device = devices.get(value.scope.index()).copied().unwrap_or(Pool::Device);
        let is_cast = storage == Storage::Plain && !buffers;
        let cast_to =
            narrower.as_ref().filter(|_| is_cast).and_then(|narrower| narrower[sites[index] as usize]);
        let group = Group { layer, trainable, buffers, dtype, cast_to, storage, format, update, device };
        let place = *group_index.entry(group).or_insert(groups.len());
        if place == groups.len() {
            groups.push((group, Vec::new()));
        }
        groups[place].1.push((index, initial));
    }
    groups.sort_by_key(|(group, _)| group.layer);
    groups.into_iter().map(move |(group, parameters)| {
        let formats = [group.format.narrowest(), group.storage.dtype()];
        let all = formats.into_iter().chain([dtypes.parameters, dtypes.gradients]).chain(group.cast_to);
        let narrowest = all.min_by_key(|dtype| dtype.bits()).unwrap_or(dtypes.parameters);
        let tensor = |&(index, _): &(usize, graph::Initial)| {
            let GraphValue { ty: TensorType { shape, .. }, stacked, .. } = graph.values[index];
            let decay = updates[group.update].decays(shape.dims().len());
            Member { stacked, ..Member::new(shape, decay, sites[index]) }
        };
        let (members, ty) = lay_out(parameters.iter().map(tensor), group.dtype, narrowest);
        let is_divided = match config.shards_parameters() {
            true => !group.buffers,
            false => config.shards_states() && group.trainable,
        };
        let ty = if is_divided { padded(ty, ranks) } else { ty };
        Layout { group, parameters, members, ty }
    })
}

/// The type of a bucket that ranks divide into equal, aligned shares.
fn padded(bucket: TensorType, ranks: usize) -> TensorType {
    TensorType::new(bucket.dtype, &[bucket.elements().next_multiple_of(SHARE_GRANULE * ranks)])
}

/// Elements of which a share is a multiple.
const SHARE_GRANULE: usize = 256;

/// Results with losses only; later passes add the others.
pub(super) fn results(loss: ValueId, evaluated: Option<ValueId>) -> Results {
    Results { loss, evaluated, norm: None, scale: None, counts: None }
}

/// One instruction per parameter that writes its initial value.
fn initialise(program: &Program, config: &RunConfig) -> Vec<Instruction> {
    let has_weights = config.model.weights().is_some();
    let launch = |parameter: &Parameter| {
        let value = program.value(parameter.value);
        // Checkpoints have no factors of adapters.
        let is_stored = has_weights && !graph::is_factor(value.name);
        let normal = |deviation| {
            let (seed, site) = (config.train.seed, parameter.site);
            Op::Normal(Normal { output: value.ty, deviation, seed, site })
        };
        let op = match parameter.initial {
            _ if is_stored => Op::LoadParameter(LoadParameter { output: value.ty, site: parameter.site }),
            graph::Initial::Constant(constant) => Op::Fill(Fill { output: value.ty, value: constant }),
            graph::Initial::Normal(deviation) => normal(Deviation::Fixed(deviation)),
            graph::Initial::FanIn => normal(Deviation::FanIn),
        };
        let outputs = vec![parameter.value];
        let action = Action::Launch { op, inputs: Vec::new(), outputs, workspace: None };
        Instruction::new(action, value.scope, Phase::Start)
    };
    program.parameters.iter().map(launch).collect()
}

/// Asserts that the parameters of an operation are all trained or all frozen: backward computes their gradients in
/// one pass.
fn assert_trained_together(graph: &Graph, node: &Node) {
    let trained = node.inputs.iter().filter_map(|&input| match graph.values[input].kind {
        ValueKind::Parameter { trainable, .. } => Some(trainable),
        ValueKind::Buffer { .. } | ValueKind::Activation | ValueKind::Input(_) => None,
    });
    let trained: Vec<bool> = trained.collect();
    let together = trained.windows(2).all(|pair| pair[0] == pair[1]);
    assert!(together, "{} mixes trained and frozen parameters", node.op.name());
}

/// Fills a section: the upload of its samples, then the nodes of its micro-batch's graph on new values.
fn forward(
    program: &mut Program,
    graphs: &Graphs,
    parameters: &[ValueId],
    config: &RunConfig,
    section: Section,
) -> Section {
    let micro_batch = section.kind.micro_batch().expect("sections with a forward pass process samples");
    let is_evaluation = section.kind.is_in_evaluation();
    let pass = graphs.pass(micro_batch, is_evaluation);
    let graph = graphs.get(pass);
    let phase = if is_evaluation { Phase::Evaluation } else { Phase::Forward };
    let mut inputs = SectionInputs::new(program, config, pass, phase);
    let mut parameters = parameters.iter();
    let mut code = Vec::with_capacity(graph.nodes.len() * 5);
    let previous = graph.previous_versions();
    let mut values: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    for (index, value) in graph.values.iter().enumerate() {
        if let Some(previous) = previous[index] {
            values.push(program.add_version(values[previous]));
            continue;
        }
        let role = match value.kind {
            ValueKind::Parameter { .. } | ValueKind::Buffer { .. } => {
                let parameter = *parameters.next().expect("every parameter lies in a bucket");
                let own = program.value(parameter);
                debug_assert_eq!(
                    (own.name, own.scope),
                    (value.name, value.scope),
                    "all passes have the same parameters in the same order"
                );
                values.push(parameter);
                continue;
            }
            ValueKind::Activation => Role::Activation,
            ValueKind::Input(_) => Role::Input,
        };
        let ty = (ShapeSource::Graph(pass, index), value.ty);
        let id = program.add_value(value.name, value.scope, ty, role, Pool::Device);
        if role == Role::Input {
            inputs.add(program, (index, value), id, &mut code);
        }
        values.push(id);
    }
    inputs.gather(program, graph, &mut code);
    graph.nodes.iter().for_each(|node| assert_trained_together(graph, node));
    let value_ids = |operands: &[usize]| operands.iter().map(|&operand| values[operand]).collect::<Vec<_>>();
    for node in &graph.nodes {
        let (operands, outputs) = (value_ids(&node.inputs), value_ids(&node.outputs));
        let op = match node.op.as_loss() {
            Some(loss) if phase == Phase::Forward => loss.of_share(section.share(program.batch_size)),
            Some(loss) if program.host_buffers.results.evaluated.is_some() => {
                let loss = loss.with_accuracy().expect("the loss of a model with an accuracy has classes");
                let types = loss.outputs(&program.types(&operands)).expect("only the loss is longer");
                let Value { shape_source, ty, .. } = &mut program.values[outputs[0].index()];
                (*shape_source, *ty) = (ShapeSource::Fixed, types[0]);
                loss
            }
            _ => node.op.clone(),
        };
        let casts = operands.iter().filter_map(|&operand| inputs.cast(program, operand));
        code.extend(casts.map(|action| Instruction::new(action, node.scope, phase)));
        let action = Action::Launch { op, inputs: operands, outputs, workspace: None };
        code.push(Instruction::new(action, node.scope, phase));
    }
    if phase == Phase::Evaluation {
        let loss = code.iter().rfind(|instruction| instruction.action.is_loss()).expect("a model has a loss");
        let from = loss.action.writes()[0];
        let Results { loss, evaluated, .. } = program.host_buffers.results;
        let to = evaluated.unwrap_or(loss);
        let action = Action::Copy { queue: Queue::Compute, from, to };
        let scope = program.value(to).scope;
        code.push(Instruction::new(action, scope, phase));
    }
    Section { model_flops: program.flops_of(&code), code, ..section }
}
