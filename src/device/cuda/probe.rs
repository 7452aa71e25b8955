//! What there is to work with, found out without a context: the parent of runs must not have one.

use std::path::PathBuf;

use cudarc::cublaslt::sys as lt;

use super::compiler::Compiler;
use super::driver::{self, Card};
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};
use crate::device::{DeviceKind, Target};
use crate::units::Bytes;

/// The oldest cards with the instructions that kernels use: products of bf16, copies past the registers.
const OLDEST: Version = Version { major: 8, minor: 0 };

/// What the driver's allocator rounds requests to, and where values begin within one.
const PAGE: Bytes = Bytes(512);
const ALIGNMENT: Bytes = Bytes(super::ALIGNMENT);

/// Enough for the algorithms that the library likes best on every card so far.
const PRODUCT_WORKSPACE: Bytes = Bytes(32 << 20);

/// A card, and all that it takes to work with it.
#[derive(Clone, Debug)]
pub struct Equipment {
    pub card: Card,
    pub driver: Version,
    pub(super) compiler: Compiler,
    /// The library's version to the last digit: `13.1.0`.
    pub(super) cublaslt: String,
    /// What kernels are compiled for.
    pub(super) architecture: String,
}

/// A card of an ordinal with what it needs. No context is made.
///
/// # Errors
/// The first thing that is missing.
pub fn equip(ordinal: usize) -> Result<Equipment, Unavailable> {
    let driver = driver::begin()?;
    let mut cards = driver::cards(driver)?;
    if ordinal >= cards.len() {
        let found = cards.iter().map(Card::label).collect();
        return Err(Unavailable::NoSuchDevice { asked: ordinal, found });
    }
    let card = cards.swap_remove(ordinal);
    let capability = card.capability;
    if capability < OLDEST {
        return Err(Unavailable::OldCard { card: card.label(), capability });
    }
    let compiler = Compiler::load(driver.major)?;
    suits(driver, compiler.version, "NVRTC")?;
    suits(driver, load_cublaslt(driver.major)?, "cuBLASLt")?;
    let Some(architecture) = compiler.architecture(capability)? else {
        let nvrtc = compiler.version;
        return Err(Unavailable::UnknownCard { card: card.label(), capability, nvrtc });
    };
    Ok(Equipment { card, driver, compiler, cublaslt: cublaslt_version(), architecture })
}

/// A driver runs what libraries of its own major of CUDA made, or of an older one.
fn suits(driver: Version, library: Version, name: &str) -> Result<(), Unavailable> {
    if library.major <= driver.major {
        return Ok(());
    }
    let needed = Version { major: library.major, minor: 0 };
    Err(Unavailable::OldDriver { found: driver, needed, by: format!("{name} {library}") })
}

fn load_cublaslt(newest: u32) -> Result<Version, Unavailable> {
    libraries::load(Library::CublasLt, newest)?;
    let number = cublaslt_number();
    Ok(Version { major: number / 10_000, minor: number % 10_000 / 100 })
}

/// 130100 is 13.1.0. The library is loaded.
fn cublaslt_number() -> u32 {
    // SAFETY: by the caller's word.
    u32::try_from(unsafe { lt::cublasLtGetVersion() }).unwrap_or(u32::MAX)
}

/// To the last digit: algorithms are of one version and no other.
fn cublaslt_version() -> String {
    let number = cublaslt_number();
    format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
}

impl Equipment {
    /// The card as a target, with its own memory. The context's bytes are measured elsewhere.
    pub fn target(&self, context: Bytes) -> Target {
        Target {
            name: self.card.name.clone(),
            kind: DeviceKind::Cuda,
            capability: Some(self.card.capability.to_string()),
            threads: 1,
            alignment: ALIGNMENT,
            page: PAGE,
            product_workspace: PRODUCT_WORKSPACE,
            context,
            memory: Bytes(self.card.memory),
            limited: false,
        }
    }
}

/// A library that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub version: Version,
    /// Where it came from, where the system tells.
    pub path: Option<PathBuf>,
}

/// All that belongs to CUDA, whether there or missing.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub driver: Result<Found, Unavailable>,
    /// None without a driver.
    pub cards: Vec<Card>,
    pub nvrtc: Result<Found, Unavailable>,
    pub cublaslt: Result<Found, Unavailable>,
}

/// Looks at everything, and goes on where something is missing. No context is made.
pub fn inventory() -> Inventory {
    let driver = driver::begin();
    let newest = driver.as_ref().map_or(u32::MAX, |version| version.major);
    let (cards, driver) = match driver {
        Ok(version) => match driver::cards(version) {
            Ok(cards) => (cards, Ok(version)),
            Err(error) => (Vec::new(), Err(error)),
        },
        Err(error) => (Vec::new(), Err(error)),
    };
    let found = |version, library: Library| Found { version, path: library.path() };
    Inventory {
        driver: driver.map(|version| found(version, Library::Driver)),
        cards,
        nvrtc: Compiler::load(newest).map(|compiler| found(compiler.version, Library::Nvrtc)),
        cublaslt: load_cublaslt(newest).map(|version| found(version, Library::CublasLt)),
    }
}
