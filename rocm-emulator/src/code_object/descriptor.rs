//! Kernel descriptors: 64 bytes per kernel, which the hardware's dispatcher reads (AMDGPU usage guide, "Kernel
//! Descriptor").

/// The fields of a kernel descriptor that the software GPU needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelDescriptor {
    /// Static LDS per workgroup in bytes.
    pub lds_bytes: u32,
    /// Private memory per lane in bytes.
    pub private_bytes: u32,
    /// Size of the kernel argument segment in bytes; 0 in code objects older than version 4.
    pub kernarg_bytes: u32,
    /// Offset of the first instruction from the descriptor in bytes.
    pub entry_offset: i64,
    /// COMPUTE_PGM_RSRC1.
    pub rsrc1: u32,
    /// COMPUTE_PGM_RSRC2.
    pub rsrc2: u32,
    /// COMPUTE_PGM_RSRC3.
    pub rsrc3: u32,
    /// KERNEL_CODE_PROPERTIES: the registers that the dispatcher initializes.
    pub code_properties: u16,
    /// Length and offset of preloaded kernel arguments (gfx940 and later).
    pub kernarg_preload: u16,
}

impl KernelDescriptor {
    /// Size of a descriptor in bytes.
    pub const SIZE: usize = 64;

    /// Parses a descriptor.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            lds_bytes: word(0),
            private_bytes: word(4),
            kernarg_bytes: word(8),
            entry_offset: (u64::from(word(16)) | u64::from(word(20)) << 32) as i64,
            rsrc3: word(44),
            rsrc1: word(48),
            rsrc2: word(52),
            code_properties: half(56),
            kernarg_preload: half(58),
        }
    }

    /// Returns true if the kernel was compiled for waves of 32 lanes. Always false before gfx10.
    pub fn wave32(&self) -> bool {
        self.code_properties & (1 << 10) != 0
    }

    /// Returns the vector registers allocated per lane. A granule is 8 with wave32 and 4 with wave64. On gfx90a and gfx942
    /// it is 8 and includes accumulation registers.
    pub fn vgprs(&self, granule: u32) -> u32 {
        ((self.rsrc1 & 0x3f) + 1) * granule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_documented_offsets() {
        let mut bytes = [0u8; 64];
        for (at, value) in [(0, 0x11u32), (4, 0x22), (8, 0x33), (44, 0x44), (48, 0x0002), (52, 0x66)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&(-256i64).to_le_bytes());
        bytes[56..58].copy_from_slice(&0x0408u16.to_le_bytes());
        bytes[58..60].copy_from_slice(&7u16.to_le_bytes());
        let descriptor = KernelDescriptor::parse(&bytes);
        assert_eq!(
            descriptor,
            KernelDescriptor {
                lds_bytes: 0x11,
                private_bytes: 0x22,
                kernarg_bytes: 0x33,
                entry_offset: -256,
                rsrc1: 2,
                rsrc2: 0x66,
                rsrc3: 0x44,
                code_properties: 0x408,
                kernarg_preload: 7,
            }
        );
        assert!(descriptor.wave32());
        assert_eq!(descriptor.vgprs(8), 24);
    }
}
