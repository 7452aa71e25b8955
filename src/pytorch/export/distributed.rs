//! The script of several ranks, each a process that `torchrun` starts.

use super::{Script, torch_dtype};
use crate::coverage;

/// A rank's loss is its part of the batch's.
const SUM_OF_RANKS: &str = "\
def sum_of_ranks(number):
    total = torch.tensor(number, dtype=torch.float64)  # In host memory.
    torch.distributed.all_reduce(total)
    return total.item()


";

impl Script<'_> {
    /// Whether backward passes of a step differ: the ranks sum gradients in the last one only.
    pub(super) fn syncs_last(&self) -> bool {
        coverage::is_distributed(self.config)
            && self.config.micro_batches() > 1
            && !self.config.shards_gradients()
    }

    /// Whether all others are under `no_sync()`.
    pub(super) fn has_no_sync(&self) -> bool {
        self.syncs_last() && !coverage::is_fully_sharded(self.config)
    }

    pub(super) fn import_null_context(&self) -> &'static str {
        if self.has_no_sync() { "from contextlib import nullcontext\n" } else { "" }
    }

    pub(super) fn import_fully_shard(&self) -> &'static str {
        match (coverage::is_fully_sharded(self.config), coverage::gathered_dtype(self.config)) {
            (true, None) => {
                "from torch.distributed.device_mesh import init_device_mesh\n\
                 from torch.distributed.fsdp import fully_shard\n"
            }
            (true, Some(_)) => {
                "from torch.distributed.device_mesh import init_device_mesh\n\
                 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
            }
            (false, _) => "",
        }
    }

    /// The constants of a process: its rank, and the number of its card.
    pub(super) fn ranks(&self) -> String {
        let ranks = self.config.ranks();
        if ranks == 1 {
            return String::new();
        }
        format!(
            "# A process for each card: torchrun --nproc-per-node={ranks} train.py\n\
             RANKS = {ranks}\n\
             if os.environ.get(\"WORLD_SIZE\") != str(RANKS):\n    \
                 raise SystemExit(f\"use: torchrun --nproc-per-node={{RANKS}} {{__file__}}\")\n\
             RANK, LOCAL_RANK = int(os.environ[\"RANK\"]), int(os.environ[\"LOCAL_RANK\"])\n"
        )
    }

    /// An expression for batches: this rank's samples of them.
    pub(super) fn of_rank(&self, batches: &str) -> String {
        match self.config.ranks() {
            1 => batches.to_owned(),
            _ => format!("[part.tensor_split(RANKS, 1)[RANK] for part in {batches}]"),
        }
    }

    /// A share of the batch, times the number of ranks, which average gradients.
    pub(super) fn times_ranks(&self, share: &str) -> String {
        match self.config.ranks() {
            1 => share.to_owned(),
            _ => format!("{share} * RANKS"),
        }
    }

    pub(super) fn wrap_model(&mut self) {
        if coverage::is_fully_sharded(self.config) {
            let blocks = match self.options.program.is_of_library() {
                true => {
                    let adapted = if self.config.strategy.lora.is_some() { "base_model.model." } else { "" };
                    self.library_names("blocks", &format!("self.model.model.{adapted}")).replace('"', "")
                }
                false => "self.model.blocks".to_owned(),
            };
            let keeps = self.config.strategy.parallel.keep_gathered;
            let kept = if keeps { ", reshard_after_forward=False" } else { "" };
            let policy = coverage::gathered_dtype(self.config).map(torch_dtype);
            let (policy, argument) = match policy {
                Some(dtype) => (
                    format!(
                        "        policy = MixedPrecisionPolicy(param_dtype={dtype}, reduce_dtype=torch.float32)"
                    ),
                    ", mp_policy=policy",
                ),
                None => (String::new(), ""),
            };
            self.line_if(!policy.is_empty(), &policy);
            return self.lines(&[
                "        mesh = init_device_mesh(device, (RANKS,))",
                &format!("        for block in {blocks}:"),
                &format!("            fully_shard(block, mesh=mesh{argument}{kept})"),
                &format!("        fully_shard(self.model, mesh=mesh{argument}{kept})"),
            ]);
        }
        self.line_if(
            coverage::is_distributed(self.config),
            "        self.ddp = nn.parallel.DistributedDataParallel(self.model, device_ids=[LOCAL_RANK] if device == \"cuda\" else None)",
        );
    }

    /// The function that writes requests, each with its stream.
    pub(super) fn with_streams(&self, functions: &str) -> String {
        if !coverage::is_fully_sharded(self.config) {
            return functions.to_owned();
        }
        functions
            .replace("`+bytes`, or", "`+bytes`, `+bytes@number` of other streams than the first, or")
            .replace("numbers, count = {}, 0\n", "numbers, count, streams = {}, 0, {}\n")
            .replace(
                "                out.write(f\"+{event['size']}\\n\")\n",
                "                stream = streams.setdefault(event[\"stream\"], len(streams))\n                \
                 out.write(f\"+{event['size']}@{stream}\\n\" if stream else f\"+{event['size']}\\n\")\n",
            )
    }

    /// What the loss calls. Evaluations need no wrapper, which would wait for the backward pass of a forward pass with a graph.
    pub(super) fn called_model(&self) -> &'static str {
        let evaluates = self.config.evaluation.is_some();
        match coverage::is_distributed(self.config) && !coverage::is_fully_sharded(self.config) {
            true if evaluates => "(self.ddp if self.model.training else self.model)",
            true => "self.ddp",
            false => "self.model",
        }
    }

    /// The main program: the first rank prints.
    pub(super) fn main_of_ranks(&self, main: &str) -> String {
        if self.config.ranks() == 1 {
            return main.to_owned();
        }
        let start = "    run = Run(arguments.device, arguments.dump)\n";
        let group = "    if on_card:\n        torch.cuda.set_device(LOCAL_RANK)\n    \
                     torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\" if on_card else \"gloo\")\n";
        let end = "    os._exit(0)";
        let wait = "    torch.distributed.barrier()  # The others may still need this process.\n    \
                    torch.distributed.destroy_process_group()\n";
        main.replace("def main():", &format!("{SUM_OF_RANKS}def main():"))
            .replace(start, &format!("{group}{start}"))
            .replace("run.step(step)", "sum_of_ranks(run.step(step))")
            .replace(end, &format!("{wait}{end}"))
            .replace("        print(", "        if RANK == 0:\n            print(")
            .replace("if arguments.requests:", "if arguments.requests and RANK == 0:")
    }
}
