//! Compiles kernels with NVRTC to the machine code of one architecture.

use std::ffi::{CStr, CString};

use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::calls::{Status, nvrtc as sys};
use super::errors::CallError;
use super::libraries::{self, Library};
use super::sources::{HEADERS, KernelSource, SOURCES, with_headers};
use super::unavailable::{Unavailable, Version};
use base::parallel;

/// No `--use_fast_math`: kernels call fast functions explicitly where less accuracy suffices.
const OPTIONS: [&str; 2] = ["--std=c++17", "-default-device"];

/// NVRTC's status if it cannot load its builtins.
const BUILTINS_MISSING: Status = 7;

/// A minimal kernel, to test whether NVRTC compiles.
const TRIAL: KernelSource =
    KernelSource { file: "trial.cu", text: "extern \"C\" __global__ void trial(float *x) { *x = 1; }" };

/// NVRTC, loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiler {
    pub(super) version: Version,
}

impl Compiler {
    /// Loads NVRTC; if there are several, of a CUDA major version of at most `newest`.
    ///
    /// # Errors
    /// It is missing.
    pub(super) fn load(newest: u32) -> Result<Compiler, Unavailable> {
        libraries::load(Library::Nvrtc, newest)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is loaded.
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        let version = Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        // If they cannot be loaded, compilation reports it, unless NVRTC finds them elsewhere.
        let _ = libraries::load_builtins(version);
        Ok(Compiler { version })
    }

    /// Compiles a one-line kernel.
    ///
    /// # Errors
    /// NVRTC cannot compile it. A one-line message.
    pub(super) fn compile_trial(self) -> Result<(), Unavailable> {
        let newest = self.architectures()?.into_iter().max().unwrap_or_default();
        match self.compile(&TRIAL, &format!("sm_{newest}"), &[]) {
            Ok(_) => Ok(()),
            Err(Unavailable::Kernel { log, .. }) => {
                let why = log.split_whitespace().collect::<Vec<_>>().join(" ");
                Err(Unavailable::Compiler { nvrtc: self.label(), why })
            }
            Err(error) => Err(error),
        }
    }

    /// NVRTC's name in messages.
    fn label(self) -> String {
        let path = Library::Nvrtc.path().map(|path| format!(" ({})", path.display()));
        format!("NVRTC {}{}", self.version, path.unwrap_or_default())
    }

    /// The architecture to compile for, such as `sm_90`: a card runs code of its own major version and of any minor
    /// version up to its own. `None` if this NVRTC is older than the card.
    pub(super) fn architecture(self, capability: Version) -> Result<Option<String>, Unavailable> {
        let numbers = self.architectures()?.into_iter();
        Ok(newest_supported(numbers, capability).map(|number| format!("sm_{number}")))
    }

    /// All supported architectures: 90 is `sm_90`.
    fn architectures(self) -> Result<Vec<u32>, CallError> {
        let mut count = 0;
        // SAFETY: the library is loaded.
        check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
        let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `numbers` has room for `count` numbers.
        check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
        Ok(numbers.into_iter().map(i32::unsigned_abs).collect())
    }

    /// The machine code of all sources, in their order: cached, or compiled.
    ///
    /// # Errors
    /// A source cannot be compiled.
    pub(super) fn cubins(self, architecture: &str, cache: &Cache) -> Result<Vec<Vec<u8>>, Unavailable> {
        let cubin = |source: &KernelSource| {
            let key = digest(source, architecture, self.version);
            if let Some(cubin) = cache.get(&key) {
                return Ok(cubin);
            }
            let cubin = self.compile(source, architecture, &[])?.cubin;
            cache.put(&key, &cubin);
            Ok(cubin)
        };
        parallel::map(SOURCES.iter().collect(), cubin).into_iter().collect()
    }

    /// Compiles a source for an architecture.
    ///
    /// # Errors
    /// `Kernel`, with the compiler's log, or `Builtins`.
    pub(super) fn compile(
        self,
        source: &KernelSource,
        architecture: &str,
        extra_options: &[&str],
    ) -> Result<Compiled, Unavailable> {
        let program = NvrtcProgram::new(source)?;
        let architecture_option = format!("--gpu-architecture={architecture}");
        let options: Vec<&str> =
            OPTIONS.iter().chain(extra_options).copied().chain([architecture_option.as_str()]).collect();
        let Err(failed) = program.compile(&options) else {
            return Ok(Compiled { cubin: program.cubin()?, log: program.log()? });
        };
        if failed.code == BUILTINS_MISSING
            && let Err(why) = libraries::load_builtins(self.version)
        {
            let file = libraries::builtins(self.version);
            return Err(Unavailable::Builtins { nvrtc: self.label(), file, why });
        }
        let log = program.log().unwrap_or_default();
        // The log contains file and line. Without a log, the message is the status.
        let log = if log.trim().is_empty() { format!("{} ({})", failed.name, failed.code) } else { log };
        let log = log.trim_end().to_owned();
        Err(Unavailable::Kernel { file: source.file, architecture: architecture.to_owned(), log })
    }
}

