//! Types of the contract: modules, constants, and families of kernels with their arguments.

/// Type with which an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// `size_t`, `uint64_t`.
    Usize,
    /// `unsigned int`.
    U32,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// `bool`.
    Bool,
    /// Dims and strides by value: `const size_t *` in the sources, `CandleLayout` after hipify.
    Layout,
    /// A pointer into device memory. It may be null only if the argument's documentation says so.
    Pointer,
    /// One element of the dtype given by the axis of this name.
    Element(&'static str),
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Name of the parameter in the sources and of the field in Rust.
    pub name: &'static str,
    /// Type with which it is passed.
    pub pass: Pass,
    /// Documentation of the field.
    pub meaning: &'static str,
}

/// A variable part of a kernel's name, with its possible values.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name of the axis, which stands in braces in [`Family::kernels`].
    pub name: &'static str,
    /// True for dtypes (`Element` in Rust); false for names, which have their own enumeration.
    pub is_dtype: bool,
    /// Values as they appear in the kernel's name.
    pub values: Vec<&'static str>,
    /// Rust enumeration shared by several families; `None` if the family has its own.
    pub shared: Option<&'static str>,
}

/// A family of kernels that differ only in the values of their axes.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name of the struct of its arguments in Rust.
    pub name: &'static str,
    /// Name of the source file without extension.
    pub module: &'static str,
    /// Pattern of the kernels' names, with each axis in braces.
    pub kernels: &'static str,
    /// Sets of axes in the order of the name. A kernel exists for every combination of the values of each set.
    pub variants: Vec<Vec<Axis>>,
    /// Arguments in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// Maximum number of threads per workgroup. Elementwise kernels are launched with exactly this number.
    pub block: u32,
    /// Bytes of contiguous elements that a thread moves per access; 0 if it moves one element at a time.
    pub pack_bytes: u32,
    /// True if the launch sets the size of dynamic LDS.
    pub dynamic_lds: bool,
    /// Documentation of the struct: what the kernels compute.
    pub meaning: &'static str,
}

/// A number shared by kernels and host: `CANDLE_NAME` in C, `NAME` in Rust.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Name in Rust.
    pub name: &'static str,
    /// Value.
    pub value: u32,
    /// Documentation.
    pub meaning: &'static str,
}

/// A source file, which is compiled to one code object per target.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Name of the file without extension.
    pub name: &'static str,
    /// Documentation of its variant in Rust.
    pub meaning: &'static str,
}

/// Contents of one file of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The modules that it describes.
    pub modules: &'static [Module],
    /// The constants that these modules share with the host.
    pub constants: &'static [Constant],
    /// Returns the families of the modules' kernels.
    pub families: fn() -> Vec<Family>,
}

/// Returns a family without variants and arguments: one element per thread, in workgroups of 256 threads.
pub fn family(
    name: &'static str,
    module: &'static str,
    kernels: &'static str,
    meaning: &'static str,
) -> Family {
    let (variants, arguments) = (Vec::new(), Vec::new());
    let (block, pack_bytes, dynamic_lds) = (256, 0, false);
    Family { name, module, kernels, variants, arguments, block, pack_bytes, dynamic_lds, meaning }
}

impl Family {
    /// Adds kernels for all combinations of the values of `axes`.
    pub fn over<const N: usize>(mut self, axes: [Axis; N]) -> Self {
        self.variants.push(axes.into());
        self
    }

    /// Adds lists of arguments.
    pub fn takes(mut self, lists: &[&[Argument]]) -> Self {
        self.arguments.extend(lists.concat());
        self
    }

    /// Sets the maximum number of threads per workgroup.
    pub fn block(self, threads: u32) -> Self {
        Self { block: threads, ..self }
    }

    /// Declares that each thread moves 16 bytes of contiguous elements per access.
    pub fn in_packs(self) -> Self {
        Self { pack_bytes: 16, ..self }
    }

    /// Declares that the launch sets the size of dynamic LDS.
    pub fn with_dynamic_lds(self) -> Self {
        Self { dynamic_lds: true, ..self }
    }
}

/// Returns an axis of names that belongs to one family.
pub fn names(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { name, is_dtype: false, values: values.to_vec(), shared: None }
}

/// Returns an axis of dtypes.
pub fn dtypes(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { is_dtype: true, ..names(name, values) }
}

/// Builds a list of arguments from their types, names and documentation.
macro_rules! args {
    ($($pass:expr => $($name:ident $meaning:literal),+);+ $(;)?) => {
        &[$($($crate::contract::schema::Argument {
            name: stringify!($name),
            pass: { use $crate::contract::schema::Pass::*; $pass },
            meaning: $meaning,
        }),+),+]
    };
}

/// Defines the documented modules and constants of a subject, and `SUBJECT`, which refers to the function `families` of
/// the file.
macro_rules! subject {
    (modules { $($(#[doc = $about:literal])+ $module:ident,)* }
     constants { $($(#[doc = $meaning:literal])+ $name:ident = $value:expr,)* }) => {
        $($(#[doc = $meaning])+ pub const $name: u32 = $value;)*

        /// Modules, constants and families of this file.
        pub const SUBJECT: $crate::contract::schema::Subject = $crate::contract::schema::Subject {
            modules: &[$($crate::contract::schema::Module {
                name: stringify!($module),
                meaning: concat!($($about),+),
            }),*],
            constants: &[$($crate::contract::schema::Constant {
                name: stringify!($name),
                value: $name,
                meaning: concat!($($meaning),+),
            }),*],
            families,
        };
    };
}
