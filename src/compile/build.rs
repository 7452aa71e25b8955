//! The forward pass of the model, its parameters in buckets, its batch uploaded: the program's beginning.

use std::collections::HashMap;

use super::dtypes::Dtypes;
use super::instruction::{Action, Instruction};
use super::placement::homes;
use super::program::{Bucket, HostBuffers, Parameter, Program, Results, Section, SectionKind, Stage};
use super::value::{Batches, Form, Like, Part, Value, View};
use data::{Documents, row};
use device::{Phase, Pool, Queue, Role};
use graph::{Graph, GraphValue, Graphs, MicroBatch, Node, Pass, ScopeId, ValueKind};
use ops::{
    CastIds, DType, Deviation, Fill, LoadParameter, Member, Members, Normal, Op, Storage, Stretch,
    TensorType, UpdateFormat, ValueId, lay_out,
};
use spec::{LoadedFrom, Loader, RunConfig, group_of};

/// `config` is what the rank does of a run on batches of `batch_size`.
pub(super) fn build(graphs: &Graphs, config: &RunConfig, batch_size: usize) -> Program {
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
            row: None,
            numbers: ValueId(0),
            results: results(ValueId(0)),
        },
        loss: None,
        loss_scaling: None,
        slices: Vec::new(),
        spillable: Vec::new(),
        batch_size,
        samples: config.train.batch_size,
        slots: config.strategy.loader.slots(),
        events: 0,
        stand_ins: HashMap::new(),
        allocator: config.strategy.allocator,
        places: Vec::new(),
        arenas: Default::default(),
    };
    let parameters = add_buckets(&mut program, graph, config);
    program.host_buffers = host_buffers(&mut program, graph, config);
    program.host_buffers.staged = staged(&mut program, config);
    let mut persistent: Vec<ValueId> = program.buckets.iter().map(|bucket| bucket.parameters).collect();
    persistent.extend(&program.host_buffers.batch);
    persistent.extend(&program.host_buffers.staged);
    persistent.extend(program.host_buffers.row);
    persistent.extend([program.host_buffers.numbers, program.host_buffers.results.loss]);

    let code = initialise(&program, config);
    let start = Section { exit: persistent.clone(), code, ..Section::new(SectionKind::Start, config) };
    program.sections.push(start);
    for kind in passes(graphs, config) {
        let section =
            Section { entry: persistent.clone(), exit: persistent.clone(), ..Section::new(kind, config) };
        let section = forward(&mut program, graphs, &parameters, config.documents(), section);
        program.sections.push(section);
    }
    program
}

/// The sections that a forward pass is made for: what further micro-batches do is made of that of the first.
fn passes(graphs: &Graphs, config: &RunConfig) -> impl Iterator<Item = SectionKind> {
    use SectionKind::{Evaluation, EvaluationTail, First, Tail};
    let (tail, evaluated) = (graphs.tail.is_some(), config.evaluation.is_some());
    let all = [First, Tail, Evaluation, EvaluationTail].into_iter();
    all.filter(move |kind| tail || kind.micro_batch() != Some(MicroBatch::Tail))
        .filter(move |kind| evaluated || !kind.is_of_evaluation())
}