/// Identifies compiled code by all of its inputs: the source, the headers that it includes, the options, the
/// architecture and the version of NVRTC.
pub(super) fn digest(source: &KernelSource, architecture: &str, version: Version) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    for part in with_headers(source) {
        add(part.file);
        add(part.text);
    }
    OPTIONS.iter().for_each(|option| add(option));
    add(architecture);
    add(&version.to_string());
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn newest_supported(numbers: impl Iterator<Item = u32>, capability: Version) -> Option<u32> {
    let own = capability.major * 10 + capability.minor;
    numbers.filter(|number| number / 10 == capability.major && *number <= own).max()
}

/// The result of a compilation.
pub(super) struct Compiled {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// An NVRTC program, destroyed when it is dropped.
struct NvrtcProgram {
    handle: sys::nvrtcProgram,
    /// The source, its headers and their names: the handle points to them.
    _strings: Vec<CString>,
}

impl NvrtcProgram {
    fn new(source: &KernelSource) -> Result<NvrtcProgram, CallError> {
        let text = c_string(source.text);
        let name = c_string(source.file);
        let texts: Vec<CString> = HEADERS.iter().map(|header| c_string(header.text)).collect();
        let names: Vec<CString> = HEADERS.iter().map(|header| c_string(header.file)).collect();
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the strings outlive the program; both header arrays have the declared length.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &mut handle,
                text.as_ptr(),
                name.as_ptr(),
                HEADERS.len() as i32,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        check("nvrtcCreateProgram", status)?;
        // Moving a `CString` does not move its characters.
        let _strings = texts.into_iter().chain(names).chain([text, name]).collect();
        Ok(NvrtcProgram { handle, _strings })
    }

    fn compile(&self, options: &[&str]) -> Result<(), CallError> {
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is live; the option array has the declared length.
        let status =
            unsafe { sys::nvrtcCompileProgram(self.handle, pointers.len() as i32, pointers.as_ptr()) };
        check("nvrtcCompileProgram", status)
    }

    fn log(&self) -> Result<String, CallError> {
        let mut size = 0;
        // SAFETY: the program is live.
        check("nvrtcGetProgramLogSize", unsafe { sys::nvrtcGetProgramLogSize(self.handle, &mut size) })?;
        let mut log = vec![0_u8; size.max(1)];
        // SAFETY: the buffer has the size that the library returned.
        check("nvrtcGetProgramLog", unsafe {
            sys::nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast())
        })?;
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        Ok(text.unwrap_or_default().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, CallError> {
        let mut size = 0;
        // SAFETY: the program is live.
        check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(self.handle, &mut size) })?;
        let mut cubin = vec![0_u8; size];
        // SAFETY: the buffer has the size that the library returned.
        check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // A failure only leaks memory.
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.handle) };
    }
}

/// Panics on a zero byte: sources and options are constants of this program.
fn c_string(text: &str) -> CString {
    CString::new(text).expect("sources and options contain no zero bytes")
}

fn check(call: &'static str, status: Status) -> Result<(), CallError> {
    CallError::check(call, status, |code| {
        // SAFETY: the library is loaded; it returns a static string for any number.
        match unsafe { sys::nvrtcGetErrorString(code) } {
            // SAFETY: the string lives as long as the library.
            Some(name) if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => "an error unknown to this NVRTC".to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_has_the_major_version_of_the_card() {
        let known = || [75, 80, 86, 89, 90, 100, 120, 121].into_iter();
        let newest_supported = |major, minor| super::newest_supported(known(), Version { major, minor });
        assert_eq!(newest_supported(9, 0), Some(90));
        assert_eq!(newest_supported(8, 7), Some(86));
        assert_eq!(newest_supported(10, 3), Some(100));
        assert_eq!(newest_supported(12, 1), Some(121));
        assert_eq!(newest_supported(13, 0), None);
        assert_eq!(newest_supported(7, 0), None);
    }

    #[test]
    fn digest_covers_every_input_of_the_compiler() {
        let [version, newer] = [0, 1].map(|minor| Version { major: 13, minor });
        let source = |file, text| KernelSource { file, text };
        let a = source("a.cu", "text");
        let digests = [
            digest(&a, "sm_90", version),
            digest(&source("a.cu", "texts"), "sm_90", version),
            digest(&source("a.cut", "ext"), "sm_90", version),
            digest(&a, "sm_80", version),
            digest(&a, "sm_90", newer),
            digest(&source("a.cu", "#include \"philox.cuh\""), "sm_90", version),
            digest(&source("a.cu", "#include \"chance.cuh\""), "sm_90", version),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert_eq!(digest.len(), 64);
            assert!(!digests[..index].contains(digest));
        }
    }
}
