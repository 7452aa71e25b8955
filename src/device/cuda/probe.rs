//! What there is to work with, found out without a context: the parent of runs must not have one.

use std::path::PathBuf;

use super::calls::cublaslt as lt;
use super::compiler::Compiler;
use super::driver::{self, Card};
use super::errors::Failed;
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};
use crate::{DeviceKind, Figures, Target};
use base::units::Bytes;

/// The oldest cards with the instructions that kernels use: products of bf16, copies past the registers.
pub const OLDEST: Version = Version { major: 8, minor: 0 };

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
    let cublaslt = CublasLt::load(driver.major)?;
    suits(driver, cublaslt.version(), "cuBLASLt")?;
    let Some(architecture) = compiler.architecture(capability)? else {
        let nvrtc = compiler.version;
        return Err(Unavailable::UnknownCard { card: card.label(), capability, nvrtc });
    };
    Ok(Equipment { card, driver, compiler, cublaslt: cublaslt.to_the_last_digit(), architecture })
}

/// A driver runs what libraries of its own major of CUDA made, or of an older one.
fn suits(driver: Version, library: Version, name: &str) -> Result<(), Unavailable> {
    if library.major <= driver.major {
        return Ok(());
    }
    let needed = Version { major: library.major, minor: 0 };
    Err(Unavailable::OldDriver { found: driver, needed, by: format!("{name} {library}") })
}

/// A version of cuBLASLt as the library counts: 130100 is 13.1.0.
#[derive(Clone, Copy)]
struct CublasLt(u32);

impl CublasLt {
    /// Of no newer major of CUDA than `newest` where there is a choice.
    fn load(newest: u32) -> Result<CublasLt, Unavailable> {
        libraries::load(Library::CublasLt, newest)?;
        // SAFETY: the library is loaded.
        let number = unsafe { lt::cublasLtGetVersion() };
        let number = number.ok_or_else(|| Failed::absent("cublasLtGetVersion"))?;
        Ok(CublasLt(u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn version(self) -> Version {
        Version { major: self.0 / 10_000, minor: self.0 % 10_000 / 100 }
    }

    /// To the last digit: algorithms are of one version and no other.
    fn to_the_last_digit(self) -> String {
        format!("{}.{}", self.version(), self.0 % 100)
    }
}

impl Equipment {
    /// The card as a target, with its own memory. The context's bytes are measured elsewhere.
    pub fn target(&self, context: Bytes) -> Target {
        let Card { name, capability, memory, .. } = &self.card;
        target(name, Some(capability.to_string()), Bytes(*memory), context)
    }
}

/// A card as a target, here or not: what few know of cards is the same for all of them.
pub fn target(name: &str, capability: Option<String>, memory: Bytes, context: Bytes) -> Target {
    Target {
        name: name.to_owned(),
        kind: DeviceKind::Cuda,
        capability,
        threads: 1,
        alignment: ALIGNMENT,
        page: PAGE,
        product_workspace: PRODUCT_WORKSPACE,
        context,
        memory,
        limited: false,
        host_memory: None,
        figures: Figures::Measured,
        rank: crate::Rank::ALONE,
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
        // One that is there and does not compile is as good as missing.
        nvrtc: Compiler::load(newest).and_then(|compiler| {
            compiler.try_out()?;
            Ok(found(compiler.version, Library::Nvrtc))
        }),
        cublaslt: CublasLt::load(newest).map(|library| found(library.version(), Library::CublasLt)),
    }
}
