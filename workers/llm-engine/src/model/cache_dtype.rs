//! Data types of a key-value cache.
use candle_core::DType;
pub use candle_nn::encoded_cache::CacheEncoding;

/// Data type of the elements of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDType {
    /// 32-bit floats, in which attention is computed.
    F32,
    /// 16-bit floats, in which attention is computed.
    F16,
    /// Brain floats (bfloat16), in which attention is computed.
    BF16,
    /// Bytes with a scale for each row of a head.
    Encoded(CacheEncoding),
}

impl CacheDType {
    /// Names of the types. The first one of each type is reported.
    const NAMES: [(&'static str, Self); 9] = [
        ("f32", Self::F32),
        ("f16", Self::F16),
        ("bf16", Self::BF16),
        ("int8", Self::Encoded(CacheEncoding::Int8)),
        ("fp8", Self::Encoded(CacheEncoding::Fp8)),
        ("fp8_e4m3", Self::Encoded(CacheEncoding::Fp8)),
        ("float32", Self::F32),
        ("float16", Self::F16),
        ("bfloat16", Self::BF16),
    ];

    /// Returns the type with a name, which may be a name in vLLM.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }

    /// Returns the name that is reported.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, dtype)| *dtype == self).map_or("", |(name, _)| name)
    }

    /// Returns the type of a cache of floats; `None` for other data types.
    pub fn of_floats(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Returns the data type of the tensors that store the elements.
    pub fn stored(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
            Self::Encoded(encoding) => encoding.dtype(),
        }
    }

    /// Returns the number of bytes of a row of a head, with its scale.
    pub(super) fn row_bytes(self, width: usize) -> usize {
        let scale = matches!(self, Self::Encoded(_)) as usize * DType::BF16.size_in_bytes();
        width * self.stored().size_in_bytes() + scale
    }
}

/// Data types of a cache: of its elements, and of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTypes {
    /// Type of the elements.
    pub elements: CacheDType,
    /// Data type of queries, in which attention is computed; that of the elements, unless these are encoded.
    pub attention: DType,
}
