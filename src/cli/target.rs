//! `--target`: another machine, from a target file or a known card's name.

use std::path::Path;

use super::failure::Failure;
use super::output;
use device::{DeviceKind, Figures, KnownCard};
use spec::{Described, HostRates, read_target};

/// Finds the known card of that name, else reads the target from a file.
///
/// # Errors
/// Neither exists, or the file is invalid.
pub(super) fn find(written: &Path) -> Result<Described, Failure> {
    let card = written.to_str().and_then(KnownCard::find);
    match card {
        Some(card) => {
            if written.exists() {
                let name = written.display();
                output::note(&format!(
                    "`{name}` is a known card; to read the file of that name, write ./{name}"
                ));
            }
            Ok(Described { target: card.target(), host: HostRates::default(), filled_in: vec![] })
        }
        _ if written.exists() => read_target(written).map_err(Failure::input),
        _ => Err(neither(written)),
    }
}

fn neither(written: &Path) -> Failure {
    let near: Vec<String> =
        KnownCard::near(&written.to_string_lossy()).iter().map(|word| format!("`{word}`")).collect();
    let help = match near.as_slice() {
        [] => String::new(),
        [one] => format!("did you mean {one}? "),
        [first @ .., last] => format!("did you mean {} or {last}? ", first.join(", ")),
    };
    Failure::input(format!(
        "there is no target file {}, and no card is known by that name\n = help: {help}`runner devices --targets` lists \
         the cards that are known",
        written.display()
    ))
}

/// The defaults and assumptions for keys that a target file leaves out.
pub(super) fn notes(described: &Described) -> Vec<String> {
    let kind = match described.target.kind {
        DeviceKind::Cpu => "processor",
        DeviceKind::Cuda => "card",
    };
    let is_assumed = |key: &str| key == "context" && described.target.figures == Figures::Assumed;
    let said = |assumed: bool| {
        let keys = described.filled_in.iter().filter(move |(key, _)| is_assumed(key) == assumed);
        keys.map(|(key, bytes)| format!("{key} = {}", bytes.exact())).collect::<Vec<_>>().join(", ")
    };
    let [usual, assumed] = [false, true].map(said);
    let usual = (!usual.is_empty()).then(|| format!("defaults of every {kind}, not in its file: {usual}"));
    usual.into_iter().chain((!assumed.is_empty()).then(|| format!("assumed: {assumed}"))).collect()
}
