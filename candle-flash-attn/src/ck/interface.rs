//! Interface between `cargo xtask ck` and this crate: the instances, the arguments of their kernels, and the manifest of
//! the code objects. It depends on no other crate of the project, so that both can compile it.
use std::mem::offset_of;

use serde::{Deserialize, Serialize};

/// Version of this interface; it changes whenever existing objects would be launched incorrectly.
pub const INTERFACE: u32 = 1;
/// Name of the kernel in every code object.
pub const KERNEL: &str = "attention_forward";
/// Name of the manifest in the folder of an architecture's code objects.
pub const MANIFEST: &str = "manifest.json";
/// Architectures that have the matrix instructions of the kernels and enough registers.
pub const ARCHS: [&str; 2] = ["gfx90a", "gfx942"];
/// Threads per workgroup: four waves.
pub const THREADS: u32 = 256;

/// Element type of queries, keys, values and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// bfloat16, the upper half of an f32.
    Bf16,
}

/// One compiled variant of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Element type of all operands.
    pub element: Element,
    /// Maximum head width; narrower heads are padded in registers.
    pub width: usize,
    /// True for packed variable-length sequences (CK's group mode), false for a dense batch.
    pub varlen: bool,
    /// True with a window around the diagonal, including causal masks.
    pub masked: bool,
}

/// Tile sizes of an instance: the numbers of CK's `TileFmhaShape` and of the generator's table for 16-bit
/// elements (`example/ck_tile/01_fmha/codegen/ops/fmha_fwd.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Queries per workgroup (`kM0`).
    pub queries: usize,
    /// Keys per step (`kN0`).
    pub keys: usize,
    /// Elements of the head width per step of the first product (`kK0`).
    pub width_step: usize,
    /// Keys per step of the second product (`kK1`).
    pub key_step: usize,
}

/// Maximum head widths of the instances.
const WIDTHS: [usize; 3] = [64, 128, 256];

impl Instance {
    /// Returns all instances, narrow ones first.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_width =
            |width| {
                [Element::F16, Element::Bf16].into_iter().flat_map(move |element| {
                    [(false, true), (false, false), (true, true), (true, false)]
                        .map(|(varlen, masked)| Self { element, width, varlen, masked })
                })
            };
        WIDTHS.into_iter().flat_map(of_width)
    }

    /// Returns the name, such as `f16-128-varlen-masked`.
    pub fn name(&self) -> String {
        let element = match self.element {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
        };
        let batch = if self.varlen { "varlen" } else { "dense" };
        let mask = if self.masked { "masked" } else { "full" };
        format!("{element}-{}-{batch}-{mask}", self.width)
    }

    /// Returns the smallest instance width for heads of `width`; `None` if they are too wide.
    pub fn width_for(width: usize) -> Option<usize> {
        WIDTHS.into_iter().find(|most| width <= *most)
    }

    /// Returns the tile sizes.
    pub fn tile(&self) -> Tile {
        let keys = if self.width == 64 { 64 } else { 128 };
        Tile { queries: 128, keys, width_step: 32, key_step: 32 }
    }

    /// Returns the layout of the kernel's argument.
    pub fn layout(&self) -> Layout {
        match (self.masked, self.varlen) {
            (false, false) => Arguments::<Unmasked, Dense>::layout(),
            (true, false) => Arguments::<Window, Dense>::layout(),
            (false, true) => Arguments::<Unmasked, Sequences>::layout(),
            (true, true) => Arguments::<Window, Sequences>::layout(),
        }
    }
}

/// Layout of a kernel's argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size in bytes.
    pub bytes: usize,
    /// CK's name and the offset of each field.
    pub fields: Vec<(&'static str, usize)>,
}

/// A base class or the own members of CK's struct of arguments.
///
/// # Safety
/// The type must be `repr(C)` and contain only numbers and device addresses.
pub unsafe trait Part {
    /// Names and offsets of the fields.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Declares a part with CK's field names.
macro_rules! part {
    ($(#[$doc:meta])* $part:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $part {
            $(#[doc = concat!("CK's `", stringify!($field), "`.")] pub $field: $kind,)*
        }
        // SAFETY: as declared above.
        unsafe impl Part for $part {
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), offset_of!($part, $field))),*];
        }
    };
}

