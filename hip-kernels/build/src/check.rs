//! Whether compiled kernels are those of the table: each of them, no other, with its arguments.

use std::fmt;

use amdgpu_code_object::{ArgumentKind, ArgumentMetadata, KernelMetadata};

use crate::Target;
use crate::bindings::{Kernel, kernels_of};
use crate::contract::shared::LAYOUT_WORDS;
use crate::contract::{Argument, Family, Pass};

/// Where a code object and the table differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The module: `candle-kernels/MODULE.cu`.
    pub module: String,
    /// What it was compiled for.
    pub target: Target,
    /// The kernel.
    pub kernel: String,
    /// How they differ.
    pub difference: Difference,
}

/// How a kernel and the table differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The code object lacks the kernel.
    Missing,
    /// The table lacks the kernel.
    Unused,
    /// The kernel takes more arguments, or fewer.
    Count {
        /// The names in the table.
        expected: String,
        /// The names in the code object.
        found: String,
    },
    /// An argument has another name, place, size or kind.
    Argument {
        /// Its number, from 1.
        number: usize,
        /// What the table says.
        expected: String,
        /// What the code object says.
        found: String,
    },
    /// The kernel was compiled for smaller workgroups than it is launched with.
    Workgroup {
        /// Threads that the table says.
        expected: u32,
        /// Threads that the code object allows.
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

/// Compares the kernels of a compiled module with those that `families` have in it.
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
        // Arguments lie one after the other, each at a multiple of its own size; a layout is made of words.
        offset = offset_of(offset, size);
        // AMD's compiler drops the name of a struct that is passed as a whole; NVIDIA's objects name none.
        let unsaid = found.kind == ArgumentKind::Unsaid;
        let named = match name(found) {
            Some(name) => name == argument.name,
            None => unsaid || argument.pass == Pass::Layout,
        };
        let fits = (found.offset, found.size) == (offset, size) && (unsaid || found.kind == kind);
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

/// The name without what the compiler appends where it passes a struct's or pointer's content: `inp.coerce`.
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
        ArgumentKind::Unsaid => "of unsaid kind",
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
