//! Which device there is, and one to work with.

use std::io;
use std::str::FromStr;

use super::probe::{self, ProbeError};
use super::{
    CpuDevice, CudaDevice, Device, DeviceError, DeviceKind, Limits, Target, Unavailable, cpu_target, equip,
};
use base::units::Bytes;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device, if it and all it needs are there, the CPU otherwise.
    #[default]
    Auto,
    Cpu,
    /// The CUDA device of an ordinal, or the first.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// Which of the cards it is, if it is one. Not part of a target: the same card in another slot gives the same
    /// results.
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

/// Why there is no target for what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("{0}; `plan --target` predicts for a card that is not here (`devices --targets` lists some)")]
    Unavailable(#[from] Unavailable),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("nothing says how much memory this machine has (no /proc/meminfo): name a limit with `--memory`")]
    UnknownMemory,
    #[error(transparent)]
    UnknownProcessor(#[from] io::Error),
}

/// The device that was found.
#[derive(Clone, Debug)]
pub struct Detected {
    /// `None` for the processor, whose target is made when its memory is known.
    card: Option<Target>,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
}

impl Detected {
    /// As a target, with its own memory or the limits that were asked for.
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

/// Finds the device that was asked for. What a card takes for itself is measured in a process of its own: this one
/// makes no context.
///
/// # Errors
/// The device is not to be had: who asked for a card gets no other. `auto` passes over a card that cannot be used,
/// and notes why, unless there is none at all.
pub fn find(choice: DeviceChoice) -> Result<Detected, DetectError> {
    let processor = |notes| Ok(Detected { card: None, notes });
    match (choice, choice.ordinal()) {
        (DeviceChoice::Cpu, _) => processor(Vec::new()),
        (DeviceChoice::Cuda(_), ordinal) => detect_card(ordinal),
        (DeviceChoice::Auto, ordinal) => match detect_card(ordinal) {
            Ok(detected) => Ok(detected),
            Err(DetectError::Unavailable(reason)) if reason.is_absence() => processor(Vec::new()),
            Err(DetectError::Unavailable(reason)) => processor(vec![passed_over(&reason)]),
            Err(reason) => processor(vec![passed_over(&reason)]),
        },
    }
}

/// What was asked for as a target, with its own memory or the limit that was asked for.
///
/// # Errors
/// As `find`, and as those of [`Detected::target`].
pub fn detect(choice: DeviceChoice, memory: Option<Bytes>) -> Result<Target, DetectError> {
    find(choice)?.target(Limits { memory, ..Limits::default() })
}

fn passed_over(reason: &dyn std::fmt::Display) -> String {
    format!("the CUDA device is not used: {reason}")
}

fn detect_card(ordinal: usize) -> Result<Detected, DetectError> {
    let equipment = equip(ordinal)?;
    let probed = probe::in_child(Some(ordinal), false)?;
    Ok(Detected { card: Some(equipment.target(Bytes(probed.context_bytes))), notes: probed.notes })
}

/// The device of a target; of several cards, the first.
///
/// # Errors
/// The target is not of this machine, or the system gives no threads.
pub fn open(target: &Target) -> Result<Box<dyn Device>, DeviceError> {
    open_card(target, 0)
}

/// The device of a target; of several cards, that of an ordinal.
///
/// # Errors
/// As `open`.
pub fn open_card(target: &Target, ordinal: usize) -> Result<Box<dyn Device>, DeviceError> {
    match target.kind {
        DeviceKind::Cpu => Ok(Box::new(CpuDevice::new(target.clone())?)),
        DeviceKind::Cuda => Ok(Box::new(CudaDevice::new(target.clone(), ordinal)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
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
