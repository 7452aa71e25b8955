//! `--as`: the program whose memory is shown.

use super::failure::Failure;
use super::inputs::InputArgs;
use device::{OLDEST_CARD, Target};
use plan::Plan;
use spec::{Framework, KeywordEnum as _, TorchProgram};

#[derive(Debug, clap::Args)]
pub(super) struct FrameworkArgs {
    /// Whose memory to show: this program's, or PyTorch's for the same training on a known card, with the model's class in
    /// transformers or its Trainer if named. Default: `as` in [plan]
    #[arg(long = "as", value_enum, value_name = "PROGRAM")]
    shown: Option<Program>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Program {
    Runner,
    Pytorch,
    Transformers,
    Trainer,
}

impl FrameworkArgs {
    pub(super) fn framework(&self) -> Option<Framework> {
        self.shown.map(|program| match program {
            Program::Runner => Framework::Runner,
            Program::Pytorch | Program::Transformers | Program::Trainer => Framework::Pytorch,
        })
    }

    /// Has a named program of the library replace that of [plan].
    pub(super) fn choose_program(&self, inputs: &mut InputArgs) {
        if let Some(program @ (TorchProgram::Transformers | TorchProgram::Trainer)) = self.program() {
            inputs.set(format!("plan.torch_program={}", program.keyword()));
        }
    }

    /// The named program of PyTorch.
    pub(super) fn program(&self) -> Option<TorchProgram> {
        match self.shown? {
            Program::Runner => None,
            Program::Pytorch => Some(TorchProgram::Modules),
            Program::Transformers => Some(TorchProgram::Transformers),
            Program::Trainer => Some(TorchProgram::Trainer),
        }
    }
}

/// The framework whose memory is shown for a target: the requested one, else the experiment's. Only PyTorch's memory is
/// shown for cards on which this program does not run.
///
/// # Errors
/// This program's memory was requested for such a card.
pub(super) fn shown_for(
    target: &Target,
    requested: Option<Framework>,
    of_experiment: Framework,
) -> Result<Framework, Failure> {
    match requested {
        Some(Framework::Runner) if target.is_too_old() => Err(Failure::input(format!(
            "`--as runner` has no figures for {}: {}\n = help: leave it out, or use `--as pytorch`",
            target.name,
            too_old(target)
        ))),
        None if target.is_too_old() => Ok(Framework::Pytorch),
        _ => Ok(requested.unwrap_or(of_experiment)),
    }
}

/// Why this program has no figures for a card.
pub(super) fn too_old(target: &Target) -> String {
    let capability = target.capability.as_deref().unwrap_or_default();
    format!("this program does not run on compute capability {capability}; it needs {OLDEST_CARD} or newer")
}

/// The name of PyTorch with the settings of its allocator, if the plans show its memory.
///
/// # Errors
/// The plans do not agree.
pub(super) fn pytorch(plans: &[Plan]) -> Result<Option<String>, Failure> {
    let Some(first) = plans.first() else { return Ok(None) };
    if let Some(other) = plans.iter().find(|plan| plan.keys != first.keys) {
        return Err(Failure::input(format!(
            "{} and {} have different [plan] tables\n = help: plan them one by one",
            first.file.display(),
            other.file.display()
        )));
    }
    Ok((first.keys.framework == Framework::Pytorch).then(|| first.keys.torch_program(None)))
}
