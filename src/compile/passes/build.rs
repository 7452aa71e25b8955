//! Builds the initial program: parameter buckets, the upload of the batch, and the model's forward pass.

use std::collections::HashMap;

use super::dtypes::Dtypes;
use super::placement::devices;
use crate::ir::{
    Action, BatchBuffer, Bucket, HostBuffers, Instruction, Parameter, Program, Results, Section, SectionKind,
    ShapeSource, Stage, SubRange, Value, Variant, View,
};
use data::row;
use device::{Phase, Pool, Queue, Role};
use graph::{Graph, GraphValue, Graphs, Node, Pass, ScopeId, ValueKind};
use ops::{
    CastIds, DType, Deviation, Fill, GatherTokens, LoadParameter, Member, Members, Normal, Op, Storage,
    TensorType, UpdateFormat, ValueId, lay_out,
};
use spec::{DataResidence, Loader, RunConfig, group_of};

/// `config`: the rank's configuration of a run on batches of `batch_size`.
pub(crate) fn build(graphs: &Graphs, config: &RunConfig, batch_size: usize) -> Program {
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
            token_row: None,
            step_scalars: ValueId(0),
            results: results(ValueId(0), None),
        },
        loss: None,
        loss_scaling: None,
        loss_slices: Vec::new(),
        offloadable: Vec::new(),
        batch_size,
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
    let parameters = add_buckets(&mut program, graph, config);
    program.host_buffers = host_buffers(&mut program, graphs, config);
    program.host_buffers.staged = staged(&mut program, config);
    let mut persistent: Vec<ValueId> = program.buckets.iter().map(|bucket| bucket.parameters).collect();
    persistent.extend(&program.host_buffers.batch);
    persistent.extend(&program.host_buffers.staged);
    persistent.extend(&program.host_buffers.evaluation);
    persistent.extend(program.host_buffers.token_row);
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
fn add_buckets(program: &mut Program, graph: &Graph, config: &RunConfig) -> Vec<ValueId> {
    let mut values = vec![None; graph.values.len()];
    let looked_up = graph.looked_up();
    for (bucket, Layout { group, parameters, members, ty }) in layouts(graph, config).enumerate() {
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
            members: members.clone(),
            parameters: of,
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
pub(crate) fn layouts(graph: &Graph, config: &RunConfig) -> impl Iterator<Item = Layout> {
    let dtypes = Dtypes::of(config);
    let format_of = config.update_format();
    let (looked_up, hidden_matrices) = (graph.looked_up(), graph.hidden_matrices());
    let updates = config.train.optimizer.groups();
    let devices = devices(&graph.scopes, config);
    // Random sites follow the order of the graph's parameters, whatever the buckets.
    let mut next = 0..;
    let site = |value: &GraphValue| match value.kind {
        ValueKind::Parameter { .. } | ValueKind::Buffer { .. } => {
            next.next().expect("fewer than 2^32 parameters")
        }
        ValueKind::Activation | ValueKind::Input => 0,
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
            ValueKind::Activation | ValueKind::Input => continue,
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
        let group = Group { layer, trainable, buffers, dtype, storage, format, update, device };
        let place = *group_index.entry(group).or_insert(groups.len());
        if place == groups.len() {
            groups.push((group, Vec::new()));
        }
        groups[place].1.push((index, initial));
    }
    groups.sort_by_key(|(group, _)| group.layer);
    groups.into_iter().map(move |(group, parameters)| {
        let all = [group.format.narrowest(), group.storage.dtype(), dtypes.parameters, dtypes.gradients];
        let narrowest = all.into_iter().min_by_key(|dtype| dtype.bits()).unwrap_or(dtypes.parameters);
        let tensor = |&(index, _): &(usize, graph::Initial)| {
            let GraphValue { ty: TensorType { shape, .. }, stacked, .. } = graph.values[index];
            let decay = updates[group.update].decays(shape.dims().len());
            Member { stacked, ..Member::new(shape, decay, sites[index]) }
        };
        let (members, ty) = lay_out(parameters.iter().map(tensor), group.dtype, narrowest);
        Layout { group, parameters, members, ty }
    })
}

/// Adds the host buffers.
fn host_buffers(program: &mut Program, graphs: &Graphs, config: &RunConfig) -> HostBuffers {
    let scope = program.add_scope("batch");
    let numbers = config.train.optimizer.groups().iter().map(|group| group.rule.numbers_len()).sum();
    let batch = batch_parts(program, graphs, config, BatchBuffer::Host, scope);
    let Loader { source, dtype, .. } = config.strategy.loader;
    let mut input = |name, ty, pool| program.add_value(name, scope, ty, Role::Input, pool);
    let row_pool = match source {
        DataResidence::Stream => None,
        DataResidence::Ram => Some(Pool::Host),
        DataResidence::Device => Some(Pool::Device),
    };
    let token_row = row_pool.map(|pool| {
        let tokens = config.tokens.expect("the planner counts the tokens of data that is held in memory");
        input("row", (ShapeSource::Fixed, TensorType::new(dtype.dtype(), &[tokens])), pool)
    });
    let step_scalars = input("control", (ShapeSource::Fixed, TensorType::f32(&[numbers])), Pool::Pinned);
    let mut result = |name, len| input(name, (ShapeSource::Fixed, TensorType::f32(&[len])), Pool::Pinned);
    let has_accuracy = config.evaluation.is_some() && config.model.has_accuracy();
    let results = results(result("loss", 1), has_accuracy.then(|| result("evaluated", 2)));
    let evaluation = match config.evaluation_batch() {
        None => Vec::new(),
        Some(_) => {
            let scope = program.add_scope("evaluation-batch");
            batch_parts(program, graphs, config, BatchBuffer::Evaluation, scope)
        }
    };
    HostBuffers { batch, staged: Vec::new(), evaluation, token_row, step_scalars, results }
}

/// Adds the parts of the whole batches of a buffer in host memory.
fn batch_parts(
    program: &mut Program,
    graphs: &Graphs,
    config: &RunConfig,
    buffer: BatchBuffer,
    scope: ScopeId,
) -> Vec<ValueId> {
    let graph = graphs.get(buffer.pass());
    let samples = program.buffer_samples(buffer);
    let loaded = config.loaded();
    let source = config.strategy.loader.source;
    let is_gathered = |name: &str| source == DataResidence::Device && row::places_later(name).is_some();
    let pool = if config.strategy.loader.pinned { Pool::Pinned } else { Pool::Host };
    let mut input = |name, ty| program.add_value(name, scope, ty, Role::Input, pool);
    let batch_type = |index: usize| {
        let TensorType { dtype, shape } = graph.values[index].ty;
        let part = loaded.iter().find(|part| part.name == graph.values[index].name);
        let dtype = part.map_or(dtype, |part| part.ty.dtype);
        (ShapeSource::Batch(buffer, index), TensorType { dtype, shape: shape.with_first(samples) })
    };
    let copied_parts = graph.inputs().filter(|&index| !is_gathered(graph.values[index].name));
    let mut batch: Vec<ValueId> =
        copied_parts.map(|index| input(graph.values[index].name, batch_type(index))).collect();
    if graph.inputs().any(|index| is_gathered(graph.values[index].name)) {
        let place = row::place();
        batch.push(input(place.name, (ShapeSource::BatchOffsets(buffer), place.of_samples(samples))));
    }
    batch
}

/// Adds the device copies of the current and the next batch, if batches are copied ahead.
fn staged(program: &mut Program, config: &RunConfig) -> Vec<ValueId> {
    if !config.strategy.loader.brings_ahead() {
        return Vec::new();
    }
    let scope = program.add_scope("staged");
    let samples = program.buffer_samples(BatchBuffer::Staged);
    let of = |program: &mut Program, id: ValueId| {
        let Value { name, shape_source, ty, .. } = *program.value(id);
        let shape_source = match shape_source {
            ShapeSource::Batch(_, index) => ShapeSource::Batch(BatchBuffer::Staged, index),
            _ => ShapeSource::BatchOffsets(BatchBuffer::Staged),
        };
        let ty = TensorType { shape: ty.shape.with_first(samples), ..ty };
        program.add_value(name, scope, (shape_source, ty), Role::Input, Pool::Device)
    };
    let batch = program.host_buffers.batch.clone();
    batch.into_iter().map(|id| of(program, id)).collect()
}

/// Results with losses only; later passes add the others.
fn results(loss: ValueId, evaluated: Option<ValueId>) -> Results {
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
        ValueKind::Buffer { .. } | ValueKind::Activation | ValueKind::Input => None,
    });
    let trained: Vec<bool> = trained.collect();
    let together = trained.windows(2).all(|pair| pair[0] == pair[1]);
    assert!(together, "{} mixes trained and frozen parameters", node.op.name());
}

