//! Instruction sets, chosen at run time: builds are for plain x86-64 or aarch64.

#[cfg(target_arch = "x86_64")]
use super::product::has_amx;

/// What the processor can do. Every level computes the same function, but not to the same bits: only some fuse
/// multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512, and for products of bf16 the processor's matrix units.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Level {
    /// The levels that this machine has, slowest first.
    pub(super) fn available() -> impl Iterator<Item = Level> {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f");
            let amx = avx512 && has_amx();
            [(Level::Portable, true), (Level::Avx2, avx2), (Level::Avx512, avx512), (Level::Amx, amx)]
                .into_iter()
                .filter_map(|(level, present)| present.then_some(level))
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::iter::once(Level::Portable)
    }

    pub(super) fn best() -> Level {
        Level::available().last().unwrap_or(Level::Portable)
    }
}

/// Defines a function that is compiled once for each level and takes the level as its first argument. The body is
/// plain Rust that vectorises by itself; what it calls must be `#[inline(always)]`, or it is compiled for the
/// plain instruction set. In the body, the constant `FUSED` says whether the level fuses multiply and add: to ask
/// for it elsewhere would be a library call for each element.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name(level: $crate::device::cpu::kernels::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::extra_unused_type_parameters)] // Most bodies do not mind.
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
                $crate::device::cpu::kernels::simd::Level::Portable => body::<false>($($arg),*),
                // SAFETY: a level beyond the portable one exists only where its features were detected.
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code)]
                $crate::device::cpu::kernels::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                #[allow(unsafe_code)]
                $crate::device::cpu::kernels::simd::Level::Avx512
                | $crate::device::cpu::kernels::simd::Level::Amx => unsafe { avx512($($arg),*) },
            }
        }
    };
}

pub(super) use simd;
