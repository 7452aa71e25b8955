//! The keys of a DeepSpeed configuration: those that are read, and reasons why others have no equivalent.

/// The keys that are read.
pub(super) const KNOWN: [&str; 15] = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
    "bfloat16",
    "torch_autocast",
    "amp",
    "data_types",
    "zero_optimization",
    "activation_checkpointing",
    "zero_allow_untested_optimizer",
];

pub(super) const SEVERAL_DEVICES: &str = "it is for several devices; this experiment uses one";
pub(super) const REPORTS: &str = "it is about reports; a sweep measures and prints by itself";
pub(super) const NO_KEY: &str = "no key has this effect";

/// Reasons why keys have no equivalent.
pub(super) const REASONS: [(&str, &[&str]); 2] = [
    (
        SEVERAL_DEVICES,
        &[
            "communication_data_type",
            "prescale_gradients",
            "gradient_predivide_factor",
            "sparse_gradients",
            "seq_parallel_communication_data_type",
            "tensor_parallel",
            "sequence_parallel_size",
            "pipeline",
            "elasticity",
            "comms_logger",
            "use_node_local_storage",
        ],
    ),
    (
        REPORTS,
        &[
            "steps_per_print",
            "wall_clock_breakdown",
            "dump_state",
            "memory_breakdown",
            "tensorboard",
            "wandb",
            "comet",
            "csv_monitor",
            "flops_profiler",
            "disable_allgather",
        ],
    ),
];
