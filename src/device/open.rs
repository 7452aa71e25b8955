//! Detects devices and opens them.

use std::io;
use std::str::FromStr;

use super::probe::{self, ProbeError};
use super::{
    CpuDevice, CudaDevice, Device, DeviceError, DeviceKind, Limits, RankGroup, Target, Unavailable,
    cpu_target, equip,
};
use base::units::Bytes;

/// The requested device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device if it is usable, otherwise the CPU.
    #[default]
    Auto,
    Cpu,
    /// The CUDA device with this ordinal, or the first.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// The card's ordinal; 0 by default. Not part of a target: the same card in another slot gives the same results.
    pub fn ordinal(self) -> usize {
        match self {
            DeviceChoice::Cuda(Some(ordinal)) => ordinal,
            DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(None) => 0,
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let numbered = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (text, numbered) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(None)),
            (_, Some(ordinal)) => Ok(DeviceChoice::Cuda(Some(ordinal))),
            _ => Err(format!("`{text}` is not a device; use auto, cpu, cuda, or cuda:1 for the second card")),
        }
    }
}

/// Why the requested device has no target.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("{0}; `plan --target` predicts for an absent card (`devices --targets` lists some)")]
    Unavailable(#[from] Unavailable),
    #[error(transparent)]
    FieldNames(#[from] ProbeError),
    #[error("the memory size of this machine is unknown (no /proc/meminfo): set a limit with `--memory`")]
    UnknownMemory,
    #[error(transparent)]
    UnknownProcessor(#[from] io::Error),
}

/// A detected device.
#[derive(Clone, Debug)]
pub struct Detected {
    /// `None` for the CPU, whose target is built when its memory is known.
    card: Option<Target>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
}

impl Detected {
    /// The device as a target, with its own memory or the requested limits.
    ///
    /// # Errors
    /// `UnknownMemory`, `UnknownProcessor`.
    pub fn target(&self, limits: Limits) -> Result<Target, DetectError> {
        let target = match &self.card {
            None => cpu_target(limits.memory)?.ok_or(DetectError::UnknownMemory)?,
            Some(card) => card.clone(),
        };
        Ok(target.limited_to(limits))
    }
}

/// Finds the requested device. A child process measures the size of a card's context: this process creates none.
///
/// # Errors
/// The device is unavailable: a requested card is never replaced. `auto` falls back to the CPU, with a note if there is
/// an unusable card.
pub fn find(choice: DeviceChoice) -> Result<Detected, DetectError> {
    let processor = |notes| Ok(Detected { card: None, notes });
    match (choice, choice.ordinal()) {
        (DeviceChoice::Cpu, _) => processor(Vec::new()),
        (DeviceChoice::Cuda(_), ordinal) => detect_card(ordinal),
        (DeviceChoice::Auto, ordinal) => match detect_card(ordinal) {
            Ok(detected) => Ok(detected),
            Err(DetectError::Unavailable(reason)) if reason.is_absence() => processor(Vec::new()),
            Err(DetectError::Unavailable(reason)) => processor(vec![skipped_card_note(&reason)]),
            Err(reason) => processor(vec![skipped_card_note(&reason)]),
        },
    }
}

/// The requested device as a target, with its own memory or the requested limit.
///
/// # Errors
/// As `find` and [`Detected::target`].
pub fn detect(choice: DeviceChoice, memory: Option<Bytes>) -> Result<Target, DetectError> {
    find(choice)?.target(Limits { memory, ..Limits::default() })
}

fn skipped_card_note(reason: &dyn std::fmt::Display) -> String {
    format!("the CUDA device is not used: {reason}")
}

fn detect_card(ordinal: usize) -> Result<Detected, DetectError> {
    let equipment = equip(ordinal)?;
    let probed = probe::in_child(Some(ordinal), false)?;
    Ok(Detected { card: Some(equipment.target(Bytes(probed.context_bytes))), notes: probed.notes })
}

/// Opens the device of a target; with several cards, the first.
///
/// # Errors
/// The target is another machine's, or no thread can be started.
pub fn open(target: &Target) -> Result<Box<dyn Device>, DeviceError> {
    open_card(target, 0)
}

/// Opens the device of a target; with several cards, the one with this ordinal.
///
/// # Errors
/// As `open`.
pub fn open_card(target: &Target, ordinal: usize) -> Result<Box<dyn Device>, DeviceError> {
    match target.kind {
        DeviceKind::Cpu => Ok(Box::new(CpuDevice::new(target.clone())?)),
        DeviceKind::Cuda => Ok(Box::new(CudaDevice::new(target.clone(), ordinal)?)),
    }
}

/// Opens the device of a rank, which exchanges numbers with those of the group; the card with this ordinal.
///
/// # Errors
/// As `open`; `Lost` if a rank does not arrive.
pub fn open_rank(target: &Target, ordinal: usize, group: RankGroup) -> Result<Box<dyn Device>, DeviceError> {
    match target.kind {
        DeviceKind::Cpu => Ok(Box::new(CpuDevice::with(target.clone(), None, Some(group))?)),
        DeviceKind::Cuda => Ok(Box::new(CudaDevice::of_rank(target.clone(), ordinal, group)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_choices_are_parsed() {
        let parse = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(parse("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parse("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(parse("cuda"), Ok(DeviceChoice::Cuda(None)));
        assert_eq!(parse("cuda:3"), Ok(DeviceChoice::Cuda(Some(3))));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda3", "CPU"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}` is not a device")), "{error}");
        }
    }
}
