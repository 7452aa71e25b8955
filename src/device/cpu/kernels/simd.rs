//! Instruction sets, selected at run time: builds target baseline x86-64 or aarch64.

#[cfg(target_arch = "x86_64")]
use super::matmul::has_amx;
use ops::DType;

/// An instruction set. All levels compute the same functions, but results differ in the last bits, because only some
/// levels fuse multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512, with its dot-product instruction for bf16 matmuls.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AVX-512, with the processor's matrix units (AMX) for bf16 matmuls.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Level {
    /// The levels that this machine supports, slowest first.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn available() -> impl Iterator<Item = Level> {
        Level::with(Features::detected())
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn available() -> impl Iterator<Item = Level> {
        std::iter::once(Level::Portable)
    }

    #[cfg(target_arch = "x86_64")]
    fn with(features: Features) -> impl Iterator<Item = Level> {
        let Features { avx2, avx512, avx512_bf16, amx } = features;
        let avx512 = avx2 && avx512;
        [
            (Level::Portable, true),
            (Level::Avx2, avx2),
            (Level::Avx512, avx512),
            (Level::Avx512Bf16, avx512 && avx512_bf16),
            (Level::Amx, avx512 && amx),
        ]
        .into_iter()
        .filter_map(|(level, present)| present.then_some(level))
    }

    pub(super) fn best() -> Level {
        Level::available().last().unwrap_or(Level::Portable)
    }

    /// Whether matmuls with operands of this type run without converting them to f32 first.
    pub(super) fn multiplies(self, dtype: DType) -> bool {
        match (dtype, self) {
            (DType::F32, _) => true,
            #[cfg(target_arch = "x86_64")]
            (DType::BF16, Level::Avx512Bf16 | Level::Amx) => true,
            (DType::BF16 | DType::F16 | DType::I32 | DType::U16 | DType::U8 | DType::U4, _) => false,
        }
    }
}

/// Features that both the processor and the operating system support.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Features {
    /// Together with FMA and F16C.
    avx2: bool,
    avx512: bool,
    avx512_bf16: bool,
    /// Tiles of bf16, which this process has permission to use.
    amx: bool,
}

#[cfg(target_arch = "x86_64")]
impl Features {
    fn detected() -> Features {
        Features {
            avx2: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            avx512: is_x86_feature_detected!("avx512f"),
            avx512_bf16: is_x86_feature_detected!("avx512bf16"),
            amx: is_x86_feature_detected!("avx512f") && has_amx(),
        }
    }
}

/// Defines a function that is compiled once for each level and takes the level as its first argument. The compiler
/// vectorizes the body, which is plain Rust. Functions that it calls must be `#[inline(always)]`; otherwise they are
/// compiled for the baseline instruction set. In the body, the constant `FUSED` is whether the level fuses multiply and
/// add; without hardware support, `mul_add` would be a library call for each element.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name(level: $crate::cpu::kernels::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::extra_unused_type_parameters)] // Most bodies do not use `FUSED`.
            fn body<const FUSED: bool>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            match level {
                $crate::cpu::kernels::simd::Level::Portable => body::<false>($($arg),*),
                // SAFETY: a level beyond the portable one exists only where its features were detected.
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code)]
                $crate::cpu::kernels::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code)]
                $crate::cpu::kernels::simd::Level::Avx512
                | $crate::cpu::kernels::simd::Level::Avx512Bf16
                | $crate::cpu::kernels::simd::Level::Amx => {
                    // SAFETY: as above.
                    unsafe { avx512($($arg),*) }
                }
            }
        }
    };
}

pub(super) use simd;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// The best level for some features, and whether it multiplies bf16 natively.
    #[test]
    fn bf16_matmuls_are_widened_only_without_hardware_support() {
        let none = Features { avx2: false, avx512: false, avx512_bf16: false, amx: false };
        let avx2 = Features { avx2: true, ..none };
        let avx512 = Features { avx512: true, ..avx2 };
        let pairs = Features { avx512_bf16: true, ..avx512 };
        let tiles = Features { amx: true, ..avx512 };
        for (features, best, bf16) in [
            (none, Level::Portable, false),
            (avx2, Level::Avx2, false),
            (avx512, Level::Avx512, false),
            (pairs, Level::Avx512Bf16, true),
            (tiles, Level::Amx, true),
            (Features { amx: true, ..pairs }, Level::Amx, true),
            // A disabled feature also disables the levels that need it.
            (Features { avx512: false, amx: true, ..pairs }, Level::Avx2, false),
            (Features { avx2: false, amx: true, ..pairs }, Level::Portable, false),
        ] {
            let found = Level::with(features).last().expect("the portable level always exists");
            assert_eq!(found, best, "{features:?}");
            let multiplied = [DType::F32, DType::BF16, DType::F16].map(|dtype| found.multiplies(dtype));
            assert_eq!(multiplied, [true, bf16, false], "{features:?}");
        }
    }

    /// Tests of a level pass without running if the level is not detected. This test compares detection with Linux.
    #[test]
    #[cfg(target_os = "linux")]
    fn levels_match_cpuinfo() {
        let processors = std::fs::read_to_string("/proc/cpuinfo").expect("Linux has /proc/cpuinfo");
        let flags =
            processors.lines().find(|line| line.starts_with("flags")).expect("x86 lists its features");
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        let avx2 = has("avx2") && has("fma") && has("f16c");
        let avx512 = avx2 && has("avx512f");
        for (level, listed) in
            [(Level::Avx2, avx2), (Level::Avx512, avx512), (Level::Avx512Bf16, avx512 && has("avx512_bf16"))]
        {
            assert_eq!(Level::available().any(|available| available == level), listed, "{level:?}");
        }
    }
}
