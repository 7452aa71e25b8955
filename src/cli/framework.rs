//! `--as`: the program whose memory is shown.

use super::failure::Failure;
use plan::Plan;
use spec::Framework;

#[derive(Debug, clap::Args)]
pub(super) struct FrameworkArgs {
    /// Whose memory to show: this program's, or PyTorch's for the same training on a known card. Default: `as` in [plan]
    #[arg(long = "as", value_enum, value_name = "PROGRAM")]
    shown: Option<Program>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Program {
    Runner,
    Pytorch,
}

impl FrameworkArgs {
    pub(super) fn framework(&self) -> Option<Framework> {
        self.shown.map(|program| match program {
            Program::Runner => Framework::Runner,
            Program::Pytorch => Framework::Pytorch,
        })
    }
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
    Ok((first.keys.framework == Framework::Pytorch).then(|| first.keys.torch_program()))
}
