//! `devices`: lists this machine's devices with their rates, and missing libraries; lists known cards; writes target files.

mod columns;
mod known;
mod survey;
mod text;

use std::path::PathBuf;

use super::failure::{ExitStatus, Failure};
use super::output;
use device::{DeviceChoice, Limits};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "target")]
    json: bool,
    /// List instead the cards that `plan --target` and `explain --target` accept by name
    #[arg(long, conflicts_with_all = ["json", "target"])]
    targets: bool,
    /// Write instead a device's target file, for `plan --target` on another machine
    #[arg(long, value_name = "FILE")]
    target: Option<PathBuf>,
    /// The device to write the target file for
    #[arg(long, value_name = "DEVICE", default_value = "auto", requires = "target")]
    device: DeviceChoice,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    if args.targets {
        output::print(&known::text())?;
        return Ok(ExitStatus::Complete);
    }
    if let Some(file) = &args.target {
        let found = device::find(args.device).map_err(Failure::input)?;
        let target = found.target(Limits::default()).map_err(Failure::input)?;
        let text = toml::to_string(&target).map_err(Failure::machine)?;
        std::fs::write(file, text)
            .map_err(|error| Failure::machine(format!("cannot write {}: {error}", file.display())))?;
        found.notes.iter().for_each(|note| output::note(note));
        output::say(&format!("wrote {}: {}, {}", file.display(), target.name, target.memory));
        return Ok(ExitStatus::Complete);
    }
    let survey = survey::survey();
    if args.json {
        let json = serde_json::to_string_pretty(&survey).map_err(Failure::machine)?;
        output::print(&format!("{json}\n"))?;
    } else {
        output::print(&text::text(&survey))?;
    }
    Ok(ExitStatus::Complete)
}
