//! `devices`: lists this machine's devices with their rates, and missing libraries; lists known cards; writes target files.

pub(super) mod columns;
mod host;
mod known;
mod survey;
mod text;

use std::path::{Path, PathBuf};

use super::failure::{ExitStatus, Failure};
use super::{output, terminal};
use device::{DeviceChoice, DeviceKind, KnownCard, Limits};
use spec::NodeRates;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "target")]
    json: bool,
    /// List instead the cards that `plan --target` and `explain --target` accept by name
    #[arg(long, conflicts_with_all = ["json", "target"])]
    targets: bool,
    /// Write instead a device's target file, for `plan --target` on another machine; or print that of a card that
    /// `--targets` lists
    #[arg(long, value_name = "FILE|NAME")]
    target: Option<PathBuf>,
    /// Replace an existing target file
    #[arg(long, requires = "target")]
    overwrite: bool,
    /// The device to write the target file for
    #[arg(long, value_name = "DEVICE", default_value = "auto", requires = "target")]
    device: DeviceChoice,
}

pub(super) fn run(args: Args) -> Result<ExitStatus, Failure> {
    if args.targets {
        output::show(&known::text(terminal::text_width()))?;
        return Ok(ExitStatus::Complete);
    }
    if let Some(file) = &args.target {
        let text = file.to_str().unwrap_or_default();
        let meant = if file.extension().is_none() { KnownCard::meant(text) } else { Vec::new() };
        if let [card] = meant.as_slice() {
            let target = toml::to_string(&card.target()).map_err(Failure::machine)?;
            output::print(&(target + &plan::node_of_data_sheet(card).to_toml()))?;
            return Ok(ExitStatus::Complete);
        }
        check_new(file, args.overwrite)?;
        let found = device::find(args.device).map_err(Failure::input)?;
        let target = found.target(Limits::default()).map_err(Failure::input)?;
        let mut text = toml::to_string(&target).map_err(Failure::machine)?;
        if target.kind == DeviceKind::Cuda {
            let (rates, problems) = host::measure(args.device.ordinal());
            let cards = device::inventory().cards.iter().filter(|card| card.name == target.name).count();
            text += &NodeRates { cards: Some(cards).filter(|cards| *cards > 0), ..rates }.to_toml();
            problems.iter().for_each(|problem| output::note(problem));
        }
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
        output::show(&text::text(&survey, terminal::text_width()))?;
    }
    Ok(ExitStatus::Complete)
}

/// Fails if the file exists, or is named like a card that it would not describe.
fn check_new(file: &Path, overwrite: bool) -> Result<(), Failure> {
    let name = file.display();
    let near = file.to_str().map(KnownCard::near).unwrap_or_default();
    if file.extension().is_none() && !near.is_empty() {
        let near: Vec<String> = near.iter().map(|word| format!("`{word}`")).collect();
        return Err(Failure::input(format!(
            "no card is known as `{name}`\n = help: known cards with such a name: {}; to write a file about this \
             machine, use a name such as {name}.toml",
            near.join(", ")
        )));
    }
    if file.exists() && !overwrite {
        return Err(Failure::input(format!(
            "{name} exists\n = help: use another name, or `--overwrite` to replace it"
        )));
    }
    Ok(())
}
