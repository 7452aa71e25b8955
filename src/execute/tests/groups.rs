//! Parameter groups of optimizers: buckets, rules and bitwise equality. Results are compared with PyTorch in `vectors`.

use super::trace;
use compile::{Action, Program};
use ops::{Activation, Op, Rule};
use spec::{MlpActivation, RunConfig};
use testing::compile;
use testing::keys::Updates;
use testing::with_optimizer;

fn updated(updates: Updates) -> RunConfig {
    let mut config = with_optimizer(&testing::small(), updates);
    // The gradient norm is summed by bucket, so its rounding depends on the buckets.
    config.train.clip_norm = None;
    config
}

fn program(updates: Updates) -> Program {
    compile(&updated(updates), &testing::target()).unwrap()
}

/// The division of parameters into buckets does not change results.
#[test]
fn groups_with_the_settings_of_the_rest_are_bitwise_equal() {
    let pairs: [[Updates; 2]; 3] = [
        [
            &["optimizer.adamw = { lr = 1e-2, weight_decay = 0.1, decay = 'all' }"],
            &["optimizer.adamw = { lr = 1e-2, weight_decay = 0.1, decay = 'all', groups = [
                { match = '*.bias', weight_decay = 0.1 }, { match = 'blocks.1', lr = 1e-2 },
                { match = '*norm.weight', lr = 1e-2 }] }"],
        ],
        [
            &["optimizer.sgd = { lr = 0.1, momentum = 0.9 }", "schedule.linear = {}"],
            &[
                "optimizer.sgd = { lr = 0.1, momentum = 0.9, groups = [{ match = 'head.norm.weight', lr = 0.1 }] }",
                "schedule.linear = {}",
            ],
        ],
        [
            &["optimizer.lion = { lr = 1e-3 }"],
            &["optimizer.lion = { lr = 1e-3, groups = [{ match = '*mlp*', lr = 1e-3 }] }"],
        ],
    ];
    for [plain, grouped] in pairs {
        assert_eq!(trace(&updated(plain)), trace(&updated(grouped)), "{}", grouped[0]);
        let [plain, grouped] = [plain, grouped].map(program);
        let flops =
            |program: &Program| program.sections.iter().map(|section| section.model_flops).sum::<u64>();
        assert_eq!(flops(&plain), flops(&grouped));
        assert!(plain.buckets.len() < grouped.buckets.len(), "each group has its own buckets");
    }
}

/// Each layer has one bucket for each of its groups, updated with that group's scalars and rule.
#[test]
fn bucket_is_updated_by_its_group() {
    let program = program(&["optimizer.adam = { lr = 1e-2, weight_decay = 0.1, groups = [
        { match = 'blocks.0.attention', weight_decay = 0.2 }, { match = '*.bias', lr = 1e-3 }] }"]);
    let code = program.sections.iter().flat_map(|section| &section.code);
    let updates = code.filter_map(|instruction| match &instruction.action {
        Action::Launch { op: Op::OptimizerStep(update), .. } => Some(update),
        _ => None,
    });
    let found = updates.map(|update| {
        let Rule::Adam(rule) = &update.rule else { panic!("the rule is Adam") };
        let decaying = update.gradients.members.iter().filter(|member| member.decay).count();
        (update.numbers_at, rule.weight_decay, update.gradients.members.len(), decaying)
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    // Attention of the first block: norm, qkv and out, a weight and a bias each, all with decay. Biases: of the head's
    // norm, of the first block's MLP, of the second block. The rest: weights of the head, tables, weights of the first
    // block's MLP, of the second block.
    let attention = (0, 0.2, 6, 6);
    let biases = [(4, 0.1, 1, 0), (4, 0.1, 3, 0), (4, 0.1, 6, 0)];
    let rest = [(8, 0.1, 1, 0), (8, 0.1, 2, 2), (8, 0.1, 3, 2), (8, 0.1, 6, 4)];
    assert_eq!(found, [&[attention][..], &biases, &rest].concat());
    assert_eq!(program.ty(program.host_buffers.step_scalars).elements(), 3 * 4);
}

/// Name, rule, offset of the rule's scalars and rows of the matrices of each parameter.
fn by_parameter(program: &Program) -> Vec<(String, &'static str, usize, Vec<usize>)> {
    let code = program.sections.iter().flat_map(|section| &section.code);
    let updates = code.filter_map(|instruction| match &instruction.action {
        Action::Launch { op: Op::OptimizerStep(update), outputs, .. } => Some((update, outputs[0])),
        _ => None,
    });
    let all = updates.flat_map(|(update, bucket)| {
        let own = program.parameters.iter().filter(move |parameter| {
            program.storage(program.buckets[parameter.bucket].parameters) == program.storage(bucket)
        });
        own.zip(update.gradients.members.iter()).map(|(parameter, member)| {
            let rows = member.matrices().map(|rows| rows.len()).collect();
            let name = program.full_name(parameter.value);
            (name, update.rule.name(), update.numbers_at, rows)
        })
    });
    all.collect()
}

/// Muon updates the matrices of blocks; queries, keys and values are separate matrices, and so are gate and up
/// projection. AdamW updates the rest.
#[test]
fn muon_updates_hidden_matrices_and_adamw_the_rest() {
    let updates: Updates = &[
        "optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-3 }, groups = [{ match = 'blocks.1', lr = 1e-3 }] }",
    ];
    let config = testing::reshaped(updated(updates), |model| {
        model.kv_heads = 1;
        model.activation = MlpActivation::Gate(Activation::Silu);
        model.tied = false;
    });
    let program = compile(&config, &testing::target()).unwrap();
    let model = config.model.transformer().unwrap();
    let (head, c, f) = (model.head_dim, model.d_model, model.d_ff);
    let all = by_parameter(&program);
    assert_eq!(all.len(), program.parameters.len());
    for (name, rule, numbers_at, rows) in all {
        let of_group = name.starts_with("blocks.1.");
        let is_muons = name.starts_with("blocks.") && name.ends_with(".weight") && !name.contains("norm");
        let muon = Rule::numbers_len(&config.train.optimizer.groups()[0].rule);
        let adamw = Rule::numbers_len(&config.train.optimizer.groups()[1].rule);
        let group = if of_group { 0 } else { muon + adamw };
        let expected = if is_muons { ("muon", group) } else { ("adamw", group + muon) };
        assert_eq!((rule, numbers_at), expected, "{name}");
        let matrices = match name.rsplit_once("blocks.").map_or("", |(_, name)| &name[2..]) {
            "attention.qkv.weight" => vec![model.heads * head, head, head],
            "mlp.gate_up.weight" => vec![f, f],
            "attention.out.weight" | "mlp.out.weight" => vec![c],
            _ => continue,
        };
        assert_eq!(rows, matrices, "{name}");
    }
}
