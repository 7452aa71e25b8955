//! The reasons why PyTorch's memory is not predicted for a run.

use crate::pytorch_figures::{LLAMA, rows};
use crate::test_folder::TestFolder;

/// Why PyTorch's memory of a strategy of `a.toml` is not predicted with these arguments and settings.
fn reason(dir: &TestFolder, strategy: &str, arguments: &[&str], settings: &[&str]) -> String {
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let rows = rows(dir, "a.toml", &[arguments, &settings].concat());
    let row = rows.iter().find(|row| row["strategy"] == strategy).unwrap();
    assert!(row["torch_peak_bytes"].is_null(), "{settings:?}");
    format!("{}\n  {}\n", settings[1..].join(" "), row["torch_fits"].as_str().unwrap())
}

#[test]
fn runs_that_the_library_does_not_have_are_not_predicted() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let program = ["--set", "plan.torch_program=transformers"];
    let reason = |run: &str, set: &[&str]| {
        format!("{run} {}", reason(&dir, run, &program, set).replace(" --set ", " "))
    };
    let plain = [
        "plan.torch_version=\"2.6\"",
        "model.transformer.family=olmo2",
        "model.transformer.causal=false",
        "model.transformer.rotary.divisors=[2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0]",
        "model.transformer.head_dim=20",
        "model.transformer.context=1",
        "strategies.plain.recompute=[\"mlp\"]",
        "strategies.plain={loss_chunks=2,leak=\"graph\"}",
        "strategies.plain.freeze=[\"blocks.0.mlp\"]",
    ];
    let adapters = [
        "strategies.adapters.lora.targets=[\"attention.qkv\"]",
        "strategies.adapters.lora.base=int8",
        "strategies.adapters.lora.base=bf16",
        "strategies.adapters.lora.trained=[\"blocks.0.mlp\"]",
        "strategies.adapters.lora={rank=4,alpha=8,targets=[\"q_proj\"],base=\"nf4\",tables=\"bf16\"}",
        "strategies.adapters={precision=\"bf16\",lora={rank=4,alpha=8,targets=[\"q_proj\"],base=\"nf4\"}}",
        "strategies.adapters.optimizer_state=bf16",
    ];
    let falcon = [
        "model.transformer={family=\"falcon\",activation=\"gelu\",norm=\"layer\"}",
        "strategies.adapters.lora={rank=4,alpha=8,targets=[\"dense\"],base=\"nf4\"}",
    ];
    let falcon_loss = [falcon[0], falcon[1], "strategies.plain.loss_chunks=2"];
    let older = "plan.transformers_version=\"4.57\"";
    let older = [
        [older, falcon[0], falcon[1]].to_vec(),
        vec![older, "strategies.plain.recompute={every=2}"],
        vec![older, "strategies.plain.loss_chunks=2"],
        vec![older, "plan.torch_kernels=liger"],
    ];
    let liger = [
        "model.transformer={family=\"starcoder2\",activation=\"gelu\",norm=\"layer\"}",
        "model.transformer.activation=geglu",
        "model.transformer.bias=true",
        "model.transformer.d_ff=65544",
    ];
    let liger = liger.map(|set| {
        vec![set, "strategies.adapters.lora.targets=[\"attention.q\"]", "plan.torch_kernels=liger"]
    });
    let older = older.iter().chain(&liger).map(|set| reason("plain", set));
    let plain = plain.into_iter().map(|set| reason("plain", &[set]));
    let adapters = adapters.into_iter().map(|set| reason("adapters", &[set]));
    let reasons = plain.chain(adapters).chain([reason("adapters", &falcon), reason("plain", &falcon_loss)]);
    insta::assert_snapshot!("library_reasons", reasons.chain(older).collect::<String>());
}

