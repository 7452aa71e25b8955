//! `--target`: another machine, from a target file or a known card's name.

use std::path::Path;

use super::failure::Failure;
use super::output;
use device::{DeviceKind, Figures, KnownCard};
use spec::{Described, NodeRates, read_target};

/// Finds the known card of that name, else reads the target from a file, else finds the card that a natural spelling of
/// its name means.
///
/// # Errors
/// None of them exists, several cards have the name, or the file is invalid.
pub(super) fn find(written: &Path) -> Result<Described, Failure> {
    let name = written.display();
    let text = written.to_str().unwrap_or_default();
    if let Some(card) = KnownCard::find(text) {
        if written.exists() {
            output::note(&format!("`{name}` is a known card; to read the file of that name, write ./{name}"));
        }
        return Ok(described(card));
    }
    if written.exists() {
        return read_target(written).map_err(Failure::input);
    }
    match KnownCard::meant(text).as_slice() {
        [card] => Ok(described(card)),
        several => Err(unclear(written, several)),
    }
}

/// What a list of targets calls it: a known card's name, else the file's.
pub(super) fn name(written: &Path) -> String {
    let text = written.to_str().unwrap_or_default();
    let card = KnownCard::find(text).or_else(|| match KnownCard::meant(text).as_slice() {
        [card] if !written.exists() => Some(card),
        _ => None,
    });
    let stem = || written.file_stem().unwrap_or(written.as_os_str()).to_string_lossy().into_owned();
    card.map_or_else(stem, |card| card.word.to_owned())
}

fn described(card: &KnownCard) -> Described {
    Described { target: card.target(), node: NodeRates::default(), filled_in: vec![] }
}

/// The error of a name that no card has, or several.
fn unclear(written: &Path, meant: &[&KnownCard]) -> Failure {
    let name = written.display();
    let near = KnownCard::near(&written.to_string_lossy());
    let near = near.into_iter().chain(meant.iter().map(|card| card.word));
    let mut words: Vec<String> = Vec::new();
    for word in near.map(|word| format!("`{word}`")) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let help = match words.as_slice() {
        [] => String::new(),
        [one] => format!("did you mean {one}? "),
        [first @ .., last] => format!("did you mean {} or {last}? ", first.join(", ")),
    };
    let problem = match meant {
        [] => format!("there is no target file {name}, and no card is known by that name"),
        _ => format!("several cards are known as `{name}`"),
    };
    Failure::input(format!(
        "{problem}\n = help: {help}`runner devices --targets` lists the cards that are known"
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
