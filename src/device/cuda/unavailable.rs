//! Why a card cannot be used: one line each, with advice.

use std::fmt;

/// Why there is no usable CUDA device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unavailable {
    #[error(transparent)]
    Missing(#[from] MissingLibrary),
    #[error("the CUDA driver ({driver}) finds no device{}", hidden(.visible.as_deref()))]
    NoDevice {
        driver: Version,
        /// `CUDA_VISIBLE_DEVICES`, if it is set.
        visible: Option<String>,
    },
    #[error("there is no cuda:{asked}; there are: {}", .found.join(", "))]
    NoSuchDevice { asked: usize, found: Vec<String> },
    #[error(
        "parallel.data = {ranks} needs {ranks} cards from cuda:{first} on; there {} {}: {}; use parallel.data = {}, or \
         `--device cpu`",
        if .found.len() == 1 { "is" } else { "are" }, .found.len(), .found.join(", "),
        .found.len().saturating_sub(*first).max(1)
    )]
    TooFewCards { ranks: usize, first: usize, found: Vec<String> },
    #[error("the {ranks} ranks of parallel.data need cards of one kind; there are: {}", .found.join(", "))]
    MixedCards { ranks: usize, found: Vec<String> },
    #[error(
        "the driver is too old: it supports CUDA {found}, {by} needs {needed} or newer; update the driver"
    )]
    OldDriver { found: Version, needed: Version, by: String },
    #[error("{card} has compute capability {capability}, this program needs 8.0 or newer")]
    OldCard { card: String, capability: Version },
    #[error(
        "NVRTC {nvrtc} cannot compile for {card} of compute capability {capability}; install a newer NVRTC"
    )]
    UnknownCard { card: String, capability: Version, nvrtc: Version },
    #[error("{card} is busy: another process uses it exclusively ({name}, {code})")]
    Busy { card: String, name: String, code: u32 },
    #[error("{card} has no memory left for a context: other processes use it")]
    Full { card: String },
    #[error("NVRTC cannot compile {file} for {architecture}:\n{log}")]
    Kernel { file: &'static str, architecture: String, log: String },
    #[error(
        "{nvrtc} cannot compile without {file}, and {why}; install NVRTC again, or add the folder of that file to \
         LD_LIBRARY_PATH"
    )]
    Builtins { nvrtc: String, file: String, why: String },
    #[error("{nvrtc} does not compile: {why}; `pip install nvidia-cuda-nvrtc` installs another version")]
    Compiler { nvrtc: String, why: String },
    #[error("{} cannot be used: {call} failed: {name} ({code})", library(.call))]
    Call { call: String, name: String, code: u32 },
}

impl Unavailable {
    /// Whether there appears to be no card at all, rather than an unusable one.
    pub fn is_absence(&self) -> bool {
        match self {
            Unavailable::NoDevice { .. } => true,
            Unavailable::Missing(library) => library.driver,
            _ => false,
        }
    }
}

/// The library of a function, by the function's name.
fn library(call: &str) -> &'static str {
    match call {
        call if call.starts_with("nvrtc") => "NVRTC",
        call if call.starts_with("cublasLt") => "cuBLASLt",
        call if call.starts_with("nccl") => "NCCL",
        _ => "the CUDA driver",
    }
}

fn hidden(visible: Option<&str>) -> String {
    visible.map(|list| format!("; CUDA_VISIBLE_DEVICES is `{list}`")).unwrap_or_default()
}

/// A missing library.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what} is missing: searched for {} in {}; {advice}", .files.join(" and "), .places.join(", "))]
pub struct MissingLibrary {
    /// Its name and purpose.
    pub what: &'static str,
    pub files: Vec<String>,
    pub places: Vec<String>,
    /// How to get it.
    pub advice: &'static str,
    /// Whether it is the driver itself.
    pub driver: bool,
}

/// The version of CUDA or of a library, or a compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// From the driver's number: 12080 is 12.8.
    pub(super) fn of_cuda(number: u32) -> Version {
        Version { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