/// For each key that `Trainer` lacks, the reason.
#[test]
fn runs_that_trainer_does_not_have_are_not_predicted() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let reason = |set: &[&str]| reason(&dir, "plain", &["--set", "plan.torch_program=trainer"], set);
    let reasons = [
        reason(&["measure.what=inference"]),
        reason(&["train.batch_size=5", "strategies.plain.accumulate=2"]),
        reason(&["strategies.plain.update=in_backward"]),
        reason(&["strategies.plain.gradients=zero"]),
        reason(&["strategies.plain.keep=[\"head.logits\"]"]),
        reason(&["strategies.plain.leak=loss"]),
        reason(&["strategies.plain.allocator=caching", "strategies.plain.empty_cache=step"]),
        reason(&["evaluation={every=1,batches=1}", "strategies.plain.evaluation_pass=grad"]),
        reason(&["strategies.plain.params=bf16", "strategies.plain.residual=bf16"]),
        reason(&["strategies.plain.precision=fp16", "strategies.plain.loss_scale=off"]),
        reason(&["strategies.plain.precision=fp16", "strategies.plain.loss_scale=128.0"]),
        reason(&[
            "strategies.plain={params=\"fp16\",residual=\"fp16\",lora={rank=4,alpha=8,targets=[\"q_proj\"]}}",
        ]),
        reason(&[
            "strategies.plain.optimizer_state=8bit",
            "strategies.plain.params=bf16",
            "strategies.plain.master_weights=false",
            "train.optimizer={sgd={lr=0.1,momentum=0.9}}",
        ]),
        reason(&["evaluation={every=1,batches=1200}"]),
        reason(&["train.optimizer.adamw.decay=all"]),
        reason(&["strategies.plain.optimizer_state=8bit", "strategies.plain.quantize={embeddings=true}"]),
        reason(&["train.optimizer={muon={lr=0.02,adamw={lr=1e-3}}}"]),
        reason(&["train.optimizer={sgd={lr=0.1}}", "strategies.plain.offload.optimizer=true"]),
        reason(&[
            "model.transformer={family=\"falcon\",activation=\"gelu\",norm=\"layer\"}",
            "strategies.adapters.lora.targets=[\"dense\"]",
            "plan.torch_attention_mask=true",
        ]),
    ];
    insta::assert_snapshot!("trainer_reasons", reasons.concat());
}

/// For each key of layers in a list that the script would not carry out, the reason.
#[test]
fn lists_that_the_script_lacks_are_not_predicted() {
    let dir = TestFolder::new();
    dir.write(
        "a.toml",
        "name = \"a\"\n[model.sequential]\ninput = [8]\nlayers = [{ linear = 8 }, \"relu\", { linear = 8 }]\n\
         [data.random]\nsamples = 20\n[train]\nbatch_size = 8\noptimizer.sgd = { lr = 0.1 }\n[strategies.plain]\n",
    );
    let reason = |set: &[&str]| reason(&dir, "plain", &[], set);
    let reasons = [
        reason(&["plan.torch_program=transformers"]),
        reason(&["plan.torch_version=\"2.6\""]),
        reason(&["model.sequential.loss=sum", "model.sequential.layers=[{linear=8},\"layer_norm\"]"]),
        reason(&["strategies.plain.params=bf16", "model.sequential.loss=squared_error"]),
        reason(&[
            "strategies.plain.params=bf16",
            "model.sequential={input=[8,2],layers=[\"mean_pool\",{linear=4}]}",
        ]),
        reason(&["strategies.plain.loss_chunks=2"]),
        reason(&[
            "strategies.plain.offload.activations=true",
            "model.sequential={input=[8,2],layers=[\"mean_pool\",{linear=4}]}",
        ]),
        reason(&["strategies.plain.offload.parameters=true"]),
        reason(&["strategies.plain.input_dtype=bf16", "strategies.plain.params=fp16"]),
        reason(&["train.optimizer={muon={lr=0.02,adamw={lr=1e-3}}}"]),
        reason(&["strategies.plain.keep=[\"0.output\"]"]),
        reason(&["model.sequential.layers=[{linear=8},{dropout=0.0},{linear=8}]"]),
        reason(&["model.sequential.layers=[{linear=1},{linear=8}]"]),
        reason(&[
            "strategies.plain.recompute=block",
            "model.sequential.layers=[{linear=8},{block=[{silu={inplace=true}}]},{linear=8}]",
        ]),
        reason(&[
            "strategies.plain.recompute={save=[\"linear\"]}",
            "model.sequential.layers=[{block=[{linear=8},{relu={inplace=true}}]},{linear=8}]",
        ]),
        reason(&[
            "plan.torch_version=\"2.11\"",
            "model.sequential.layers=[{linear=8},{relu={inplace=true}}]",
        ]),
        reason(&["model.sequential.layers=[{linear=8},{block=[\"flatten\"]},{relu={inplace=true}}]"]),
        reason(&["train.shuffle=true", "train.last_batch=keep"]),
        reason(&["model.sequential={input=[4,6],layers=[{attention={heads=1}},{linear=4}]}"]),
        reason(&["model.sequential={input=[1,8],layers=[{attention={heads=1}},{linear=4}]}"]),
        reason(&["model.sequential={input=[8,2,2],layers=[{linear=2},\"relu\",\"to_sequence\",{linear=4}]}"]),
        reason(&["model.sequential={input=[8,2,2],layers=[{block=[\"to_sequence\",{linear=4}]}]}"]),
    ];
    insta::assert_snapshot!("list_reasons", reasons.concat());
}

