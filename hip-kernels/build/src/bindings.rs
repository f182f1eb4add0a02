//! What the table of kernels becomes: the header of the kernels and the Rust side of the host.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::BuildError;
use crate::contract::{Argument, Axis, CONSTANTS, ELEMENTS, Family, Pass, families};

/// The generated header, read before the first line of every kernel source.
pub const HEADER_FILE: &str = "candle_contract.h";

/// The generated Rust source, a part of `hip_kernels::contract`.
pub const RUST_FILE: &str = "contract.rs";

/// One kernel of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Name by which it is launched.
    pub name: String,
    /// Each axis and its value, in the order of the family's axes.
    pub values: Vec<(&'static str, &'static str)>,
}

/// The kernels of a family, in the order of their numbers.
pub fn kernels_of(family: &Family) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for axes in &family.variants {
        let mut combinations: Vec<Vec<(&'static str, &'static str)>> = vec![Vec::new()];
        for axis in axes {
            let extended = |head: &Vec<_>| -> Vec<Vec<_>> {
                let with = |value: &&'static str| [head.as_slice(), &[(axis.name, *value)]].concat();
                axis.values.iter().map(with).collect()
            };
            combinations = combinations.iter().flat_map(extended).collect();
        }
        for values in combinations {
            let fill =
                |name: String, (axis, value): &(&str, &str)| name.replace(&format!("{{{axis}}}"), value);
            kernels.push(Kernel { name: values.iter().fold(family.kernels.to_owned(), fill), values });
        }
    }
    kernels
}

/// The sources that the table names, each once, sorted.
pub fn modules(families: &[Family]) -> Vec<&'static str> {
    let mut modules: Vec<_> = families.iter().map(|family| family.module).collect();
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// The text of [`HEADER_FILE`].
pub fn header() -> String {
    let mut text = String::from("// Made from candle-kernels/contract.rs.\n#pragma once\n\n");
    for constant in CONSTANTS {
        text.push_str(&format!(
            "// {}\n#define CANDLE_{} {}\n",
            constant.meaning, constant.name, constant.value
        ));
    }
    text
}

/// Writes [`RUST_FILE`] into `out_dir`.
///
/// # Errors
/// [`BuildError::Io`].
pub fn write_rust(out_dir: &Path) -> Result<(), BuildError> {
    let path = out_dir.join(RUST_FILE);
    fs::write(&path, rust(&families())).map_err(BuildError::io("cannot write", &path))
}

/// The text of [`RUST_FILE`] for a table.
pub fn rust(families: &[Family]) -> String {
    let mut text = String::from("// Made from candle-kernels/contract.rs.\n");
    for constant in CONSTANTS {
        line(&mut text, &format!("/// {}", constant.meaning));
        line(&mut text, &format!("pub const {}: usize = {};", constant.name, constant.value));
    }
    let mut first = 0;
    let mut names = Vec::new();
    let mut shared = Vec::new();
    for (number, family) in families.iter().enumerate() {
        let kernels = kernels_of(family);
        for axis in axes_of(family).iter().filter(|axis| !axis.is_dtype) {
            if axis.shared.is_none() || !shared.contains(&axis.shared) {
                enumeration(&mut text, family, axis);
                shared.push(axis.shared);
            }
        }
        arguments(&mut text, family);
        lookup(&mut text, family, &kernels, first);
        first += kernels.len();
        names.extend(kernels.into_iter().map(|kernel| (kernel.name, number)));
    }
    line(&mut text, &format!("const COUNT: usize = {};", names.len()));
    line(&mut text, "static KERNELS: [(&str, usize); COUNT] = [");
    for (name, family) in names {
        line(&mut text, &format!("    ({name:?}, {family}),"));
    }
    line(&mut text, &format!("];\nstatic FAMILIES: [(&str, Module); {}] = [", families.len()));
    for family in families {
        line(&mut text, &format!("    ({:?}, Module::{}),", family.name, camel_case(family.module)));
    }
    line(&mut text, "];");
    text
}

/// The axes of all variants together: each once, with every value that it has in any of them.
fn axes_of(family: &Family) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for axis in family.variants.iter().flatten() {
        match axes.iter_mut().find(|known| known.name == axis.name) {
            Some(known) => {
                let missing = axis.values.iter().filter(|value| !known.values.contains(value));
                let missing: Vec<_> = missing.copied().collect();
                known.values.extend(missing);
            }
            None => axes.push(axis.clone()),
        }
    }
    axes
}

