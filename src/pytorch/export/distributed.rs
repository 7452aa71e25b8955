//! The script of several ranks, each a process that `torchrun` starts.

use super::Script;
use crate::coverage;

impl Script<'_> {
    /// Whether backward passes of a step differ: the ranks sum gradients in the last one only.
    pub(super) fn has_no_sync(&self) -> bool {
        coverage::is_distributed(self.config) && self.config.micro_batches() > 1
    }

    pub(super) fn import_null_context(&self) -> &'static str {
        if self.has_no_sync() { "from contextlib import nullcontext\n" } else { "" }
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

    /// The number of samples, times the number of ranks: `DistributedDataParallel` averages gradients.
    pub(super) fn times_ranks(&self, samples: &str) -> String {
        match self.config.ranks() {
            1 => samples.to_owned(),
            _ => format!("{samples} * RANKS"),
        }
    }

    pub(super) fn wrap_model(&mut self) {
        self.line_if(
            coverage::is_distributed(self.config),
            "        self.ddp = nn.parallel.DistributedDataParallel(self.model, device_ids=[LOCAL_RANK] if device == \"cuda\" else None)",
        );
    }

    /// What the loss calls.
    pub(super) fn called_model(&self) -> &'static str {
        if coverage::is_distributed(self.config) { "self.ddp" } else { "self.model" }
    }

    /// The main program: the first rank prints.
    pub(super) fn main_of_ranks(&self, main: &str) -> String {
        if self.config.ranks() == 1 {
            return main.to_owned();
        }
        let start = "    run = Run(arguments.device, arguments.dump)\n";
        let group = "    if on_card:\n        torch.cuda.set_device(LOCAL_RANK)\n    \
                     torch.distributed.init_process_group(\"nccl\" if on_card else \"gloo\")\n";
        main.replace(start, &format!("{group}{start}"))
            .replace("        print(", "        if RANK == 0:\n            print(")
            .replace("if arguments.requests:", "if arguments.requests and RANK == 0:")
    }
}
