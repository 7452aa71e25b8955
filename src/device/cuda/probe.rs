//! Detects the card and libraries without creating a context: the parent process of runs must not have one.

use std::path::PathBuf;

use super::calls::cublaslt as lt;
use super::compiler::Compiler;
use super::driver::{self, Card};
use super::errors::CallError;
use super::libraries::{self, Library};
use super::unavailable::{Unavailable, Version};
use crate::{DeviceKind, Figures, Target};
use base::units::Bytes;

/// The minimum compute capability: kernels use bf16 tensor core instructions and asynchronous copies to shared memory.
pub const OLDEST: Version = Version { major: 8, minor: 0 };

/// Rounding of requests by the driver's allocator, and alignment of values within an allocation.
const PAGE: Bytes = Bytes(512);
const ALIGNMENT: Bytes = Bytes(super::ALIGNMENT);

/// Enough for the library's preferred algorithms on all current cards.
const PRODUCT_WORKSPACE: Bytes = Bytes(32 << 20);

/// A card and the libraries it needs.
#[derive(Clone, Debug)]
pub struct CudaStack {
    pub card: Card,
    pub driver: Version,
    pub(super) compiler: Compiler,
    /// The library's full version: `13.1.0`.
    pub(super) cublaslt: String,
    /// The architecture for which kernels are compiled.
    pub(super) architecture: String,
}

/// Finds the card with this ordinal and the libraries it needs. Creates no context.
///
/// # Errors
/// The first missing or unsuitable component.
pub fn equip(ordinal: usize) -> Result<CudaStack, Unavailable> {
    let driver = driver::initialise()?;
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
    check_major(driver, compiler.version, "NVRTC")?;
    let cublaslt = CublasLt::load(driver.major)?;
    check_major(driver, cublaslt.version(), "cuBLASLt")?;
    let Some(architecture) = compiler.architecture(capability)? else {
        let nvrtc = compiler.version;
        return Err(Unavailable::UnknownCard { card: card.label(), capability, nvrtc });
    };
    Ok(CudaStack { card, driver, compiler, cublaslt: cublaslt.full_version(), architecture })
}

/// Checks that a library's CUDA major version is not newer than the driver's.
fn check_major(driver: Version, library: Version, name: &str) -> Result<(), Unavailable> {
    if library.major <= driver.major {
        return Ok(());
    }
    let needed = Version { major: library.major, minor: 0 };
    Err(Unavailable::OldDriver { found: driver, needed, by: format!("{name} {library}") })
}

/// A version of cuBLASLt, as the library's number: 130100 is 13.1.0.
#[derive(Clone, Copy)]
struct CublasLt(u32);

impl CublasLt {
    /// Loads the library; if there are several, of a CUDA major version of at most `newest`.
    fn load(newest: u32) -> Result<CublasLt, Unavailable> {
        libraries::load(Library::CublasLt, newest)?;
        // SAFETY: the library is loaded.
        let number = unsafe { lt::cublasLtGetVersion() };
        let number = number.ok_or_else(|| CallError::missing_function("cublasLtGetVersion"))?;
        Ok(CublasLt(u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn version(self) -> Version {
        Version { major: self.0 / 10_000, minor: self.0 % 10_000 / 100 }
    }

    /// The full version: algorithms are valid for exactly one version.
    fn full_version(self) -> String {
        format!("{}.{}", self.version(), self.0 % 100)
    }
}

impl CudaStack {
    /// The card as a target, with its own memory. The caller measures the context size.
    pub fn target(&self, context: Bytes) -> Target {
        let Card { name, capability, memory, .. } = &self.card;
        target(name, Some(capability.to_string()), Bytes(*memory), context)
    }
}

/// A card, present or not, as a target. The remaining properties are the same for all cards.
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
        communicator: None,
        host_memory: None,
        figures: Figures::Measured,
        rank: 0,
    }
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub version: Version,
    /// Its path, if the system reports it.
    pub path: Option<PathBuf>,
}

/// All components of CUDA, present or missing.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub driver: Result<Found, Unavailable>,
    /// Empty without a driver.
    pub cards: Vec<Card>,
    pub nvrtc: Result<Found, Unavailable>,
    pub cublaslt: Result<Found, Unavailable>,
}

/// Detects all components, and continues if one is missing. Creates no context.
pub fn inventory() -> Inventory {
    let driver = driver::initialise();
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
        // An NVRTC that cannot compile is reported as missing.
        nvrtc: Compiler::load(newest).and_then(|compiler| {
            compiler.compile_trial()?;
            Ok(found(compiler.version, Library::Nvrtc))
        }),
        cublaslt: CublasLt::load(newest).map(|library| found(library.version(), Library::CublasLt)),
    }
}