/// The enumeration of the values of an axis that is no dtype.
fn enumeration(text: &mut String, family: &Family, axis: &Axis) {
    let name = axis_type(family, axis);
    let values: Vec<(String, &str)> =
        axis.values.iter().map(|value| (variant(axis, value), *value)).collect();
    match axis.shared {
        Some(_) => line(text, &format!("/// The `{}` of several families.", axis.name)),
        None => line(text, &format!("/// The `{}` of [`{}`].", axis.name, family.name)),
    }
    line(text, "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]");
    line(text, &format!("pub enum {name} {{"));
    for (variant, value) in &values {
        line(text, &format!("    /// `{value}`.\n    {variant},"));
    }
    line(text, &format!("}}\nimpl {name} {{"));
    let all: Vec<String> = values.iter().map(|(variant, _)| format!("Self::{variant}")).collect();
    line(text, "    /// All of them.");
    line(text, &format!("    pub const ALL: [Self; {}] = [{}];", values.len(), all.join(", ")));
    line(text, "    /// As it stands in the names of kernels.");
    line(text, "    pub const fn name(self) -> &'static str {\n        match self {");
    for (variant, value) in &values {
        line(text, &format!("            Self::{variant} => {value:?},"));
    }
    line(text, "        }\n    }");
    line(text, "    /// The one of this name.");
    line(
        text,
        "    pub const fn of(name: &str) -> Option<Self> {\n        let mut at = 0;\n        \
         while at < Self::ALL.len() {\n            if same(name, Self::ALL[at].name()) {\n                \
         return Some(Self::ALL[at]);\n            }\n            at += 1;\n        }\n        None\n    }\n}",
    );
}

/// The struct of a family's arguments.
fn arguments(text: &mut String, family: &Family) {
    let count = family.arguments.len();
    let any = format!("{}{}", family.name, lifetime(family, "'static"));
    line(text, &format!("/// {}\n///\n/// Kernels `{}`.", family.meaning, family.kernels));
    line(text, "#[derive(Clone, Copy, Debug)]");
    line(text, &format!("pub struct {}{} {{", family.name, lifetime(family, "'a")));
    for argument in &family.arguments {
        line(text, &format!("    /// {}", sentence(argument.meaning)));
        line(text, &format!("    pub {}: {},", argument.name, rust_type(argument)));
    }
    line(text, &format!("}}\nimpl KernelFamily for {}{} {{", family.name, lifetime(family, "'_")));
    line(text, &format!("    const NAME: &'static str = {:?};", family.name));
    line(text, &format!("    const BLOCK: u32 = {};", family.block));
    line(text, &format!("    const PACK_BYTES: usize = {};", family.pack_bytes));
    line(text, &format!("    const DYNAMIC_LDS: bool = {};", family.dynamic_lds));
    line(text, &format!("    type Any = {any};"));
    line(text, &format!("    type Arguments = [*const c_void; {count}];"));
    line(text, "    #[inline]\n    fn arguments(&self) -> Self::Arguments {\n        [");
    for argument in &family.arguments {
        let borrow = if argument.pass == Pass::Layout { "" } else { "&" };
        line(text, &format!("            std::ptr::from_ref({borrow}self.{}).cast(),", argument.name));
    }
    line(text, "        ]\n    }\n}");
}

/// What an axis is in Rust: of a shared enumeration, a family may have kernels for some values only.
fn places(axis: &Axis) -> Vec<&'static str> {
    let first = || families().iter().flat_map(axes_of).find(|other| other.shared == axis.shared);
    match axis.shared {
        _ if axis.is_dtype => ELEMENTS.to_vec(),
        Some(_) => first().map_or_else(|| axis.values.clone(), |first| first.values),
        None => axis.values.clone(),
    }
}

