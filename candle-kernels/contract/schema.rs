//! The types of the contract: modules, constants, and families of kernels with their arguments.

/// How an argument is passed.
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
    /// A pointer into device memory. May be null where the argument's text says so.
    Pointer,
    /// One element of the dtype that the axis of this name has.
    Element(&'static str),
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name in the sources, and of the field in Rust.
    pub name: &'static str,
    /// The way in which it is passed.
    pub pass: Pass,
    /// The documentation of the field.
    pub meaning: &'static str,
}

/// A part of a kernel's name, with the values that it may have.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The name in braces.
    pub name: &'static str,
    /// True for dtypes, of the type `Element` in Rust; false for names, of an enumeration of their own.
    pub is_dtype: bool,
    /// The values, as they stand in the name.
    pub values: Vec<&'static str>,
    /// The enumeration in Rust, of names that several families have; else each family has its own.
    pub shared: Option<&'static str>,
}

/// Kernels that differ only in the values of their axes.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name of its struct in Rust.
    pub name: &'static str,
    /// The source file without its ending.
    pub module: &'static str,
    /// Names of the kernels, each axis in braces.
    pub kernels: &'static str,
    /// Each is a set of axes, in the order of the name, all combinations of which exist; together they are the family.
    pub variants: Vec<Vec<Axis>>,
    /// The arguments in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// The most threads of a workgroup. Kernels of single elements are launched with just as many.
    pub block: u32,
    /// Bytes of dense elements that a thread moves at once; 0 where it takes one element at a time.
    pub pack_bytes: u32,
    /// True if the launch sets the size of LDS.
    pub dynamic_lds: bool,
    /// The documentation of the struct: what the kernels compute.
    pub meaning: &'static str,
}

/// A number that kernels and host share: `CANDLE_NAME` in C, `NAME` in Rust.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: u32,
    /// Its documentation.
    pub meaning: &'static str,
}

/// A source file, which becomes one code object per target.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The file's name without its ending.
    pub name: &'static str,
    /// The documentation of its variant in Rust.
    pub meaning: &'static str,
}

/// A file of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The sources that it describes.
    pub modules: &'static [Module],
    /// The numbers that these share with the host.
    pub constants: &'static [Constant],
    /// Their kernels.
    pub families: fn() -> Vec<Family>,
}

/// A family without variants and arguments, one element per thread, in workgroups of 256.
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
    /// Adds kernels for all combinations of the axes' values.
    pub fn over<const N: usize>(mut self, axes: [Axis; N]) -> Self {
        self.variants.push(axes.into());
        self
    }

    /// Adds lists of arguments.
    pub fn takes(mut self, lists: &[&[Argument]]) -> Self {
        self.arguments.extend(lists.concat());
        self
    }

    /// Sets the most threads of a workgroup.
    pub fn block(self, threads: u32) -> Self {
        Self { block: threads, ..self }
    }

    /// Has each thread move 16 bytes of dense elements at once.
    pub fn in_packs(self) -> Self {
        Self { pack_bytes: 16, ..self }
    }

    /// Has the launch set the size of LDS.
    pub fn with_dynamic_lds(self) -> Self {
        Self { dynamic_lds: true, ..self }
    }
}

/// An axis of names that only one family has.
pub fn names(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { name, is_dtype: false, values: values.to_vec(), shared: None }
}

/// An axis of dtypes.
pub fn dtypes(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { is_dtype: true, ..names(name, values) }
}

/// A list of arguments: how they are passed, then their names with the text of the field.
macro_rules! args {
    ($($pass:expr => $($name:ident $meaning:literal),+);+ $(;)?) => {
        &[$($($crate::contract::schema::Argument {
            name: stringify!($name),
            pass: { use $crate::contract::schema::Pass::*; $pass },
            meaning: $meaning,
        }),+),+]
    };
}

/// Defines the modules and constants of a subject, each after its documentation, and `SUBJECT`; `families` is a
/// function of the file.
macro_rules! subject {
    (modules { $($(#[doc = $about:literal])+ $module:ident,)* }
     constants { $($(#[doc = $meaning:literal])+ $name:ident = $value:expr,)* }) => {
        $($(#[doc = $meaning])+ pub const $name: u32 = $value;)*

        /// The modules, constants and families of this file.
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
