def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dump", help="folder of `runner sweep --dump`: initial parameters and batches")
    parser.add_argument("--requests", help="write the requests and releases of device memory to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    gc.disable()  # Only references decide when memory is released.
    on_card = arguments.device == "cuda"
    if arguments.requests:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=10_000_000)
    # The workspace of cuDNN's attention is not predicted.
    torch.backends.cuda.enable_cudnn_sdp(False)
    run = Run(arguments.device, arguments.dump)
    for step in range(arguments.steps):
        if on_card:
            torch.cuda.reset_peak_memory_stats()
        line = {"step": step + 1, "loss": run.step(step)}
        if on_card:
            line["allocated_bytes"] = torch.cuda.max_memory_allocated()
            line["reserved_bytes"] = torch.cuda.max_memory_reserved()
            if step < len(PREDICTED):
                line["predicted_allocated_bytes"], line["predicted_reserved_bytes"] = PREDICTED[step]
        print(json.dumps(line), flush=True)
    if arguments.requests:
        write_requests(arguments.requests)
    os._exit(0)  # Without a card, autograd's threads do not always end.


main()
