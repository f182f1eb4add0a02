//! What `cargo xtask ck` and the crate agree on: which instances there are, what a kernel of each is passed, and what
//! stands beside the code objects. No other crate of the project is needed, so that both compile it.
use std::mem::offset_of;

use serde::{Deserialize, Serialize};

/// Changes whenever objects that were built before would be launched wrongly.
pub const INTERFACE: u32 = 1;
/// The kernel of every code object.
pub const KERNEL: &str = "attention_forward";
/// Beside the code objects of an architecture.
pub const MANIFEST: &str = "manifest.json";
/// What has the matrix instructions of the kernels, and enough registers beside them.
pub const ARCHS: [&str; 2] = ["gfx90a", "gfx942"];
/// Threads of a workgroup: four waves.
pub const THREADS: u32 = 256;

/// The elements of queries, keys, values and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

/// One compiled form of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Of all operands.
    pub element: Element,
    /// The widest heads that it takes; narrower ones are padded in registers.
    pub width: usize,
    /// Sequences of their own lengths, one after the other (CK's group mode), instead of a dense batch.
    pub varlen: bool,
    /// With a window on either side of the diagonal, so also causal.
    pub masked: bool,
}

/// How an instance cuts its problem: the numbers of CK's `TileFmhaShape` and of the generator's table for 16-bit
/// elements (`example/ck_tile/01_fmha/codegen/ops/fmha_fwd.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Queries of a workgroup (`kM0`).
    pub queries: usize,
    /// Keys of a step (`kN0`).
    pub keys: usize,
    /// Of the width of queries and keys, in a step of the first product (`kK0`).
    pub width_step: usize,
    /// Keys in a step of the second product (`kK1`).
    pub key_step: usize,
}

/// The widths that are compiled for.
const WIDTHS: [usize; 3] = [64, 128, 256];

impl Instance {
    /// Every instance, narrow ones first.
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

    /// As `f16-128-varlen-masked`.
    pub fn name(&self) -> String {
        let element = match self.element {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
        };
        let batch = if self.varlen { "varlen" } else { "dense" };
        let mask = if self.masked { "masked" } else { "full" };
        format!("{element}-{}-{batch}-{mask}", self.width)
    }

    /// The least width that heads of `width` fit in.
    pub fn width_for(width: usize) -> Option<usize> {
        WIDTHS.into_iter().find(|most| width <= *most)
    }

    /// How it cuts its problem.
    pub fn tile(&self) -> Tile {
        let keys = if self.width == 64 { 64 } else { 128 };
        Tile { queries: 128, keys, width_step: 32, key_step: 32 }
    }

    /// What its kernel is passed.
    pub fn layout(&self) -> Layout {
        match (self.masked, self.varlen) {
            (false, false) => Arguments::<Unmasked, Dense>::layout(),
            (true, false) => Arguments::<Window, Dense>::layout(),
            (false, true) => Arguments::<Unmasked, Sequences>::layout(),
            (true, true) => Arguments::<Window, Sequences>::layout(),
        }
    }
}

/// Where the fields of a kernel's argument lie.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of the whole.
    pub bytes: usize,
    /// CK's name of each field, and its offset.
    pub fields: Vec<(&'static str, usize)>,
}

/// A base or the members of CK's structure of arguments.
///
/// # Safety
/// It must be `repr(C)`, and hold numbers and device addresses only.
pub unsafe trait Part {
    /// Names and offsets.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Declares a part with CK's names.
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
    /// heads, strides in elements. Of a variable-length call the lengths are ignored.
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
    /// `FmhaFwdKernel::FmhaFwdMaskKargs`: keys that a query sees on either side, -1 for all, and where the diagonal is.
    Window { window_size_left: i32, window_size_right: i32, mask_type: i32 }
}
part! {
    /// `FmhaFwdKernel::FmhaFwdEmptyKargs`.
    Unmasked {}
}
part! {
    /// `FmhaFwdKernel::FmhaFwdCommonLSEKargs`: where the logarithm of the sum of exponentials goes, f32.
    Statistics { lse_ptr: u64, nhead_stride_lse: i32, batch_stride_lse: i32 }
}
part! {
    /// The members of `FmhaFwdKernel::FmhaFwdBatchModeKargs`.
    Dense { batch_stride_q: i32, batch_stride_k: i32, batch_stride_v: i32, batch_stride_o: i32 }
}
part! {
    /// The members of `FmhaFwdKernel::FmhaFwdGroupModeKargs`: i32 in device memory, where each sequence begins and the
    /// last one ends; and the lengths of keys, or null for those between the beginnings.
    Sequences { seqstart_q_ptr: u64, seqstart_k_ptr: u64, seqlen_k_ptr: u64 }
}

/// What a kernel is passed, by value: CK's bases in their order, then its members.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arguments<M, S> {
    /// The first base.
    pub common: Common,
    /// [`Window`] or [`Unmasked`].
    pub mask: M,
    /// Every instance stores them.
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

/// What was built for an architecture.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`INTERFACE`] of the builder.
    pub interface: u32,
    /// Whose sources they are.
    pub sources: String,
    /// The compiler's line about itself.
    pub compiler: String,
    /// SHA-256 of flags and of what was added to the sources, in hexadecimal.
    pub recipe: String,
    /// As the compiler spells it.
    pub arch: String,
    /// What there is.
    pub instances: Vec<Built>,
}

/// One code object.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// Which it is.
    #[serde(flatten)]
    pub instance: Instance,
    /// Its name in the manifest's folder.
    pub file: String,
    /// Of its bytes, in hexadecimal.
    pub sha256: String,
    /// Bytes of the kernel's argument.
    pub argument_bytes: usize,
}