/// For each key that a script of several ranks would not carry out, the reason.
#[test]
fn runs_of_several_ranks_without_a_script_are_not_predicted() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let ranks = ["--as", "pytorch", "--set", "strategies.plain.parallel.data=2"];
    let reason = |set: &[&str]| reason(&dir, "plain", &ranks, set);
    let reasons = [
        reason(&["plan.torch_program=trainer"]),
        reason(&["plan.torch_program=transformers", "plan.transformers_version=\"4.57\""]),
        reason(&["plan.torch_program=transformers", "plan.torch_kernels=liger"]),
        reason(&["plan.torch_program=transformers", "strategies.plain.loss_chunks=2"]),
        reason(&[
            "plan.torch_program=transformers",
            "strategies.plain.lora={rank=4,alpha=8,targets=[\"q_proj\"],base=\"nf4\"}",
        ]),
        reason(&["plan.torch_version=\"2.11\""]),
        reason(&["strategies.plain.parallel.shard=optimizer"]),
        reason(&["strategies.plain.parallel.shard=gradients"]),
        reason(&["strategies.plain.update=in_backward"]),
        reason(&["strategies.plain={params=\"bf16\",residual=\"bf16\",gradient_dtype=\"fp32\"}"]),
        reason(&["plan.torch_checkpoint=reentrant", "strategies.plain.loss_chunks=2"]),
    ];
    insta::assert_snapshot!("rank_reasons", reasons.concat());
}

/// For each key that a script with `fully_shard` would not carry out, the reason.
#[test]
fn runs_with_sharded_parameters_without_a_script_are_not_predicted() {
    let dir = TestFolder::new();
    dir.write("a.toml", LLAMA);
    let sharded = ["--as", "pytorch", "--set", "strategies.plain.parallel={data=2,shard=\"parameters\"}"];
    let reason = |set: &[&str]| reason(&dir, "plain", &sharded, set);
    let reasons = [
        reason(&["strategies.plain.parallel.ahead=2"]),
        reason(&["strategies.plain.precision=fp16"]),
        reason(&["train.optimizer={sgd={lr=0.1}}"]),
        reason(&["train.optimizer={lion={lr=1e-4}}"]),
        reason(&["strategies.plain.recompute={segments=2}"]),
        reason(&["plan.torch_checkpoint=reentrant", "strategies.plain.recompute=block"]),
        reason(&["strategies.plain.offload.activations=true"]),
        reason(&["strategies.plain.leak=graph"]),
        reason(&["measure.what=inference"]),
        reason(&[
            "plan.torch_program=transformers",
            "strategies.plain={lora={rank=4,alpha=8,targets=[\"q_proj\"],base=\"bf16\",tables=\"bf16\"},precision=\"bf16\"}",
        ]),
        reason(&[
            "plan.torch_program=transformers",
            "strategies.plain.lora={rank=4,alpha=8,targets=[\"q_proj\"],trained=[\"embedding\"]}",
        ]),
    ];
    insta::assert_snapshot!("sharded_reasons", reasons.concat());
}
