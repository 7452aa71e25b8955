//! Integer types of stored tokens.

/// The integer type of stored tokens, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Bytes of text.
    U8,
    U16,
    U32,
}

impl TokenWidth {
    pub fn bytes(self) -> usize {
        match self {
            TokenWidth::U8 => 1,
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            TokenWidth::U8 => "u8",
            TokenWidth::U16 => "u16",
            TokenWidth::U32 => "u32",
        }
    }

    /// Decodes tokens.
    pub(super) fn numbers(self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        bytes.chunks_exact(self.bytes()).map(move |number| match self {
            TokenWidth::U8 => u32::from(number[0]),
            TokenWidth::U16 => u32::from(u16::from_le_bytes([number[0], number[1]])),
            TokenWidth::U32 => u32::from_le_bytes([number[0], number[1], number[2], number[3]]),
        })
    }
}