part! {
    /// `FmhaFwdKernel::FmhaFwdCommonKargs` (`ck_tile/ops/fmha/kernel/fmha_fwd_kernel.hpp`): addresses, lengths, widths,
    /// heads, and strides in elements. The lengths are ignored by variable-length instances.
    Common {
        q_ptr: u64,
        k_ptr: u64,
        v_ptr: u64,
        o_ptr: u64,
        seqlen_q: i32,
        seqlen_k: i32,
        hdim_q: i32,
        hdim_v: i32,
        num_head_q: i32,
        nhead_ratio_qk: i32,
        scale_s: f32,
        stride_q: i32,
        stride_k: i32,
        stride_v: i32,
        stride_o: i32,
        nhead_stride_q: i32,
        nhead_stride_k: i32,
        nhead_stride_v: i32,
        nhead_stride_o: i32,
    }
}
part! {
    /// `FmhaFwdKernel::FmhaFwdMaskKargs`: number of visible keys on either side, -1 for all, and the position of the diagonal.
    Window { window_size_left: i32, window_size_right: i32, mask_type: i32 }
}
part! {
    /// `FmhaFwdKernel::FmhaFwdEmptyKargs`: no mask.
    Unmasked {}
}
part! {
    /// `FmhaFwdKernel::FmhaFwdCommonLSEKargs`: output of the logarithms of the sums of exponentials, f32.
    Statistics { lse_ptr: u64, nhead_stride_lse: i32, batch_stride_lse: i32 }
}
part! {
    /// The members of `FmhaFwdKernel::FmhaFwdBatchModeKargs`.
    Dense { batch_stride_q: i32, batch_stride_k: i32, batch_stride_v: i32, batch_stride_o: i32 }
}
part! {
    /// The members of `FmhaFwdKernel::FmhaFwdGroupModeKargs`: start offsets of the sequences and the end, as i32 in device
    /// memory; and the numbers of keys, or null to derive them from the offsets.
    Sequences { seqstart_q_ptr: u64, seqstart_k_ptr: u64, seqlen_k_ptr: u64 }
}

/// The argument of a kernel, passed by value: CK's base classes in order, then its own members.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arguments<M, S> {
    /// Operands, sizes and strides.
    pub common: Common,
    /// [`Window`] or [`Unmasked`].
    pub mask: M,
    /// Output of the softmax statistics, which every instance writes.
    pub statistics: Statistics,
    /// [`Dense`] or [`Sequences`].
    pub place: S,
}

impl<M: Part, S: Part> Arguments<M, S> {
    fn layout() -> Layout {
        let parts = [
            (offset_of!(Self, common), Common::FIELDS),
            (offset_of!(Self, mask), M::FIELDS),
            (offset_of!(Self, statistics), Statistics::FIELDS),
            (offset_of!(Self, place), S::FIELDS),
        ];
        let fields = parts
            .iter()
            .flat_map(|(start, fields)| fields.iter().map(move |(name, offset)| (*name, start + offset)))
            .collect();
        Layout { bytes: size_of::<Self>(), fields }
    }
}

/// Manifest of the code objects built for an architecture.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The builder's [`INTERFACE`].
    pub interface: u32,
    /// Origin and version of the sources.
    pub sources: String,
    /// Version line of the compiler.
    pub compiler: String,
    /// SHA-256 of the flags and of the code added to the sources, in hexadecimal.
    pub recipe: String,
    /// Architecture, as spelled by the compiler.
    pub arch: String,
    /// The code objects.
    pub instances: Vec<Built>,
}

/// A code object in the manifest.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// The instance that it contains.
    #[serde(flatten)]
    pub instance: Instance,
    /// File name in the manifest's folder.
    pub file: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Size of the kernel's argument in bytes.
    pub argument_bytes: usize,
}
