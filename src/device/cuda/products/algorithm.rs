//! An algorithm of the library's: opaque, but for the numbers that it tells of it.

use super::plan::check;
use crate::cuda::calls::cublaslt::{self as sys, cublasLtMatmulAlgoConfigAttributes_t as Attribute};

/// The library documents it as good to be stored, and used again with the same version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Algorithm(pub(super) sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    /// The library's own numbers for it; what it does not tell is left out.
    pub(super) fn numbers(&self) -> String {
        let named = [
            ("algorithm", Attribute::CUBLASLT_ALGO_CONFIG_ID),
            ("tile", Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID),
            ("stages", Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID),
            ("split", Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            ("reduction", Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
        ];
        let told = named.into_iter().filter_map(|(name, attribute)| {
            let (mut number, mut written) = (0_u32, 0);
            let (into, size) = (std::ptr::from_mut(&mut number).cast(), size_of::<u32>());
            // SAFETY: the library writes at most as many bytes as it is told there is room for.
            check("cublasLtMatmulAlgoConfigGetAttribute", unsafe {
                sys::cublasLtMatmulAlgoConfigGetAttribute(&self.0, attribute, into, size, &mut written)
            })
            .ok()
            .map(|()| format!("{name} {number}"))
        });
        told.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn to_hexadecimal(self) -> String {
        self.0.data.iter().map(|word| format!("{word:016x}")).collect()
    }

    /// `None` for what `to_hexadecimal` never writes.
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
    fn an_algorithm_is_written_and_read_to_the_last_bit() {
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
