//! Keys and keywords of other tools (transformers, PEFT, TRL, bitsandbytes, Accelerate, DeepSpeed, FSDP, torchtune,
//! axolotl, Lightning, Megatron, nanoGPT): what they mean, and what to write here. All are in lower case with `_`.

/// A key of another tool that is not one key here under another name.
pub(super) struct Meaning {
    pub(super) names: &'static [&'static str],
    /// The table in which it has this meaning; empty: any.
    pub(super) within: &'static str,
    /// Text in its value; empty: any value.
    pub(super) value: &'static str,
    /// A clause.
    pub(super) meaning: &'static str,
    pub(super) write: Write,
}

/// What to write instead, with placeholders as in `OTHER_NAMES`.
pub(super) enum Write {
    /// In a strategy.
    Strategy(&'static str),
    /// In this table; empty: at the top of the file.
    Table(&'static str, &'static str),
    Nothing,
}

const fn strategy(names: &'static [&'static str], meaning: &'static str, write: &'static str) -> Meaning {
    Meaning { names, within: "", value: "", meaning, write: Write::Strategy(write) }
}

const fn table(
    names: &'static [&'static str],
    meaning: &'static str,
    table: &'static str,
    write: &'static str,
) -> Meaning {
    Meaning { names, within: "", value: "", meaning, write: Write::Table(table, write) }
}

const fn nothing(names: &'static [&'static str], meaning: &'static str) -> Meaning {
    Meaning { names, within: "", value: "", meaning, write: Write::Nothing }
}

impl Meaning {
    const fn when(self, value: &'static str) -> Meaning {
        Meaning { value, ..self }
    }

    const fn within(self, within: &'static str) -> Meaning {
        Meaning { within, ..self }
    }
}

