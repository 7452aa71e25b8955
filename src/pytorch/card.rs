//! The properties of a card that PyTorch's kernels size their scratch memory by.

/// A CUDA device as PyTorch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Compute capability, major and minor.
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: usize,
    /// Resident threads of a multiprocessor.
    pub(crate) threads: usize,
}

impl Card {
    /// The card with this driver name, followed by its memory if cards of that name differ in multiprocessors.
    /// Multiprocessors are those of NVIDIA's data sheets. Cards of compute capability 12.0 are missing: their workspaces
    /// are unknown.
    pub fn named(name: &str) -> Option<Card> {
        let (capability, multiprocessors) = match name {
            "NVIDIA B200" => ((10, 0), 148),
            "NVIDIA H200" | "NVIDIA GH200 480GB" | "NVIDIA H100 NVL" | "NVIDIA H100 80GB HBM3" => {
                ((9, 0), 132)
            }
            "NVIDIA H100 PCIe" => ((9, 0), 114),
            "NVIDIA A100-SXM4-80GB" | "NVIDIA A100-SXM4-40GB" => ((8, 0), 108),
            "NVIDIA L40S" | "NVIDIA RTX 6000 Ada Generation" => ((8, 9), 142),
            "NVIDIA L4" => ((8, 9), 58),
            "NVIDIA A10" => ((8, 6), 72),
            "NVIDIA A10G" => ((8, 6), 80),
            "NVIDIA RTX A6000" => ((8, 6), 84),
            "NVIDIA RTX A5000" => ((8, 6), 64),
            "NVIDIA RTX A4000" => ((8, 6), 48),
            "NVIDIA GeForce RTX 4090" => ((8, 9), 128),
            "NVIDIA GeForce RTX 4080" => ((8, 9), 76),
            "NVIDIA GeForce RTX 4070" => ((8, 9), 46),
            "NVIDIA GeForce RTX 4060 Ti"
            | "NVIDIA GeForce RTX 4060 Ti 16GB"
            | "NVIDIA GeForce RTX 4060 Ti 8GB" => ((8, 9), 34),
            "NVIDIA GeForce RTX 3090" => ((8, 6), 82),
            "NVIDIA GeForce RTX 3080 12GB" => ((8, 6), 70),
            "NVIDIA GeForce RTX 3080 10GB" => ((8, 6), 68),
            "NVIDIA GeForce RTX 3070" => ((8, 6), 46),
            "NVIDIA GeForce RTX 3060" | "NVIDIA GeForce RTX 3060 12GB" | "NVIDIA GeForce RTX 3060 8GB" => {
                ((8, 6), 28)
            }
            "NVIDIA GeForce RTX 2080 Ti" => ((7, 5), 68),
            "Tesla T4" => ((7, 5), 40),
            "Tesla V100-SXM2-32GB" | "Tesla V100-SXM2-16GB" => ((7, 0), 80),
            "Tesla P100-PCIE-16GB" => ((6, 0), 56),
            _ => return None,
        };
        let threads = match capability {
            (7, 5) => 1024,
            (8, 6 | 9) => 1536,
            _ => 2048,
        };
        Some(Card { capability, multiprocessors, threads })
    }

    /// Bytes of cuBLAS's workspace: 32 MiB since Hopper, else `:4096:2:16:8` (KiB and counts).
    pub(crate) fn cublas_workspace(&self) -> u64 {
        if self.capability.0 >= 9 { 32 << 20 } else { (4096 * 2 + 16 * 8) << 10 }
    }

    /// Elements per tile of CUB's radix sort of pairs, in the gradient of an embedding.
    pub(crate) fn sort_tile(&self) -> usize {
        match self.capability {
            (9.., _) => 4608,
            (8, _) => 3840,
            _ => 2816,
        }
    }
}
