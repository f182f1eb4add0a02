//! Checks that compiled code objects contain exactly the kernels of the contract, with their arguments.

use std::fmt;

use amdgpu_code_object::{ArgumentKind, ArgumentMetadata, KernelMetadata};

use crate::Target;
use crate::bindings::{Kernel, kernels_of};
use crate::contract::shared::LAYOUT_WORDS;
use crate::contract::{Argument, Family, Pass};

/// A difference between a code object and the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Name of the module `candle-kernels/MODULE.cu`.
    pub module: String,
    /// Target of the code object.
    pub target: Target,
    /// Name of the kernel.
    pub kernel: String,
    /// Kind of difference.
    pub difference: Difference,
}

/// Kinds of differences between a kernel and the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The kernel is missing in the code object.
    Missing,
    /// The kernel is missing in the contract.
    Unused,
    /// The number of arguments differs.
    Count {
        /// Argument names in the contract.
        expected: String,
        /// Argument names in the code object.
        found: String,
    },
    /// The name, offset, size or kind of an argument differs.
    Argument {
        /// Number of the argument, from 1.
        number: usize,
        /// Description in the contract.
        expected: String,
        /// Description in the code object.
        found: String,
    },
    /// The kernel was compiled for smaller workgroups than it is launched with.
    Workgroup {
        /// Number of threads in the contract.
        expected: u32,
        /// Maximum number of threads in the code object.
        found: u32,
    },
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { module, target, kernel, difference } = self;
        write!(f, "candle-kernels/{module}.cu for {target}: kernel {kernel}")?;
        match difference {
            Difference::Missing => write!(f, " is in candle-kernels/contract, but not in the source"),
            Difference::Unused => write!(f, " is not in candle-kernels/contract"),
            Difference::Count { expected, found } => {
                write!(f, ": expected arguments ({expected}), found ({found})")
            }
            Difference::Argument { number, expected, found } => {
                write!(f, ", argument {number}: expected {expected}, found {found}")
            }
            Difference::Workgroup { expected, found } => {
                write!(f, ": expected workgroups of {expected} threads, found at most {found}")
            }
        }
    }
}

/// Compares the kernels of a compiled module with those of `families`.
pub fn disagreements(
    families: &[Family],
    module: &str,
    target: &Target,
    compiled: &[KernelMetadata],
) -> Vec<Disagreement> {
    let mut found = Vec::new();
    let mut add = |kernel: &str, difference| {
        let (module, kernel) = (module.to_owned(), kernel.to_owned());
        found.push(Disagreement { module, target: target.clone(), kernel, difference });
    };
    let mut expected = Vec::new();
    for family in families.iter().filter(|family| family.module == module) {
        for kernel in kernels_of(family) {
            match compiled.iter().find(|metadata| metadata.name == kernel.name) {
                Some(metadata) => {
                    differences(family, &kernel, metadata)
                        .into_iter()
                        .for_each(|difference| add(&kernel.name, difference));
                }
                None => add(&kernel.name, Difference::Missing),
            }
            expected.push(kernel.name);
        }
    }
    for metadata in compiled.iter().filter(|metadata| !expected.contains(&metadata.name)) {
        add(&metadata.name, Difference::Unused);
    }
    found
}

fn differences(family: &Family, kernel: &Kernel, metadata: &KernelMetadata) -> Vec<Difference> {
    let mut differences = Vec::new();
    if metadata.max_workgroup < family.block {
        differences.push(Difference::Workgroup { expected: family.block, found: metadata.max_workgroup });
    }
    let (arguments, explicit) = (&family.arguments, &metadata.explicit);
    if arguments.len() != explicit.len() {
        let expected: Vec<&str> = arguments.iter().map(|argument| argument.name).collect();
        let found: Vec<&str> = explicit.iter().map(|argument| name(argument).unwrap_or("?")).collect();
        differences.push(Difference::Count { expected: expected.join(", "), found: found.join(", ") });
        return differences;
    }
    let mut offset = 0;
    for (index, (argument, found)) in arguments.iter().zip(explicit).enumerate() {
        let size = size(argument, kernel);
        let kind = match argument.pass {
            Pass::Pointer => ArgumentKind::Pointer,
            _ => ArgumentKind::ByValue,
        };
        // Arguments are consecutive, each aligned to its size; a layout consists of words.
        offset = offset_of(offset, size);
        // AMD's compiler omits the name of a struct passed by value; NVIDIA objects contain no names.
        let is_unknown = found.kind == ArgumentKind::Unknown;
        let named = match name(found) {
            Some(name) => name == argument.name,
            None => is_unknown || argument.pass == Pass::Layout,
        };
        let fits = (found.offset, found.size) == (offset, size) && (is_unknown || found.kind == kind);
        if !named || !fits {
            differences.push(Difference::Argument {
                number: index + 1,
                expected: description(Some(argument.name), offset, size, kind),
                found: description(name(found), found.offset, found.size, found.kind),
            });
        }
        offset += size;
    }
    differences
}

/// Returns the name without the suffix that the compiler appends to coerced arguments, such as `inp.coerce`.
fn name(argument: &ArgumentMetadata) -> Option<&str> {
    argument.name.as_deref().map(|name| name.split('.').next().unwrap_or(name))
}

fn offset_of(end: u32, size: u32) -> u32 {
    end.next_multiple_of(size.clamp(1, 8))
}

fn description(name: Option<&str>, offset: u32, size: u32, kind: ArgumentKind) -> String {
    let name = name.map_or("no name".to_owned(), |name| format!("`{name}`"));
    let kind = match kind {
        ArgumentKind::ByValue => "by value",
        ArgumentKind::Pointer => "a pointer",
        ArgumentKind::Other => "neither a value nor a pointer",
        ArgumentKind::Unknown => "of unknown kind",
    };
    format!("{name} ({size} bytes at {offset}, {kind})")
}

fn size(argument: &Argument, kernel: &Kernel) -> u32 {
    match argument.pass {
        Pass::Usize | Pass::F64 | Pass::Pointer => 8,
        Pass::U32 | Pass::F32 => 4,
        Pass::Bool => 1,
        Pass::Layout => 8 * LAYOUT_WORDS,
        Pass::Element(axis) => {
            let dtype = kernel.values.iter().find(|(name, _)| *name == axis).map_or("", |(_, dtype)| *dtype);
            match dtype {
                "u8" | "f8e4m3" => 1,
                "i16" | "bf16" | "f16" => 2,
                "u32" | "i32" | "f32" => 4,
                _ => 8,
            }
        }
    }
}