/// Keys of other tools by meaning; the first that matches.
#[rustfmt::skip]
pub(super) const MEANINGS: &[Meaning] = &[
    // Batches and steps.
    table(&["per_device_train_batch_size", "micro_batch", "micro_batch_size", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", "device_batch_size", "batch_size_per_gpu", "local_batch_size", "per_gpu_train_batch_size"], "it is the number of samples of one micro-batch; `batch_size` is that of a whole step, which `accumulate` in a strategy divides into micro-batches", "train", "batch_size = {4}` times `accumulate"),
    table(&["epochs", "max_epochs", "n_epochs", "num_epochs", "num_train_epochs"], "runs are measured for a number of optimizer steps; `shuffle = true` in [train] makes the epochs", "measure", "steps = 20"),
    table(&["limit_train_batches", "max_steps_per_epoch"], "runs are measured for a number of optimizer steps", "measure", "steps = {20}"),
    table(&["warmup_steps", "lr_warmup_steps", "num_warmup_steps", "warmup_iters", "lr_warmup_iters"], "it is the warm-up of the learning rate, which belongs to its schedule", "train", "schedule.linear = { warmup = {100} }").within("train"),
    table(&["warmup_ratio"], "it is a share of the steps; the warm-up of the learning rate is a number of steps here", "train", "schedule.cosine = { warmup = 100 }"),
    nothing(&["auto_find_batch_size", "auto_scale_batch_size"], "the columns `fits` and `batch` of `runner plan` have the largest batches"),
    table(&["eval_strategy", "evaluation_strategy", "do_eval"], "evaluation takes place where there is an [evaluation] table", "evaluation", "every = 10"),
    table(&["val_set_size", "val_size", "validation_split", "test_size", "eval_split", "val_split"], "the share that is not for training is for evaluation", "data.text", "split = 0.9"),
    table(&["per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_batch_size", "val_batch_size", "validation_batch_size"], "it is the number of samples of a forward pass of an evaluation", "evaluation", "batch_size = {8}"),
    table(&["eval_accumulation_steps"], "it moves the outputs that an evaluation collects to the host", "evaluation", "collect = { what = \"logits\", to = \"host\" }"),
    table(&["eval_do_concat_batches"], "an evaluation concatenates what it collects if it is told to", "evaluation", "collect = { what = \"logits\", concatenate = true }"),
    table(&["prediction_loss_only"], "an evaluation then collects losses, no logits", "evaluation", "collect = \"loss\""),
    table(&["compute_metrics", "include_for_metrics"], "a metric over all outputs of an evaluation collects them", "evaluation", "collect = \"logits\""),
    // Dtypes.
    strategy(&["torch_dtype", "dtype", "model_dtype", "param_dtype", "params_dtype", "weight_dtype"], "it is the dtype of the parameters", "params = \"fp32\"").when("32"),
    strategy(&["torch_dtype", "dtype", "model_dtype", "param_dtype", "params_dtype", "weight_dtype"], "it is the dtype of the parameters, without fp32 copies", "params = \"{dtype}\"` and `master_weights = false"),
    strategy(&["half"], "it stores parameters in fp16, without fp32 copies", "params = \"fp16\"` and `master_weights = false"),
    strategy(&["bfloat16", "bf16_true", "pure_bf16", "full_bf16"], "it stores parameters in bf16, without fp32 copies", "params = \"bf16\"` and `master_weights = false"),
    strategy(&["fp16_opt_level", "opt_level"], "O1 is autocast; O2 is `params = \"fp16\"`, whose fp32 copy is the default", "precision = \"fp16\""),
    strategy(&["grad_dtype", "gradient_accumulation_dtype", "grad_accum_dtype", "main_grads_dtype", "accumulate_allreduce_grads_in_fp32"], "it is the dtype of stored gradients", "gradient_dtype = \"fp32\""),
    strategy(&["exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_dtype", "optimizer_states_dtype", "states_dtype", "state_dtype"], "it is the dtype of the optimizer states", "optimizer_state = \"{dtype}\""),
    strategy(&["stochastic_rounding", "bf16_stochastic_round", "use_stochastic_rounding"], "it rounds what an update stores in 16 bits", "rounding = \"stochastic\""),
    nothing(&["bf16_full_eval", "fp16_full_eval", "half_precision_backend", "bf16_backend"], "evaluation follows `precision` and `params`"),
    strategy(&["fp8", "use_fp8", "enable_fp8", "fp8_format", "fp8_recipe", "float8", "enable_float8", "te_precision", "nvfp4", "mxfp8"], "matmuls in fewer than 16 bits are not supported", "precision = \"bf16\""),
    strategy(&["loss_scaler", "dynamic_loss_scale", "use_grad_scaler"], "it is on with fp16 unless it is \"off\"", "loss_scale = \"dynamic\""),
    strategy(&["grad_scaler", "gradscaler", "scaler", "loss_scaling"], "fp16 scales the loss unless it is \"off\"", "loss_scale = \"off\"").when("false"),
    // Quantized models and adapters.
    strategy(&["qlora"], "it is LoRA beside a frozen base in 4 bits", "lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"nf4\" }"),
    strategy(&["adapter", "peft_type", "peft"], "it is LoRA beside a frozen base in 4 bits", "lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"nf4\" }").when("qlora"),
    strategy(&["load_in_4bit", "bnb_4bit", "bnb_4bit_quant_type", "use_4bit", "quant_type", "quantize_4bit"], "it stores the frozen linear layers in 4 bits", "lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"nf4\" }"),
    strategy(&["load_in_8bit", "use_8bit", "llm_int8_threshold", "llm_int8_skip_modules", "llm_int8_has_fp16_weight"], "it stores the frozen linear layers in 8 bits", "lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"int8\" }"),
    strategy(&["quantization", "quantization_config", "quantizer", "bnb_config", "gptq", "awq", "gptq_model", "quant_method", "load_in_low_bit"], "a quantized base is frozen beside adapters; its formats are \"nf4\" and \"int8\"", "lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"nf4\" }"),
    strategy(&["bnb_4bit_compute_dtype"], "it is the dtype of matmuls, not of stored parameters", "precision = \"{dtype}\""),
    nothing(&["bnb_4bit_quant_storage"], "quantized weights are stored as bytes"),
    strategy(&["adapters", "adapter", "peft", "peft_config", "peft_type", "use_peft", "use_lora", "lora_config"], "it trains low-rank factors beside a frozen base", "lora = { rank = 8, alpha = 16, targets = [\"*\"] }"),
    strategy(&["all_linear", "lora_target_linear", "target_all_linear"], "it adds factors to every linear layer of the blocks", "lora = { rank = 8, alpha = 16, targets = [\"*\"] }"),
    strategy(&["apply_lora_to_mlp"], "it adds factors to the feed-forward layers too", "lora = { rank = 8, alpha = 16, targets = [\"attention\", \"mlp\"] }"),
    strategy(&["lora_dropout"], "it drops elements of the factors' inputs", "lora = { rank = 8, alpha = 16, targets = [\"all-linear\"], dropout = 0.1 }"),
    nothing(&["use_dora", "dora", "apply_lora_to_output", "layers_to_transform", "init_lora_weights", "loftq_config"], "adapters are plain LoRA in the linear layers of all blocks; this option is not supported"),
    nothing(&["task_type", "bias", "fan_in_fan_out", "inference_mode"], "it has no counterpart in `lora`").within("lora"),
    strategy(&["unfrozen_parameters", "trainable_layers"], "layers are trained unless they are frozen", "freeze = [\"embedding\", \"blocks.0\"]"),
    strategy(&["freeze_layers", "frozen_layers", "freeze_base", "freeze_backbone", "freeze_embeddings", "requires_grad"], "it lists the layers that are not trained", "freeze = [\"embedding\"]"),
    // Optimizers and schedules.
    strategy(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "it stores the states of AdamW in 8 bits, `optimizer.adamw = { lr = 1e-4 }` in [train]; pages on the host are `offload.optimizer`", "optimizer_state = \"8bit\"").when("paged_adamw_8bit"),
    strategy(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "it stores optimizer states in 8 bits; the optimizer itself is a table in [train], such as `optimizer.adamw = { lr = 1e-4 }`", "optimizer_state = \"8bit\"").when("8bit"),
    strategy(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "it keeps optimizer states in host memory; the optimizer itself is a table in [train], such as `optimizer.adamw = { lr = 1e-4 }`", "offload = { optimizer = true }").when("paged"),
    table(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "optimizers are tables with their keys", "train", "optimizer.adafactor = { lr = 1e-2 }").when("adafactor"),
    table(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "optimizers are tables with their keys", "train", "optimizer.lion = { lr = 1e-4 }").when("lion"),
    table(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "optimizers are tables with their keys", "train", "optimizer.muon = { lr = 1e-2, adamw = { lr = 1e-3 } }").when("muon"),
    table(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "optimizers are tables with their keys", "train", "optimizer.sgd = { lr = 0.1 }").when("sgd"),
    table(&["optim", "optimizer_name", "optimizer_type", "optim_type"], "optimizers are tables with their keys", "train", "optimizer.adamw = { lr = 1e-4 }"),
    nothing(&["optim_args", "optim_target_modules", "galore_rank", "use_galore", "amsgrad", "dampening", "maximize", "differentiable", "gradient_clip_algorithm", "clip_grad_value", "decoupled_lr"], "this option of optimizers is not supported"),
    nothing(&["fused", "foreach", "capturable", "fused_optimizer", "fused_adam"], "the optimizer step always handles whole buffers in one launch"),
    table(&["betas", "adam_betas"], "they are two keys", "train", "optimizer.adamw = { lr = 1e-4, beta1 = 0.9, beta2 = 0.999 }"),
    table(&["decay_lr", "lr_scheduler_kwargs", "lr_decay_style", "lr_schedule_type"], "schedules are tables with their keys", "train", "schedule.cosine = { warmup = 100 }"),
    table(&["eps"], "it is the epsilon of the norms", "model.transformer", "norm_epsilon = 1e-5").within("model.transformer"),
    // Activations, attention, loss.
    strategy(&["recompute_method", "recompute_num_layers", "checkpoint_every", "checkpoint_num_layers", "ac_freq", "selective_ac_option", "gradient_checkpointing_freq"], "it recomputes some of the blocks", "recompute = { every = {2} }"),
    strategy(&["activation_memory_budget", "memory_budget", "recompute_budget"], "it recomputes the least that meets a budget", "recompute = { budget = 0.5 }"),
    nothing(&["use_reentrant", "gradient_checkpointing_kwargs", "preserve_rng_state"], "recomputation repeats random numbers exactly and has no other options"),
    strategy(&["activation_offloading", "enable_activation_offloading", "offload_activations", "activation_offload", "save_on_cpu", "cpu_checkpointing", "checkpoint_in_cpu", "cpu_offloading_activations"], "it keeps saved activations in host memory", "offload = { activations = true }"),
    strategy(&["attn_implementation", "attention_implementation", "attn_impl", "attention_backend", "attention_type"], "eager attention stores the scores", "attention = \"materialized\"").when("eager"),
    strategy(&["attn_implementation", "attention_implementation", "attn_impl", "attention_backend", "attention_type"], "it never stores the scores, which is the default", "attention = \"fused\""),
    strategy(&["flash_attention", "flash_attn", "use_flash_attention", "use_flash_attention_2", "use_flash_attn", "flash_attention_2", "flash", "sdp_attention", "sdpa", "xformers", "xformers_attention", "memory_efficient_attention", "enable_xformers_memory_efficient_attention", "use_sdpa"], "without it, attention stores the scores", "attention = \"materialized\"").when("false"),
    strategy(&["flash_attention", "flash_attn", "use_flash_attention", "use_flash_attention_2", "use_flash_attn", "flash_attention_2", "flash", "sdp_attention", "sdpa", "xformers", "xformers_attention", "memory_efficient_attention", "enable_xformers_memory_efficient_attention", "use_sdpa"], "it never stores the scores, which is the default", "attention = \"fused\""),
    strategy(&["use_liger_kernel", "use_liger", "liger", "liger_kernel", "liger_fused_linear_cross_entropy", "cut_cross_entropy", "fused_linear_cross_entropy", "chunked_cross_entropy", "chunked_loss", "num_output_chunks", "cross_entropy_loss_fusion"], "it never stores all logits at once", "loss_chunks = {8}"),
    nothing(&["liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "fused_rms_norm", "unsloth"], "fused kernels of this kind have no key"),
    strategy(&["compile", "torch_compile", "use_compile", "torch_compile_mode", "torch_compile_backend", "torchdynamo", "dynamo_backend", "jit_compile", "jit_mode_eval"], "each step is compiled ahead, with some kernels fused; a GPU can replay it as CUDA graphs", "graph = true"),
    table(&["smoothing", "label_smoothing_factor", "epsilon"], "labels are smoothed by a key of this table", "cross_entropy", "label_smoothing = 0.1").within("cross_entropy"),
    table(&["label_smoothing", "label_smoothing_factor", "smoothing"], "only the cross-entropy of layers in a list has it", "model.sequential", "loss = { cross_entropy = { label_smoothing = 0.1 } }"),
    nothing(&["neftune_noise_alpha", "noisy_embedding_alpha", "z_loss", "ema", "ema_decay", "use_ema", "swa"], "it is not supported"),
    nothing(&["num_experts", "num_local_experts", "num_experts_per_tok", "n_routed_experts", "moe"], "mixtures of experts are not supported"),
    nothing(&["use_cache"], "training keeps no keys and values of earlier tokens"),
    strategy(&["retain_graph", "retain_graphs"], "it keeps the values saved for backward", "leak = \"graph\""),
    // Memory.
    strategy(&["cpu_offload", "fsdp_cpu_offload", "fsdp_offload_params", "zero_offload", "cpu_offloading", "offload_to_cpu", "offload_params_and_optimizer", "offload_to_host"], "it keeps parameters and optimizer states in host memory", "offload = { parameters = true, optimizer = true }"),
    strategy(&["offload_optimizer", "optimizer_offload", "optimizer_cpu_offload", "offload_optimizer_device", "cpu_offload_optimizer", "paged_optimizer", "use_cpu_adam", "cpu_adam"], "it keeps optimizer states in host memory and updates there", "offload = { optimizer = true }"),
    strategy(&["offload_param", "offload_params", "offload_parameters", "offload_param_device", "param_offload", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "offload_model", "cpu_offload_params"], "it keeps parameters in host memory", "offload = { parameters = true }"),
    nothing(&["offload_folder", "offload_dir", "nvme_path", "offload_state_dict"], "offloading to a disk is not supported; `offload` uses host memory"),
    strategy(&["device_map"], "it selects the device of each layer", "place = { embedding = \"host\", head = \"host\" }"),
    strategy(&["low_cpu_mem_usage", "meta_device", "init_on_meta", "skip_init", "empty_init"], "it makes parameters no earlier than they are needed", "init = \"lazy\""),
    strategy(&["torch_empty_cache_steps", "empty_cache_steps", "clear_cache", "gc_collect"], "it returns cached memory", "allocator = \"caching\"` and `empty_cache = \"step\""),
    table(&["max_memory", "gpu_memory", "gpu_memory_limit", "gpu_memory_utilization", "max_memory_mb"], "it limits the memory of the device", "target", "memory = \"24 GiB\""),
    strategy(&["set_to_none", "zero_grad"], "gradients are kept and filled with zeros", "gradients = \"zero\"").when("false"),
    strategy(&["no_grad", "inference_mode"], "evaluation keeps the values for backward", "evaluation_pass = \"grad\"").when("false"),
    table(&["norm_first", "normalize_before", "pre_norm"], "the norm follows the residual sum", "model.transformer", "norm_placement = \"post\"").when("false"),
    table(&["drop_last", "dataloader_drop_last"], "the incomplete last batch of an epoch is kept", "train", "last_batch = \"keep\"").when("false"),
    // Models, data and files.
    table(&["base_model", "model_name_or_path", "model_name", "model_id", "model_path", "pretrained_model_name_or_path", "pretrained", "hf_model", "hf_checkpoint", "checkpointer"], "models come from a file on this machine", "model.hf", "config = \"config.json\""),
    table(&["datasets", "dataset_name", "dataset_config", "train_dataset", "dataset_prepared_path"], "data comes from files on this machine", "data.text", "paths = [\"*.txt\"]"),
    table(&["tokenizer_name", "tokenizer_path", "tokenizer_file", "tokenizer_type"], "it is a file of the `tokenizers` library", "data.text", "tokens = { file = \"tokenizer.json\" }"),
    table(&["padding_free"], "documents are packed", "data.text", "documents = \"packed\""),
    table(&["pad_to_sequence_len", "pad_to_max_length"], "documents are padded to the context, or to the longest of each micro-batch", "data.text", "documents = \"padded\""),
    table(&["dynamic_padding", "pad_to_longest"], "documents are padded to the longest of each micro-batch", "data.text", "pad_to = \"batch\""),
    table(&["train_on_input", "train_on_inputs", "completion_only_loss", "assistant_only_loss", "mask_prompt", "answer_only_loss"], "only answers are targets if prompts are masked", "data.text", "mask = \"prompt\""),
    table(&["chat_template", "prompt_template", "conversation_template"], "it joins the messages of a conversation", "data.text", "template = \"chatml\""),
    table(&["eval_data", "eval_dataset", "eval_file", "test_datasets", "val_data", "val_file", "valid_data_path", "validation_data", "validation_file"], "files for evaluation only have a key of their own", "data.text", "evaluate = [\"val/*.txt\"]"),
    nothing(&["group_by_length", "length_column_name", "persistent_workers", "dataloader_persistent_workers", "remove_unused_columns"], "it is not supported"),
    table(&["run_name", "experiment_name", "project_name"], "results are stored under the name of the experiment", "", "name = \"mine\""),
    nothing(&["output_dir", "logging_dir", "logging_steps", "log_interval", "log_every_n_steps", "log_level", "report_to", "wandb", "wandb_project", "wandb_log", "save_steps", "save_strategy", "save_total_limit", "save_interval", "save_safetensors", "saves_per_epoch", "load_best_model_at_end", "metric_for_best_model", "resume_from_checkpoint", "push_to_hub", "disable_tqdm", "enable_progress_bar", "enable_checkpointing", "default_root_dir", "overwrite_output_dir", "do_train", "seed_everything", "trust_remote_code", "steps_per_print", "wall_clock_breakdown"], "runs are measured, not saved: results go to the folder of `--out`, models nowhere"),
    nothing(&["deterministic", "full_determinism", "cudnn_benchmark", "benchmark", "use_deterministic_algorithms", "channels_last", "memory_format", "non_blocking"], "there is nothing to choose here"),
    strategy(&["ddp", "distributed_data_parallel", "data_parallel_size", "data_parallel", "devices", "dp", "dp_size", "gpus", "n_gpu", "n_gpus", "nproc_per_node", "num_devices", "num_gpus", "num_processes", "num_ranks", "rank_count", "world_size"], "it is the number of processes that train one model, each with a part of the samples", "parallel = { data = {2} }"),
    nothing(&["device", "accelerator", "use_cpu", "no_cuda", "cpu", "use_cuda"], "devices are selected on the command line, as in `--device cpu`"),
    nothing(&["profiler", "profile", "detect_anomaly"], "`runner explain` shows the time of each operation after a sweep"),
];

/// Keys of several devices.
#[rustfmt::skip]
pub(super) const PARALLEL: &[&str] = &["accelerate_config", "allgather_bucket_size", "backend_nccl", "contiguous_gradients", "device_mesh", "distributed", "distributed_type", "fsdp", "fsdp2", "full_shard", "hybrid_shard", "local_rank", "machine_rank", "megatron", "model_parallel", "nnodes", "nodes", "num_machines", "num_nodes", "overlap_comm", "pp", "pp_size", "reduce_bucket_size", "shard", "sharding", "sharding_strategy", "sequence_parallel", "sync_batchnorm", "tp", "tp_size", "use_distributed_optimizer", "zero", "zero1", "zero2", "zero3"];

/// Beginnings of such keys.
pub(super) const PARALLEL_PREFIXES: &[&str] = &[
    "context_parallel",
    "cp_",
    "data_parallel",
    "ddp_",
    "deepspeed",
    "distributed_",
    "dp_",
    "expert_",
    "fsdp",
    "megatron_",
    "pipeline_",
    "ring_",
    "sequence_parallel",
    "stage3_",
    "tensor_model",
    "tensor_parallel",
    "tp_",
    "zero_opt",
    "zero_stage",
    "zero3_",
];

/// Keys and their names in other tools. A key has a value where the name implies one; `{4}` is the number that was
/// written, else 4, and `{dtype}` the dtype that was written, else bf16.
pub(super) const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("layers", &["n_layer", "n_layers", "num_layers", "num_hidden_layers", "n_blocks", "depth"]),
    ("d_model", &["n_embd", "hidden_size", "hidden_dim", "embed_dim", "embedding_dim", "dim", "width"]),
    ("heads", &["n_head", "n_heads", "num_heads", "num_attention_heads"]),
    (
        "kv_heads",
        &["multi_query_group_num", "n_kv_heads", "num_key_value_heads", "num_kv_heads", "num_query_groups"],
    ),
    ("head_dim", &["attention_head_size", "d_head", "d_kv", "head_size"]),
    ("causal", &["is_causal", "is_decoder"]),
    ("qkv_bias", &["add_qkv_bias", "use_qkv_bias"]),
    ("embedding_scale", &["embed_scale", "embedding_multiplier", "scale_embeddings"]),
    ("residual_scale", &["residual_multiplier"]),
    ("logit_softcap", &["final_logit_softcapping", "final_softcap"]),
    ("qk_norm", &["qk_layernorm", "use_qk_norm"]),
    ("window", &["attention_window", "local_attention", "sliding_window", "window_size"]),
    ("global_every", &["sliding_window_pattern"]),
    ("attention_softcap", &["attn_logit_softcapping", "attention_cap", "softcap"]),
    ("attention_scale", &["attention_multiplier", "query_pre_attn_scalar", "softmax_scale"]),
    (
        "context",
        &[
            "block_size",
            "context_length",
            "max_position_embeddings",
            "max_length",
            "max_seq_len",
            "max_seq_length",
            "max_sequence_length",
            "model_max_length",
            "n_ctx",
            "n_positions",
            "seq_len",
            "seq_length",
            "sequence_len",
            "sequence_length",
        ],
    ),
    ("vocabulary", &["vocab_size", "n_vocab", "vocab"]),
    (
        "d_ff",
        &[
            "d_ffn",
            "d_inner",
            "dim_feedforward",
            "feed_forward_dim",
            "ffn_dim",
            "ffn_hidden_size",
            "intermediate_size",
            "n_inner",
        ],
    ),
    ("activation", &["act_fn", "activation_function", "hidden_act", "hidden_activation"]),
    ("activation = \"swiglu\"", &["swiglu"]),
    ("norm", &["norm_type", "normalization"]),
    ("norm = \"rms\"", &["rms_norm", "rmsnorm"]),
    (
        "norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps", "rms_norm_epsilon"],
    ),
    ("norm_placement = \"pre\"", &["norm_first", "normalize_before", "pre_norm"]),
    ("norm_placement = \"post\"", &["post_norm"]),
    ("positions", &["pos_emb", "position_embedding", "position_embedding_type", "positional_encoding"]),
    ("positions = \"rotary\"", &["rope", "use_rope"]),
    ("rotary = { base = 500000.0 }", &["rope_base", "rope_theta", "rotary_base", "rotary_emb_base"]),
    ("rotary = { scaling = { factor = 8.0, original = 8192 } }", &["rope_parameters", "rope_scaling"]),
    ("bias", &["attention_bias", "biases", "mlp_bias", "use_bias"]),
    ("tied", &["share_embeddings", "tie_embeddings", "tie_weights", "tie_word_embeddings"]),
    ("dropout = 0.1", &["drop_rate", "dropout_p", "dropout_prob", "dropout_rate", "p_drop"]),
    ("dropout = { attention = 0.1 }", &["attention_dropout", "attn_drop", "attn_dropout", "attn_pdrop"]),
    ("dropout = { embedding = 0.1 }", &["embd_pdrop", "embedding_dropout"]),
    (
        "dropout = { residual = 0.1 }",
        &["hidden_dropout", "hidden_dropout_prob", "resid_dropout", "resid_pdrop", "residual_dropout"],
    ),
    ("split", &["train_split", "train_val_split"]),
    (
        "paths",
        &[
            "data_dir",
            "data_files",
            "data_path",
            "dataset_path",
            "file",
            "files",
            "path",
            "train_data",
            "train_file",
        ],
    ),
    ("tokens", &["tokenizer"]),
    ("jsonl", &["dataset_text_field", "text_column", "text_field"]),
    ("documents = \"padded\"", &["padding"]),
    ("documents = \"packed\"", &["packing", "sample_packing"]),
    ("batch_size", &["batch", "bs", "effective_batch_size", "global_batch_size", "train_batch_size"]),
    (
        "clip_norm",
        &[
            "clip",
            "clip_grad",
            "clip_grad_norm",
            "grad_clip",
            "gradient_clip",
            "gradient_clip_val",
            "gradient_clipping",
            "max_grad_norm",
        ],
    ),
    ("seed", &["data_seed", "manual_seed", "random_seed"]),
    ("last_batch", &["drop_last", "dataloader_drop_last"]),
    ("workers = {2}", &["dataloader_num_workers", "num_workers"]),
    ("prefetch = {2}", &["dataloader_prefetch_factor", "prefetch_factor"]),
    ("pinned", &["dataloader_pin_memory", "pin_memory"]),
    ("lr", &["learning_rate", "max_lr", "peak_lr"]),
    ("weight_decay", &["wd"]),
    ("beta1", &["adam_beta1", "beta_1"]),
    ("beta2", &["adam_beta2", "beta_2"]),
    ("epsilon", &["adam_eps", "adam_epsilon", "eps", "optimizer_eps"]),
    ("rank", &["lora_r", "lora_rank", "r"]),
    ("alpha", &["lora_alpha"]),
    ("targets", &["lora_attn_modules", "lora_target_modules", "target_modules"]),
    ("dropout", &["lora_dropout"]),
    ("rslora", &["use_rslora"]),
    ("trained", &["lora_modules_to_save", "modules_to_save"]),
    ("double_quantization", &["bnb_4bit_use_double_quant", "double_quant", "use_double_quant"]),
    ("adjust = \"match_rms_adamw\"", &["adjust_lr_fn", "match_rms_adamw"]),
    ("beta2_decay = -0.8", &["decay_rate"]),
    ("clip_threshold", &["clipping_threshold"]),
    ("momentum", &["mu"]),
    ("steps", &["iterations", "max_iters", "max_steps", "num_steps", "train_steps"]),
    ("warmup", &["lr_warmup_iters", "lr_warmup_steps", "num_warmup_steps", "warmup_iters", "warmup_steps"]),
    ("floor = 0.1", &["eta_min", "lr_min", "min_lr", "min_lr_factor", "min_lr_rate", "min_lr_ratio"]),
    ("total", &["lr_decay_iters", "num_training_steps", "total_iters", "total_steps"]),
    ("schedule = { cosine = {} }", &["cosine", "cosine_annealing"]),
    (
        "groups = [{ match = \"*.bias\", weight_decay = 0.0 }]",
        &["no_decay", "param_groups", "parameter_groups"],
    ),
    ("schedule", &["lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"]),
    (
        "every",
        &[
            "eval_every",
            "eval_interval",
            "eval_steps",
            "evaluation_steps",
            "val_check_interval",
            "val_interval",
        ],
    ),
    ("batches", &["eval_batches", "eval_iters", "limit_val_batches", "val_batches"]),
    ("repeats", &["repetitions", "trials"]),
    ("model", &["architecture"]),
    ("data", &["dataset"]),
    ("train", &["trainer", "training"]),
    ("evaluation", &["eval", "validation"]),
    ("memory", &["memory_limit", "vram"]),
    ("host_memory", &["cpu_memory", "host_memory_limit", "ram"]),
    ("link", &["link_bandwidth", "pcie_bandwidth"]),
    ("grid", &["matrix"]),
    (
        "accumulate = {4}",
        &[
            "accumulate_grad_batches",
            "accumulation",
            "accumulation_steps",
            "grad_accum",
            "grad_accum_steps",
            "gradient_accumulation",
            "gradient_accumulation_steps",
            "micro_batches",
            "num_micro_batches",
            "num_microbatches",
        ],
    ),
    ("precision = \"{dtype}\"", &["amp", "autocast", "compute_dtype", "mixed_precision"]),
    ("precision = \"bf16\"", &["bf16"]),
    ("precision = \"fp16\"", &["fp16"]),
    ("precision = \"tf32\"", &["tf32", "allow_tf32"]),
    (
        "recompute = \"block\"",
        &[
            "activation_checkpointing",
            "activation_recomputation",
            "checkpoint",
            "checkpoint_activations",
            "checkpointing",
            "enable_activation_checkpointing",
            "grad_checkpointing",
            "gradient_checkpointing",
            "recompute_granularity",
            "rematerialization",
            "remat",
        ],
    ),
    (
        "recompute = { save = [\"linear\"] }",
        &["selective_activation_checkpointing", "selective_checkpointing"],
    ),
    ("loss_scale = \"dynamic\"", &["grad_scaler", "gradscaler", "loss_scaling", "scaler"]),
    ("evaluation_pass = \"no_grad\"", &["inference_mode", "no_grad"]),
    ("gradients = \"free\"", &["set_to_none", "zero_grad"]),
    (
        "update = \"in_backward\"",
        &["apply_optimizer_in_backward", "fused_backward", "optimizer_in_backward", "optimizer_in_bwd"],
    ),
    (
        "allocator = { caching = { max_split_size_mb = 128 } }",
        &["max_split_size", "max_split_size_mb", "pytorch_cuda_alloc_conf"],
    ),
    ("allocator = { caching = { garbage_collection_threshold = 0.8 } }", &["garbage_collection_threshold"]),
    ("allocator = { caching = { expandable_segments = true } }", &["expandable_segments"]),
    ("graph = true", &["cuda_graph", "cuda_graphs"]),
    (
        "optimizer_state = \"8bit\"",
        &[
            "adam8bit",
            "adam_8bit",
            "adamw8bit",
            "adamw_8bit",
            "optimizer_8bit",
            "paged_adamw_8bit",
            "use_8bit_adam",
        ],
    ),
    ("quantize = { from = 4096 }", &["min_8bit_size"]),
];

/// Values of keys that other tools accept, and what to write here.
pub(super) const OTHER_VALUES: &[(&str, &[&str], &str)] = &[
    (
        "precision",
        &[
            "fp8",
            "float8",
            "e4m3",
            "e5m2",
            "mxfp8",
            "nvfp4",
            "fp4",
            "int8",
            "8bit",
            "4bit",
            "transformer_engine",
            "fp8_e4m3",
            "fp8_e4m3fn",
            "float8_e4m3fn",
        ],
        "matmuls in fewer than 16 bits are not supported: use \"bf16\"",
    ),
    (
        "precision",
        &["bf16_true", "16_true", "pure_bf16", "full_bf16"],
        "for 16-bit parameters without fp32 copies, use `params = \"bf16\"` and `master_weights = false`",
    ),
    (
        "params",
        &["int8", "int4", "8bit", "4bit", "nf4", "fp4", "fp8", "float8", "e4m3", "e5m2"],
        "parameters in fewer than 16 bits are frozen beside adapters: use \
         `lora = { rank = 8, alpha = 16, targets = [\"*\"], base = \"nf4\" }`, or \"int8\"",
    ),
    ("optimizer_state", &["fp8", "float8", "4bit", "int4", "fp4"], "the smallest is \"8bit\""),
    ("recompute", &["selective", "sac"], "did you mean `recompute = { save = [\"linear\"] }`?"),
    ("targets", &["all_linear", "all"], "did you mean `targets = [\"all-linear\"]`?"),
    (
        "attention",
        &["flash", "flash_attention", "flash_attention_2", "flash_attention_3", "sdpa", "xformers"],
        "did you mean \"fused\"?",
    ),
    ("attention", &["eager", "math", "naive", "vanilla"], "did you mean \"materialized\"?"),
];
