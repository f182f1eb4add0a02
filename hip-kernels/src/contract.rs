//! Host side of the kernels: a struct of the arguments of each family, and the IDs of its kernels.
//!
//! Most of this module is generated from the tables in `candle-kernels/contract`. The build also checks every compiled code
//! object against them, so that the arguments passed here are those that the kernel has.
//!
//! ```
//! use hip_kernels::contract::{Element, KernelFamily, Unary, UnaryOp};
//!
//! let kernel = Unary::kernel(UnaryOp::Exp, Element::F16).ok_or("no such kernel")?;
//! assert_eq!(kernel.id().name(), "uexp_f16");
//! assert_eq!(Unary::BLOCK, 256);
//! # Ok::<(), &str>(())
//! ```

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

/// An address in device memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePtr(pub *mut c_void);

impl DevicePtr {
    /// The null address.
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// Dims followed by the strides of each operand, packed; kernels take it by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLayout(pub [usize; LAYOUT_WORDS]);

/// Returns the divisor word of a dim: the size in the lower and a multiplier in the upper 32 bits, which replaces divisions
/// in kernels (`Divisor` in `candle-kernels/index.cuh`). Returns sizes above 2^31 unchanged.
#[inline]
pub const fn dim_word(size: usize) -> usize {
    if size == 0 || size > 1 << 31 {
        return size;
    }
    let shift = usize::BITS - (size - 1).leading_zeros();
    ((((1 << shift) - size) << 32) / size + 1) << 32 | size
}

/// The bits of one element of any dtype, in the low bytes. The device reads only the bytes of the dtype.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u64);

/// ID of a kernel: a number below [`KernelId::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelId(u16);

impl KernelId {
    /// Number of kernels.
    pub const COUNT: usize = COUNT;

    /// Returns the ID as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the kernel's name in the code object.
    pub fn name(self) -> &'static str {
        KERNELS[self.index()].0
    }

    /// Returns the module whose code object contains the kernel.
    pub fn module(self) -> Module {
        FAMILIES[KERNELS[self.index()].1].1
    }

    /// Returns the name of the kernel's family.
    pub fn family(self) -> &'static str {
        FAMILIES[KERNELS[self.index()].1].0
    }

    /// Returns all kernels in order of their IDs.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(COUNT).map(Self)
    }
}

impl fmt::Debug for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// A family of kernels with the same arguments, which are the fields of the implementing struct.
pub trait KernelFamily {
    /// Name of the family.
    const NAME: &'static str;
    /// Maximum number of threads per workgroup; elementwise kernels are launched with exactly this number.
    const BLOCK: u32;
    /// Bytes of contiguous elements that a thread moves per access; 0 if it moves one element at a time.
    const PACK_BYTES: usize;
    /// True if the launch sets the size of dynamic LDS.
    const DYNAMIC_LDS: bool;
    /// The family with a `'static` lifetime, independent of what its arguments borrow.
    type Any: 'static;
    /// Array of the addresses of the arguments.
    type Arguments: AsRef<[*const c_void]>;
    /// Returns the addresses of the arguments in the kernel's order, valid while `self` is borrowed.
    fn arguments(&self) -> Self::Arguments;
}

/// A kernel of the family `F`.
pub struct KernelOf<F>(KernelId, PhantomData<fn(F)>);

impl<F> KernelOf<F> {
    /// Returns the kernel's ID.
    #[inline]
    pub fn id(self) -> KernelId {
        self.0
    }

    /// Converts an entry of a family's table.
    #[inline]
    fn of(number: u16) -> Option<Self> {
        (number != NONE).then_some(Self(KernelId(number), PhantomData))
    }
}

impl<F> Clone for KernelOf<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for KernelOf<F> {}

impl<F> fmt::Debug for KernelOf<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Entry of a family's table for a combination without a kernel.
const NONE: u16 = u16::MAX;