/// The function that finds a kernel: a table of its number for each combination of axis values.
fn lookup(text: &mut String, family: &Family, kernels: &[Kernel], first: usize) {
    let axes = axes_of(family);
    let size: usize = axes.iter().map(|axis| places(axis).len()).product();
    let mut table = vec![String::from("NONE"); size];
    for (number, kernel) in kernels.iter().enumerate() {
        let place = axes.iter().fold(0, |place, axis| {
            let value = kernel.values.iter().find(|(name, _)| *name == axis.name).map(|(_, value)| *value);
            let index = places(axis).iter().position(|known| Some(*known) == value);
            place * places(axis).len() + index.unwrap_or(0)
        });
        table[place] = (first + number).to_string();
    }
    let parameters: Vec<String> =
        axes.iter().map(|axis| format!("{}: {}", axis.name, axis_type(family, axis))).collect();
    let place = axes.iter().fold(String::new(), |place, axis| match place.is_empty() {
        true => format!("{} as usize", axis.name),
        false => format!("({place}) * {} + {} as usize", places(axis).len(), axis.name),
    });
    let any = format!("{}{}", family.name, lifetime(family, "'static"));
    line(text, &format!("impl {}{} {{", family.name, lifetime(family, "'_")));
    line(text, "    /// The kernel for these, if there is one.\n    #[inline]");
    line(text, &format!("    pub fn kernel({}) -> Option<KernelOf<{any}>> {{", parameters.join(", ")));
    line(text, &format!("        static TABLE: [u16; {size}] = [{}];", table.join(", ")));
    line(text, &format!("        KernelOf::of(TABLE[{place}])\n    }}\n}}"));
}

fn axis_type(family: &Family, axis: &Axis) -> String {
    match axis.shared {
        Some(name) => name.to_owned(),
        None if axis.is_dtype => "Element".to_owned(),
        None => format!("{}{}", family.name, camel_case(axis.name)),
    }
}

/// The variant of an enumeration; a value that begins with a digit gets the axis' initial.
fn variant(axis: &Axis, value: &str) -> String {
    let initial = if value.starts_with(|c: char| c.is_ascii_digit()) { &axis.name[..1] } else { "" };
    camel_case(&format!("{initial}{value}"))
}

fn rust_type(argument: &Argument) -> &'static str {
    match argument.pass {
        Pass::Usize => "usize",
        Pass::U32 => "u32",
        Pass::F32 => "f32",
        Pass::F64 => "f64",
        Pass::Bool => "bool",
        Pass::Layout => "&'a KernelLayout",
        Pass::Pointer => "DevicePtr",
        Pass::Element(_) => "Bits",
    }
}

fn lifetime(family: &Family, name: &str) -> String {
    let has_layout = family.arguments.iter().any(|argument| argument.pass == Pass::Layout);
    if has_layout { format!("<{name}>") } else { String::new() }
}

/// `gelu_erf` as `GeluErf`.
fn camel_case(name: &str) -> String {
    name.split('_').map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut rest = word.chars();
    rest.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(rest).collect()
}

fn sentence(meaning: &str) -> String {
    format!("{}.", capital(meaning))
}

fn line(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_is_whole_and_its_own() {
        let names: Vec<String> = families().iter().flat_map(kernels_of).map(|kernel| kernel.name).collect();
        assert!(names.iter().all(|name| !name.contains(['{', '}'])), "{names:?}");
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for name in
            ["uneg_f16", "cast_f8e4m3_u8", "attention_rows_128_bf16", "reduce_sum_f16_f32", "usign_u8"]
        {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert!(!names.iter().any(|name| name == "cast_f32_f32"));
    }

    #[test]
    fn every_variant_has_the_axes_of_the_name() {
        for family in families() {
            for axes in &family.variants {
                let pattern: Vec<&str> =
                    family.kernels.split('{').skip(1).filter_map(|part| part.split('}').next()).collect();
                let names: Vec<&str> = axes.iter().map(|axis| axis.name).collect();
                assert_eq!(names, pattern, "{}", family.name);
                for argument in &family.arguments {
                    if let Pass::Element(axis) = argument.pass {
                        assert!(axes.iter().any(|known| known.name == axis && known.is_dtype));
                    }
                }
            }
        }
    }

    #[test]
    fn names_become_rusts() {
        assert_eq!(camel_case("gelu_erf"), "GeluErf");
        let axis = Axis { name: "columns", is_dtype: false, values: vec!["64"], shared: None };
        assert_eq!(variant(&axis, "64"), "C64");
    }

    #[test]
    fn kernels_for_some_values_of_an_enumeration_have_its_places() {
        let families = families();
        let some = families.iter().find(|family| family.name == "QuantizedFew").unwrap();
        let mut text = String::new();
        lookup(&mut text, some, &kernels_of(some), 0);
        let none = "NONE, ".repeat(6);
        assert!(text.contains(&format!("[u16; 12] = [{none}0, 1, 2, 3, 4, 5]")), "{text}");
    }

    #[test]
    fn the_header_has_every_constant() {
        let header = header();
        for constant in CONSTANTS {
            assert!(header.contains(&format!("#define CANDLE_{} {}\n", constant.name, constant.value)));
        }
    }
}
