

class Steps(TrainerCallback):
    """Has the last two steps evaluated, and prints a line for each step when the next one begins: its peak includes its
    evaluation and the next batches."""

    def __init__(self, requests):
        self.requests, self.line = requests, None

    def on_step_begin(self, args, state, control, **kwargs):
        self.end_step()
        self.line = {"step": state.global_step + 1}
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = EVALUATED > 0 and EVALUATES

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.line and "loss" in logs:
            self.line["loss"] = logs["loss"]

    def on_epoch_end(self, args, state, control, **kwargs):
        self.end_step()
        if self.requests:
            write_requests(self.requests)

    def end_step(self):
        if self.line is None:
            return
        if torch.cuda.is_available():
            self.line["allocated_bytes"] = torch.cuda.max_memory_allocated()
            self.line["reserved_bytes"] = torch.cuda.max_memory_reserved()
            if self.line["step"] <= len(PREDICTED):
                predicted = PREDICTED[self.line["step"] - 1]
                self.line["predicted_allocated_bytes"], self.line["predicted_reserved_bytes"] = predicted
        print(json.dumps(self.line), flush=True)
        self.line = None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dump", help="folder of `runner sweep --dump`: the batches")
    parser.add_argument("--requests", help="write the requests and releases of device memory to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    gc.disable()  # Only references decide when memory is released.
    if arguments.requests:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=10_000_000)
    # The workspace of cuDNN's attention is not predicted.
    torch.backends.cuda.enable_cudnn_sdp(False)
    run = Run(arguments.device, arguments.dump)
    run.trainer.add_callback(Steps(arguments.requests))
    run.trainer.train()
    os._exit(0)  # Without a card, autograd's threads do not always end.


main()