/// Compares two names; usable at compile time.
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn name<F>(kernel: Option<KernelOf<F>>) -> Option<&'static str> {
        kernel.map(|kernel| kernel.id().name())
    }

    #[test]
    fn kernels_are_found_by_axis_values() {
        assert_eq!(name(Unary::kernel(UnaryOp::GeluErf, Element::Bf16)), Some("ugelu_erf_bf16"));
        assert_eq!(name(Cast::kernel(CastForm::F8e4m3, CastForm::B2)), Some("cast_f8e4m3_b2"));
        assert_eq!(name(Take::kernel(TakeUnit::B2)), Some("take_b2"));
        let attention = AttentionRows::kernel(AttentionRowsWidth::W128, Element::F16);
        assert_eq!(name(attention), Some("attention_rows_128_f16"));
        assert_eq!(name(ReduceSum::kernel(ReduceSumSource::Parts)), Some("reduce_sum_parts"));
    }

    #[test]
    fn missing_combinations_are_none() {
        assert_eq!(name(Unary::kernel(UnaryOp::Sigmoid, Element::F8e4m3)), None);
        assert_eq!(name(Unary::kernel(UnaryOp::Exp, Element::U8)), None);
        assert_eq!(name(Cast::kernel(CastForm::U8, CastForm::U8)), None);
        assert_eq!(name(Softmax::kernel(SoftmaxOp::Softmax, Element::U32)), None);
    }

    #[test]
    fn ids_are_dense_and_names_unique() {
        let ids: Vec<KernelId> = KernelId::all().collect();
        assert!(ids.iter().enumerate().all(|(at, id)| id.index() == at));
        assert_eq!(ids.len(), KernelId::COUNT);
        let names: HashSet<&str> = ids.iter().map(|id| id.name()).collect();
        assert_eq!(names.len(), KernelId::COUNT);
        assert!(names.contains("uexp_f32"));
    }

    #[test]
    fn every_module_has_kernels() {
        let used: HashSet<Module> = KernelId::all().map(KernelId::module).collect();
        assert_eq!(used, HashSet::from(Module::ALL));
        let kernel = Product::kernel(ProductKind::Product, Element::F64).unwrap().id();
        assert_eq!((kernel.module(), kernel.family()), (Module::Product, "Product"));
    }

    #[test]
    fn arguments_are_the_addresses_of_the_fields_in_order() {
        let info = KernelLayout([0; LAYOUT_WORDS]);
        let unary = Unary { numel: 1, num_dims: 2, info: &info, inp: DevicePtr::NULL, out: DevicePtr::NULL };
        let expected: [*const c_void; 5] = [
            std::ptr::from_ref(&unary.numel).cast(),
            std::ptr::from_ref(&unary.num_dims).cast(),
            std::ptr::from_ref(&info).cast(),
            std::ptr::from_ref(&unary.inp).cast(),
            std::ptr::from_ref(&unary.out).cast(),
        ];
        assert_eq!(unary.arguments(), expected);
    }

    /// Computes a quotient like the kernels.
    fn divided(n: usize, word: usize) -> usize {
        let (size, factor) = (word & 0xffff_ffff, word >> 32);
        let shift = usize::BITS - (size - 1).leading_zeros();
        let sum = ((n * factor) >> 32) + n;
        assert!(sum < 1 << 32, "{n} / {size}: the sum fits a register");
        sum >> shift
    }

    #[test]
    fn dims_divide_by_multiplication() {
        const END: usize = 1 << 31;
        let powers = (0..=31).map(|bit| 1usize << bit);
        let mut sizes: Vec<usize> = powers.flat_map(|power| power.saturating_sub(3)..power + 3).collect();
        sizes.extend(1..3000);
        sizes.extend((1..31).flat_map(|bit| [3, 5, 7, 11].map(|odd| ((END - 1) / odd) >> bit)));
        for size in sizes.into_iter().filter(|size| (1..=END).contains(size)) {
            let word = dim_word(size);
            assert_eq!(word as u32 as usize, size);
            // Errors would first appear where the quotient changes: around multiples of the size.
            let last = (END - 1) / size;
            let some = (0..=last.min(50)).chain(last.saturating_sub(50)..=last);
            let spread = (0..64).map(|part| last / 64 * part);
            for multiple in some.chain(spread).map(|times| times * size) {
                for n in multiple.saturating_sub(1)..=(multiple + 1).min(END - 1) {
                    assert_eq!(divided(n, word), n / size, "{n} / {size}");
                }
            }
            assert_eq!(divided(END - 1, word), (END - 1) / size, "{size}");
        }
        assert_eq!((dim_word(0), dim_word(END + 1)), (0, END + 1));
    }

    #[test]
    fn kernels_are_printed_by_name() {
        for id in KernelId::all() {
            assert_eq!(format!("{id:?}"), format!("{} ({})", id.name(), id.index()));
        }
        let kernel = Unary::kernel(UnaryOp::Exp, Element::F16).unwrap();
        assert_eq!(format!("{:?}", kernel.clone()), format!("{:?}", kernel.id()));
        assert_eq!((kernel.id().module().to_string().as_str(), kernel.id().family()), ("unary", "Unary"));
    }

    #[test]
    fn values_are_found_by_name() {
        const GELU: Option<UnaryOp> = UnaryOp::of("gelu");
        assert_eq!(GELU, Some(UnaryOp::Gelu));
        for op in UnaryOp::ALL {
            assert_eq!(UnaryOp::of(op.name()), Some(op));
        }
        assert_eq!((UnaryOp::of("gel"), UnaryOp::of(""), UnaryOp::of("gelu_")), (None, None, None));
        for (at, element) in Element::ALL.into_iter().enumerate() {
            assert_eq!(element as usize, at);
            assert!(Affine::kernel(element).is_some());
        }
    }
}
