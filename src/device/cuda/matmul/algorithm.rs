//! A cuBLASLt algorithm: opaque, except for its configuration attributes.

use super::plan::check;
use crate::cuda::calls::cublaslt::{self as sys, cublasLtMatmulAlgoConfigAttributes_t as Attribute};

/// The library documents that it may be stored and used again with the same library version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Algorithm(pub(super) sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    /// The algorithm's configuration attributes; those that the library does not report are omitted.
    pub(super) fn numbers(&self) -> String {
        let named = [
            ("algorithm", Attribute::CUBLASLT_ALGO_CONFIG_ID),
            ("tile", Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID),
            ("stages", Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID),
            ("split", Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            ("reduction", Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
        ];
        let parts = named.into_iter().filter_map(|(name, attribute)| {
            let (mut number, mut written) = (0_u32, 0);
            let (pointer, size) = (std::ptr::from_mut(&mut number).cast(), size_of::<u32>());
            // SAFETY: the library writes at most `size` bytes.
            check("cublasLtMatmulAlgoConfigGetAttribute", unsafe {
                sys::cublasLtMatmulAlgoConfigGetAttribute(&self.0, attribute, pointer, size, &mut written)
            })
            .ok()
            .map(|()| format!("{name} {number}"))
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn to_hexadecimal(self) -> String {
        self.0.data.iter().map(|word| format!("{word:016x}")).collect()
    }

    /// `None` for text that `to_hexadecimal` never writes.
    pub(super) fn from_hexadecimal(text: &str) -> Option<Algorithm> {
        let mut data = [0; 8];
        if text.len() != 16 * data.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (index, word) in data.iter_mut().enumerate() {
            *word = u64::from_str_radix(&text[16 * index..][..16], 16).ok()?;
        }
        Some(Algorithm(sys::cublasLtMatmulAlgo_t { data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_round_trip_is_exact() {
        let data = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 4, 5, 6, 1 << 63];
        let algorithm = Algorithm(sys::cublasLtMatmulAlgo_t { data });
        let text = algorithm.to_hexadecimal();
        assert_eq!(Algorithm::from_hexadecimal(&text), Some(algorithm));
        for wrong in
            [&text[1..], &format!("{text}0"), &text.replace('f', "g"), &text.replacen('0', "+", 1), ""]
        {
            assert_eq!(Algorithm::from_hexadecimal(wrong), None, "{wrong}");
        }
    }
}
