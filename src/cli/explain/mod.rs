//! `explain`: the values live at a run's peak, changes that lower the peak and, if measured, where time goes.

mod again;
mod listing;
mod measured;
mod peak;
mod profile;
mod pytorch;
mod remedy;
mod snapshot;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::framework::FrameworkArgs;
use super::inputs::InputArgs;
use super::run_selector::{NumberedRun, choose, is_named, title};
use super::{messages, output, torch};
use base::units::Bytes;
use compile::Program;
use memory::{Prediction, RunSchedule, predict};
use plan::compile_verified;
use plan::{PlannedRun, Purpose};
use spec::Framework;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    framework: FrameworkArgs,
    /// The run: a strategy's name, a number of `sweep --dry-run`, or the beginning of an id
    #[arg(long, value_name = "NAME|N|ID")]
    run: Option<String>,
    /// Also list the program: every operation, with the live bytes after it
    #[arg(long)]
    operations: bool,
    /// Compare PyTorch's memory snapshot (torch.cuda.memory._dump_snapshot) with its predicted requests
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shown", "operations"])]
    snapshot: Option<PathBuf>,
    /// Predict for another machine: a card that `devices --targets` lists, or a target file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    target: Option<PathBuf>,
    /// Results folder, for measured times
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
}

pub(super) fn run(mut args: Args) -> Result<ExitStatus, Failure> {
    args.framework.choose_program(&mut args.inputs);
    let which = args.run.as_deref();
    let inputs = args.inputs.read_shown(
        Purpose::Predict,
        &args.out,
        args.target.as_deref(),
        // A snapshot is PyTorch's.
        args.snapshot.as_ref().map(|_| Framework::Pytorch).or_else(|| args.framework.framework()),
        |point| is_named(which, point),
    )?;
    let NumberedRun { plan, run, index, .. } = choose(&inputs.plans, which)?;
    if args.target.is_some() {
        messages::devices(&inputs, false);
    }
    messages::absent(&inputs, false);
    let config =
        run.config.as_ref().map_err(|reason| Failure::input(format!("the run is skipped: {reason}")))?;
    let target = &plan.target;
    if let Some(caution) = messages::communicator(target).filter(|_| config.ranks() > 1) {
        output::say(&caution);
    }
    let environment = |name: &str| std::env::var(name).ok();
    let know = |config: &mut spec::RunConfig| inputs.data.describe(config);
    let (settings, has_bf16) = (args.inputs.settings(), !target.is_too_old());
    let changes = plan::changes(&plan.file, settings, &environment, index, has_bf16, &know);
    if plan.keys.framework == Framework::Pytorch {
        if args.operations {
            return Err(Failure::input(
                "`--operations` lists this program's operations, not PyTorch's\n = help: add `--as runner`",
            ));
        }
        let text = match &args.snapshot {
            Some(file) => snapshot::text(plan, run, config, file)?,
            None => pytorch::text(plan, run, config, changes)?,
        };
        output::show(&text)?;
        return Ok(ExitStatus::Complete);
    }
    let program = compile_verified(config, target).map_err(Failure::machine)?;
    let prediction = predict(&program, &target.of_rank(config.ranks()), RunSchedule::of(config));
    let remedies = plan::remedies(config, changes, target).map_err(Failure::machine)?;
    let mut parts = vec![
        heading(run, &program, &prediction),
        peak::text(&program, target, prediction.device.steady_peak()),
        remedy::text(&remedies, &prediction),
    ];
    let torch_program = plan.keys.torch_program(Some(config));
    parts.extend(run.torch.as_ref().map(|forecast| torch::sentence(forecast, &torch_program) + "\n"));
    parts.extend(args.operations.then(|| listing::listing(&program, target, &prediction)));
    parts.push(measured::text(&args.out, plan, run)?);
    output::show(&parts.join("\n"))?;
    Ok(ExitStatus::Complete)
}

/// Host memory below this does not come from a strategy.
const SMALL: u64 = 1 << 20;

fn micro_batches(count: usize) -> String {
    format!("{count} micro-batch{}", if count == 1 { "" } else { "es" })
}

/// The run and its prediction.
fn heading(run: &PlannedRun, program: &Program, prediction: &Prediction) -> String {
    // Without its data a run has no id.
    let id = if run.id.is_empty() { String::new() } else { format!(" {}", run.id) };
    let out_of_memory = match &prediction.out_of_memory {
        Some(found) => {
            let step = found.step.map(|step| format!(" in step {step}")).unwrap_or_default();
            format!("\nout of memory{step}: no room for {} of {}", found.value, found.operation)
        }
        None => String::new(),
    };
    let trained = match prediction.trainable_parameters {
        trained if trained < prediction.parameters => format!(" ({trained} trained)"),
        _ => String::new(),
    };
    // Less is that of the batch, not of a strategy.
    let small = SMALL.max(prediction.device.steady_peak().live.total() / 10);
    let host = match prediction.host.reserved_peak {
        host if host > small => format!("; host {}", Bytes(host)),
        _ => String::new(),
    };
    format!(
        "run{id}: {}\n\
         {} parameters{trained}, {}, {:.2} GFLOP per step ({:.2} with recomputation and updates)\n\
         predicted peak {} live, {} reserved; start-up {}; first step {}{host}{out_of_memory}\n{}",
        title(run),
        prediction.parameters,
        micro_batches(program.micro_batches()),
        prediction.model_flops as f64 / 1e9,
        prediction.hardware_flops as f64 / 1e9,
        Bytes(prediction.device.steady_peak().live.total()),
        Bytes(prediction.device.reserved_peak),
        Bytes(prediction.device.phase_peaks[0].live.total()),
        Bytes(prediction.first_step_peak),
        again::lines(program),
    )
}