/// One bucket for each layer that has parameters. Returns the program's value of each of the graph's parameters, in their order.
fn add_buckets(program: &mut Program, graph: &Graph, config: &RunConfig) -> Vec<ValueId> {
    let mut values = vec![None; graph.values.len()];
    let looked_up = graph.looked_up();
    for (bucket, Layout { group, parameters, members, ty }) in layouts(graph, config).enumerate() {
        let ty = (Like::Bucket(bucket), ty);
        let of = program.add_value("parameters", group.layer, ty, Role::Parameter, group.home.workplace());
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
            let shape = (Like::Graph(Pass::FULL, index), value.ty.shape);
            let view = View { of, part: Part::Member(member) };
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

/// What parameters of one bucket have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    layer: ScopeId,
    trainable: bool,
    dtype: DType,
    /// Of parameters that are not trained.
    storage: Storage,
    pub(super) format: UpdateFormat,
    /// Which of the optimizer's groups they are of.
    pub(super) update: usize,
    home: Pool,
}

/// How parameters lie in their bucket.
pub(super) struct Layout {
    pub(super) group: Group,
    /// The graph's values and how they start.
    parameters: Vec<(usize, graph::Initial)>,
    /// In the same order.
    pub(super) members: Members,
    pub(super) ty: TensorType,
}

/// A layout for each group of parameters, in the order of the layers, and in one layer of their first parameters: so norms
/// are summed in one order however a layer is divided.
pub(super) fn layouts(graph: &Graph, config: &RunConfig) -> impl Iterator<Item = Layout> {
    let dtypes = Dtypes::of(config);
    let format_of = config.update_format();
    let (looked_up, hidden_matrices) = (graph.looked_up(), graph.hidden_matrices());
    let updates = config.train.optimizer.groups();
    let homes = homes(&graph.scopes, config);
    // Numbered as the model has them, whatever the buckets.
    let mut next = 0..;
    let site = |value: &GraphValue| match value.kind {
        ValueKind::Parameter { .. } => next.next().expect("there are enough numbers"),
        _ => 0,
    };
    let sites: Vec<u32> = graph.values.iter().map(site).collect();
    let mut groups: Vec<(Group, Vec<(usize, graph::Initial)>)> = Vec::new();
    let mut places: HashMap<Group, usize> = HashMap::new();
    for (index, value) in graph.values.iter().enumerate() {
        if let ValueKind::Parameter { initial, trainable, storage } = value.kind {
            let layer = graph.scopes[value.scope.index()].layer;
            let update = if trainable {
                group_of(&updates, &graph.full_name(value), hidden_matrices[index])
            } else {
                0
            };
            let format = if trainable {
                format_of(&updates[update].rule, &value.ty.shape, looked_up[index])
            } else {
                UpdateFormat::default()
            };
            let home = homes.get(value.scope.index()).copied().unwrap_or(Pool::Device);
            let group = Group { layer, trainable, dtype: dtypes.parameters, storage, format, update, home };
            let place = *places.entry(group).or_insert(groups.len());
            if place == groups.len() {
                groups.push((group, Vec::new()));
            }
            groups[place].1.push((index, initial));
        }
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

/// The host's side of each step.
fn host_buffers(program: &mut Program, graph: &Graph, config: &RunConfig) -> HostBuffers {
    let scope = program.add_scope("batch");
    let numbers = config.train.optimizer.groups().iter().map(|group| group.rule.numbers_len()).sum();
    let samples = program.samples * program.slots;
    let loaded = config.loaded();
    let Loader { source, dtype, .. } = config.strategy.loader;
    let is_cut = |name: &str| source == LoadedFrom::Device && row::places_later(name).is_some();
    let of_batches = if config.strategy.loader.pinned { Pool::Pinned } else { Pool::Host };
    let mut input = |name, ty, pool| program.add_value(name, scope, ty, Role::Input, pool);
    let whole = |index: usize| {
        let TensorType { dtype, shape } = graph.values[index].ty;
        let part = loaded.iter().find(|part| part.name == graph.values[index].name);
        let dtype = part.map_or(dtype, |part| part.ty.dtype);
        (Like::Batch(Batches::HostBuffers, index), TensorType { dtype, shape: shape.with_first(samples) })
    };
    let whole_parts = graph.inputs().filter(|&index| !is_cut(graph.values[index].name));
    let mut batch: Vec<ValueId> =
        whole_parts.map(|index| input(graph.values[index].name, whole(index), of_batches)).collect();
    if graph.inputs().any(|index| is_cut(graph.values[index].name)) {
        let place = row::place();
        batch.push(input(
            place.name,
            (Like::PlacesOfBatch(Batches::HostBuffers), place.of_samples(samples)),
            of_batches,
        ));
    }
    let held = match source {
        LoadedFrom::Stream => None,
        LoadedFrom::Ram => Some(Pool::Host),
        LoadedFrom::Device => Some(Pool::Device),
    };
    let row = held.map(|pool| {
        let tokens = config.tokens.expect("planned: data that is held was looked at");
        input("row", (Like::Fixed, TensorType::new(dtype.dtype(), &[tokens])), pool)
    });
    HostBuffers {
        batch,
        staged: Vec::new(),
        row,
        numbers: input("control", (Like::Fixed, TensorType::f32(&[numbers])), Pool::Pinned),
        results: results(input("loss", (Like::Fixed, TensorType::scalar()), Pool::Pinned)),
    }
}

/// What the device has of the batch that is worked on and of the next one, where that comes ahead.
fn staged(program: &mut Program, config: &RunConfig) -> Vec<ValueId> {
    if !config.strategy.loader.brings_ahead() {
        return Vec::new();
    }
    let scope = program.add_scope("staged");
    let samples = program.samples * program.batches(Batches::Staged);
    let of = |program: &mut Program, id: ValueId| {
        let Value { name, like, ty, .. } = *program.value(id);
        let like = match like {
            Like::Batch(_, index) => Like::Batch(Batches::Staged, index),
            _ => Like::PlacesOfBatch(Batches::Staged),
        };
        let ty = TensorType { shape: ty.shape.with_first(samples), ..ty };
        program.add_value(name, scope, (like, ty), Role::Input, Pool::Device)
    };
    let batch = program.host_buffers.batch.clone();
    batch.into_iter().map(|id| of(program, id)).collect()
}

/// The loss, and nothing else yet.
fn results(loss: ValueId) -> Results {
    Results { loss, norm: None, scale: None, counts: None }
}

/// Every parameter's first value.
fn initialise(program: &Program, config: &RunConfig) -> Vec<Instruction> {
    let (weights, lora) = (config.model.weights().is_some(), config.strategy.lora.is_some());
    // Factors beside a base are trained, and nothing else: no file of the model has them.
    let stored = |parameter: &Parameter| weights && !(lora && program.buckets[parameter.bucket].trainable);
    let launch = |parameter: &Parameter| {
        let value = program.value(parameter.value);
        let normal = |deviation| {
            let (seed, site) = (config.train.seed, parameter.site);
            Op::Normal(Normal { output: value.ty, deviation, seed, site })
        };
        let op = match parameter.initial {
            _ if stored(parameter) => {
                Op::LoadParameter(LoadParameter { output: value.ty, site: parameter.site })
            }
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

/// An operation gives the gradients of all its parameters in one pass, or of none.
fn are_trained_together(graph: &Graph, node: &Node) {
    let trained = node.inputs.iter().filter_map(|&input| match graph.values[input].kind {
        ValueKind::Parameter { trainable, .. } => Some(trainable),
        ValueKind::Activation | ValueKind::Input => None,
    });
    let trained: Vec<bool> = trained.collect();
    let together = trained.windows(2).all(|pair| pair[0] == pair[1]);
    assert!(together, "the parameters of {} are trained together", node.op.name());
}

/// What a value is before it has as many bits as its operation takes.
fn add_narrow(program: &mut Program, wide: ValueId, ty: TensorType) -> ValueId {
    let value = program.value(wide).clone();
    program.add_like(Value { form: Form::Cast, ty, ..value })
}

/// A section with the nodes of its micro-batch's graph over values of their own, after the upload of the samples.
fn forward(
    program: &mut Program,
    graphs: &Graphs,
    parameters: &[ValueId],
    documents: Documents,
    section: Section,
) -> Section {
    let micro_batch = section.kind.micro_batch().expect("a forward pass sees samples");
    let is_evaluation = section.kind.is_of_evaluation();
    let pass = graphs.pass(micro_batch, is_evaluation);
    let graph = graphs.get(pass);
    let phase = if is_evaluation { Phase::Evaluation } else { Phase::Forward };
    let HostBuffers { batch, staged, .. } = &program.host_buffers;
    let (batch, queue) = match staged.is_empty() {
        true => (batch.clone(), Queue::Copy),
        false => (staged.clone(), Queue::Compute),
    };
    // The row that the device has, and the graph's inputs that are cut out of it.
    let cut = program.host_buffers.row.filter(|&row| program.value(row).pool == Pool::Device);
    let mut stretches: Vec<(usize, ValueId)> = Vec::new();
    let mut parameters = parameters.iter();
    let mut code = Vec::with_capacity(graph.nodes.len() * 5);
    // What comes in fewer bits than it is taken in, by what it is then.
    let mut narrow: HashMap<ValueId, ValueId> = HashMap::new();
    let previous = graph.previous_versions();
    let mut values: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    for (index, value) in graph.values.iter().enumerate() {
        if let Some(previous) = previous[index] {
            values.push(program.add_version(values[previous]));
            continue;
        }
        let role = match value.kind {
            ValueKind::Parameter { .. } => {
                let parameter = *parameters.next().expect("every parameter lies in a bucket");
                let own = program.value(parameter);
                debug_assert_eq!(
                    (own.name, own.scope),
                    (value.name, value.scope),
                    "all passes have these, in order"
                );
                values.push(parameter);
                continue;
            }
            ValueKind::Activation => Role::Activation,
            ValueKind::Input => Role::Input,
        };
        let ty = (Like::Graph(pass, index), value.ty);
        let id = program.add_value(value.name, value.scope, ty, role, Pool::Device);
        if role == Role::Input && cut.is_some() && row::places_later(value.name).is_some() {
            stretches.push((index, id));
        } else if role == Role::Input {
            let named = |id: &&ValueId| program.value(**id).name == value.name;
            let from = *batch.iter().find(named).expect("a part for each of the graph's inputs");
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
    if let (Some(row), [(first, _), ..]) = (cut, &stretches[..]) {
        let named = |id: &&ValueId| program.value(**id).name == row::place().name;
        let from = *batch.iter().find(named).expect("batches say where their samples lie");
        let scope = program.value(from).scope;
        let like = Like::PlacesOf(pass, *first);
        let ty = row::place().of_samples(graph.values[*first].ty.shape.dims()[0]);
        let place = program.add_value(row::place().name, scope, (like, ty), Role::Input, Pool::Device);
        let action = Action::Copy { queue, from, to: place };
        code.push(Instruction::new(action, scope, phase));
        for (index, id) in stretches {
            let GraphValue { name, ty, .. } = &graph.values[index];
            let later = row::places_later(name).expect("it is cut out of the row");
            let op = Op::Stretch(Stretch { later, masks: documents.mask(name), length: ty.shape.last() });
            let action = Action::Launch { op, inputs: vec![row, place], outputs: vec![id], workspace: None };
            code.push(Instruction::new(action, scope, phase));
        }
    }
    graph.nodes.iter().for_each(|node| are_trained_together(graph, node));
    let mapped = |operands: &[usize]| operands.iter().map(|&operand| values[operand]).collect::<Vec<_>>();
    for node in &graph.nodes {
        let op = match node.op.as_loss() {
            Some(loss) if phase == Phase::Forward => loss.of_share(section.share(program.batch_size)),
            _ => node.op.clone(),
        };
        let (inputs, outputs) = (mapped(&node.inputs), mapped(&node.outputs));
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
        let to = program.host_buffers.results.loss;
        let action = Action::Copy { queue: Queue::Compute, from, to };
        let scope = program.value(to).scope;
        code.push(Instruction::new(action, scope, phase));
    }
    Section { model_flops: program.flops_of(&code), code, ..section }
}