/// Adds the narrow version of token ids, from which `CastIds` widens `wide`.
fn add_narrow(program: &mut Program, wide: ValueId, ty: TensorType) -> ValueId {
    let value = program.value(wide).clone();
    program.add_like(Value { variant: Variant::Cast, ty, ..value })
}

/// Fills a section: the upload of its samples, then the nodes of its micro-batch's graph on new values.
fn forward(
    program: &mut Program,
    graphs: &Graphs,
    parameters: &[ValueId],
    config: &RunConfig,
    section: Section,
) -> Section {
    let documents = config.documents();
    let micro_batch = section.kind.micro_batch().expect("sections with a forward pass process samples");
    let is_evaluation = section.kind.is_in_evaluation();
    let pass = graphs.pass(micro_batch, is_evaluation);
    let graph = graphs.get(pass);
    let phase = if is_evaluation { Phase::Evaluation } else { Phase::Forward };
    let HostBuffers { batch, staged, evaluation, .. } = &program.host_buffers;
    let (batch, queue) = match staged.is_empty() {
        _ if is_evaluation && !evaluation.is_empty() => (evaluation.clone(), Queue::Copy),
        true => (batch.clone(), Queue::Copy),
        false => (staged.clone(), Queue::Compute),
    };
    // The token row in device memory, and the graph inputs that are gathered from it.
    let device_row = program.host_buffers.token_row.filter(|&row| program.value(row).pool == Pool::Device);
    let mut gathered: Vec<(usize, ValueId)> = Vec::new();
    let mut parameters = parameters.iter();
    let mut code = Vec::with_capacity(graph.nodes.len() * 5);
    // Ids that are copied in fewer bits than their operation takes, by the widened value.
    let mut narrow: HashMap<ValueId, ValueId> = HashMap::new();
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
            ValueKind::Input => Role::Input,
        };
        let ty = (ShapeSource::Graph(pass, index), value.ty);
        let id = program.add_value(value.name, value.scope, ty, role, Pool::Device);
        if role == Role::Input && device_row.is_some() && row::places_later(value.name).is_some() {
            gathered.push((index, id));
        } else if role == Role::Input {
            let has_name = |id: &&ValueId| program.value(**id).name == value.name;
            let from = *batch.iter().find(has_name).expect("the batch has a part for each graph input");
            let loaded = TensorType { dtype: program.ty(from).dtype, ..value.ty };
            let to = if loaded == value.ty { id } else { add_narrow(program, id, loaded) };
            if to != id {
                narrow.insert(id, to);
            }
            let action = Action::Copy { queue, from, to };
            code.push(Instruction::new(action, program.value(from).scope, phase));
        }
        values.push(id);
    }
    if let (Some(row), [(first, _), ..]) = (device_row, &gathered[..]) {
        let has_name = |id: &&ValueId| program.value(**id).name == row::place().name;
        let from = *batch.iter().find(has_name).expect("the batch has the offsets of its samples");
        let scope = program.value(from).scope;
        let shape_source = ShapeSource::SampleOffsets(pass, *first);
        let ty = row::place().of_samples(graph.values[*first].ty.shape.dims()[0]);
        let place =
            program.add_value(row::place().name, scope, (shape_source, ty), Role::Input, Pool::Device);
        let action = Action::Copy { queue, from, to: place };
        code.push(Instruction::new(action, scope, phase));
        for (index, id) in gathered {
            let GraphValue { name, ty, .. } = &graph.values[index];
            let later = row::places_later(name).expect("only gathered parts are in the list");
            let op = Op::GatherTokens(GatherTokens {
                later,
                masks: documents.mask(name),
                length: ty.shape.last(),
            });
            let action = Action::Launch { op, inputs: vec![row, place], outputs: vec![id], workspace: None };
            code.push(Instruction::new(action, scope, phase));
        }
    }
    graph.nodes.iter().for_each(|node| assert_trained_together(graph, node));
    let value_ids = |operands: &[usize]| operands.iter().map(|&operand| values[operand]).collect::<Vec<_>>();
    for node in &graph.nodes {
        let (inputs, outputs) = (value_ids(&node.inputs), value_ids(&node.outputs));
        let op = match node.op.as_loss() {
            Some(loss) if phase == Phase::Forward => loss.of_share(section.share(program.batch_size)),
            Some(loss) if program.host_buffers.results.evaluated.is_some() => {
                let loss = loss.with_accuracy().expect("the loss of a model with an accuracy has classes");
                let types = loss.outputs(&program.types(&inputs)).expect("only the loss is longer");
                let Value { shape_source, ty, .. } = &mut program.values[outputs[0].index()];
                (*shape_source, *ty) = (ShapeSource::Fixed, types[0]);
                loss
            }
            _ => node.op.clone(),
        };
        for &wide in &inputs {
            let Some(narrow) = narrow.remove(&wide) else { continue };
            let op = Op::CastIds(CastIds { masked: documents.mask(program.value(wide).name) });
            let action = Action::Launch { op, inputs: vec![narrow], outputs: vec![wide], workspace: None };
            code.push(Instruction::new(action, node.scope, phase));
        }
        let action = Action::Launch { op, inputs, outputs, workspace: None };
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
