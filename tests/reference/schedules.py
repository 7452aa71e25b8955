"""The learning rate schedule of a run, with PyTorch's own schedulers."""

from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from run_toml import CannotRepeat


def follow_schedule(run, optimizer):
    """Updates the optimizer's learning rate after each of its steps."""
    pieces = scheduled(run)
    if len(pieces) == 1 and pieces[0][1] is flat:
        return
    if run.loss_scale is not None:
        # A fused optimizer's step hook also runs for skipped steps.
        raise CannotRepeat("loss_scale with a schedule: PyTorch's schedule would count skipped steps")
    made = [make(optimizer) for _, make in pieces]
    scheduler = SequentialLR(optimizer, made, [begin for begin, _ in pieces[1:]]) if made[1:] else made[0]
    optimizer.register_step_post_hook(lambda *_: scheduler.step())


def flat(optimizer):
    return ConstantLR(optimizer, factor=1.0, total_iters=0)


def scheduled(run):
    """The phases of the schedule: the step at which each begins, and the function that makes its scheduler."""
    kind, keys = run.schedule
    warmup = keys["warmup"]

    def rising(optimizer):
        return LinearLR(optimizer, start_factor=1 / warmup, end_factor=1.0, total_iters=warmup - 1)

    begun = [(0, rising)] if warmup > 1 else []
    at = warmup if begun else 0
    if kind == "constant":
        return [*begun, (at, flat)]
    steps, floor = run.schedule_steps, keys["floor"]
    falls_from = steps - keys["decay"] if kind == "warmup_stable_decay" else warmup

    def falling(optimizer):
        if kind != "cosine":
            return LinearLR(optimizer, start_factor=1.0, end_factor=floor, total_iters=steps - falls_from)
        # PyTorch's scheduler would rise again.
        if run.steps > steps:
            raise CannotRepeat("schedule.cosine: the run has steps after the end of the schedule")
        if floor > 0 and any("lr" in group for group in run.groups):
            raise CannotRepeat("schedule.cosine: floor with groups that have learning rates of their own")
        return CosineAnnealingLR(optimizer, T_max=steps - falls_from, eta_min=floor * run.update["lr"])

    if falls_from > at:
        begun, at = [*begun, (at, flat)], falls_from
    return [*begun, (at, falling)]
