//! Compiles kernels with NVRTC to machine code for one architecture.

use std::ffi::{CStr, CString};

use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::calls::{Status, nvrtc as sys};
use super::errors::Failed;
use super::libraries::{self, Library};
use super::sources::{HEADERS, SOURCES, Source, with_headers};
use super::unavailable::{Unavailable, Version};
use base::parallel;

/// Fast mathematics is not switched on for all kernels: those that can do with less accuracy say so where they do.
const OPTIONS: [&str; 2] = ["--std=c++17", "-default-device"];

/// NVRTC's answer where it lacks its builtins.
const NO_BUILTINS: Status = 7;

/// All that it takes to see whether NVRTC compiles.
const TRIAL: Source =
    Source { file: "trial.cu", text: "extern \"C\" __global__ void trial(float *x) { *x = 1; }" };

/// NVRTC, loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiler {
    pub(super) version: Version,
}

impl Compiler {
    /// Of no newer major of CUDA than `newest` where there is a choice.
    ///
    /// # Errors
    /// It is missing.
    pub(super) fn load(newest: u32) -> Result<Compiler, Unavailable> {
        libraries::load(Library::Nvrtc, newest)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is loaded.
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        let version = Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        // Without them it says so when it compiles, unless it finds others.
        let _ = libraries::load_builtins(version);
        Ok(Compiler { version })
    }

    /// Compiles a kernel of one line.
    ///
    /// # Errors
    /// That does not work: NVRTC lacks what it needs, or is none. One line.
    pub(super) fn try_out(self) -> Result<(), Unavailable> {
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

    /// As messages call it.
    fn label(self) -> String {
        let path = Library::Nvrtc.path().map(|path| format!(" ({})", path.display()));
        format!("NVRTC {}{}", self.version, path.unwrap_or_default())
    }

    /// The architecture to compile for, such as `sm_90`: a card runs code for its own major and any minor up to its
    /// own. `None` if this NVRTC is older than the card.
    pub(super) fn architecture(self, capability: Version) -> Result<Option<String>, Unavailable> {
        let numbers = self.architectures()?.into_iter();
        Ok(nearest(numbers, capability).map(|number| format!("sm_{number}")))
    }

    /// All that it compiles for: 90 is `sm_90`.
    fn architectures(self) -> Result<Vec<u32>, Failed> {
        let mut count = 0;
        // SAFETY: the library is loaded.
        check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
        let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many as the library said.
        check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
        Ok(numbers.into_iter().map(i32::unsigned_abs).collect())
    }

    /// All sources compiled, in their order, from the cache where they are there.
    ///
    /// # Errors
    /// One cannot be compiled.
    pub(super) fn cubins(self, architecture: &str, cache: &Cache) -> Result<Vec<Vec<u8>>, Unavailable> {
        let cubin = |source: &Source| {
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
        source: &Source,
        architecture: &str,
        more: &[&str],
    ) -> Result<Compiled, Unavailable> {
        let program = Program::new(source)?;
        let architecture_option = format!("--gpu-architecture={architecture}");
        let options: Vec<&str> =
            OPTIONS.iter().chain(more).copied().chain([architecture_option.as_str()]).collect();
        let Err(failed) = program.compile(&options) else {
            return Ok(Compiled { cubin: program.cubin()?, log: program.log()? });
        };
        if failed.code == NO_BUILTINS
            && let Err(why) = libraries::load_builtins(self.version)
        {
            let file = libraries::builtins(self.version);
            return Err(Unavailable::Builtins { nvrtc: self.label(), file, why });
        }
        let log = program.log().unwrap_or_default();
        // The log names the file and the line; without one, the code must do.
        let log = if log.trim().is_empty() { format!("{} ({})", failed.name, failed.code) } else { log };
        let log = log.trim_end().to_owned();
        Err(Unavailable::Kernel { file: source.file, architecture: architecture.to_owned(), log })
    }
}

/// Identifies compiled code by all of its inputs: the source, the headers that it includes, the options, the architecture
/// and the version of NVRTC.
pub(super) fn digest(source: &Source, architecture: &str, version: Version) -> String {
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

fn nearest(numbers: impl Iterator<Item = u32>, capability: Version) -> Option<u32> {
    let own = capability.major * 10 + capability.minor;
    numbers.filter(|number| number / 10 == capability.major && *number <= own).max()
}

/// What NVRTC made of a source.
pub(super) struct Compiled {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// A program of NVRTC's, given back when it is dropped.
struct Program {
    handle: sys::nvrtcProgram,
    /// The source, its headers and their names: the handle refers to them.
    _strings: Vec<CString>,
}

impl Program {
    fn new(source: &Source) -> Result<Program, Failed> {
        let text = c_string(source.text);
        let name = c_string(source.file);
        let texts: Vec<CString> = HEADERS.iter().map(|header| c_string(header.text)).collect();
        let names: Vec<CString> = HEADERS.iter().map(|header| c_string(header.file)).collect();
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the strings outlive the program, and there are as many headers as NVRTC is told.
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
        // Moved, not copied: they stay where they are.
        let _strings = texts.into_iter().chain(names).chain([text, name]).collect();
        Ok(Program { handle, _strings })
    }

    fn compile(&self, options: &[&str]) -> Result<(), Failed> {
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives, and there are as many options as NVRTC is told.
        let status =
            unsafe { sys::nvrtcCompileProgram(self.handle, pointers.len() as i32, pointers.as_ptr()) };
        check("nvrtcCompileProgram", status)
    }

    fn log(&self) -> Result<String, Failed> {
        let mut size = 0;
        // SAFETY: the program lives.
        check("nvrtcGetProgramLogSize", unsafe { sys::nvrtcGetProgramLogSize(self.handle, &mut size) })?;
        let mut log = vec![0_u8; size.max(1)];
        // SAFETY: there is room for as much as the library said.
        check("nvrtcGetProgramLog", unsafe {
            sys::nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast())
        })?;
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        Ok(text.unwrap_or_default().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Failed> {
        let mut size = 0;
        // SAFETY: the program lives.
        check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(self.handle, &mut size) })?;
        let mut cubin = vec![0_u8; size];
        // SAFETY: there is room for as much as the library said.
        check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program that cannot be given back costs memory and nothing else.
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.handle) };
    }
}

/// Panics on a zero within: sources and options are this program's own.
fn c_string(text: &str) -> CString {
    CString::new(text).expect("no zeros in sources and options")
}

fn check(call: &'static str, status: Status) -> Result<(), Failed> {
    Failed::check(call, status, |code| {
        // SAFETY: the library is loaded; it answers any number with a string of its own.
        match unsafe { sys::nvrtcGetErrorString(code) } {
            // SAFETY: a string that lives as long as the library does.
            Some(name) if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => "an error that this NVRTC has no name for".to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gets_code_for_its_own_major() {
        let known = || [75, 80, 86, 89, 90, 100, 120, 121].into_iter();
        let nearest = |major, minor| super::nearest(known(), Version { major, minor });
        assert_eq!(nearest(9, 0), Some(90));
        assert_eq!(nearest(8, 7), Some(86));
        assert_eq!(nearest(10, 3), Some(100));
        assert_eq!(nearest(12, 1), Some(121));
        assert_eq!(nearest(13, 0), None);
        assert_eq!(nearest(7, 0), None);
    }

    #[test]
    fn digest_covers_every_input_of_the_compiler() {
        let [version, newer] = [0, 1].map(|minor| Version { major: 13, minor });
        let source = |file, text| Source { file, text };
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
