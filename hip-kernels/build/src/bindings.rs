//! Generates the kernels' header and the host's Rust bindings from the contract.

use std::fs;
use std::path::Path;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::BuildError;
use crate::contract::formats::{BlockFormat, FORMATS, macros};
use crate::contract::shared::ELEMENTS;
use crate::contract::{Argument, Axis, Family, Pass, constants, families, modules, names};

/// Name of the generated header, included before the first line of every kernel source.
pub const HEADER_FILE: &str = "candle_contract.h";

/// Name of the generated Rust source, included in `hip_kernels::contract`.
pub const RUST_FILE: &str = "contract.rs";

/// One kernel of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Name by which it is launched.
    pub name: String,
    /// Name and value of each axis, in the order of the family's axes.
    pub values: Vec<(&'static str, &'static str)>,
}

/// Returns the kernels of a family in the order of their IDs.
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

/// Merges the axes of all variants: each axis once, with all of its values.
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

/// Returns the text of [`HEADER_FILE`].
pub fn header() -> String {
    let constant = |name: &str, value: &dyn std::fmt::Display, meaning: &str| {
        format!("//{meaning}\n#define CANDLE_{name} {value}\n")
    };
    let constants = constants().map(|known| constant(known.name, &known.value, known.meaning));
    let lists = macros().into_iter().map(|(name, expansion)| {
        let meaning = " X(unpacker, name, weights of a block, bytes of a block, threads of the quantizer)";
        constant(&format!("EACH_{name}(X)"), &expansion, meaning)
    });
    let lines: String = constants.chain(lists).collect();
    format!("// Generated from candle-kernels/contract.\n#pragma once\n\n{lines}")
}

/// Writes [`RUST_FILE`] into `out_dir`.
///
/// # Errors
/// [`BuildError::Io`].
pub fn write_rust(out_dir: &Path) -> Result<(), BuildError> {
    let path = out_dir.join(RUST_FILE);
    let written = syn::parse2(rust(&families()))
        .map_err(std::io::Error::other)
        .and_then(|file| fs::write(&path, prettyplease::unparse(&file)));
    written.map_err(BuildError::io("cannot write", &path))
}

/// Returns the text of [`RUST_FILE`] for a table.
fn rust(families: &[Family]) -> TokenStream {
    let mut text = TokenStream::new();
    for constant in constants() {
        let (name, value, meaning) =
            (format_ident!("{}", constant.name), constant.value as usize, constant.meaning);
        text.extend(quote!(#[doc = #meaning] pub const #name: usize = #value;));
    }
    let modules: Vec<_> = modules()
        .iter()
        .map(|module| (camel_case(module.name), module.name, module.meaning.to_owned()))
        .collect();
    text.extend(enumeration("Module", " A kernel module: one source, one code object per target.", &modules));
    let elements = names("element", ELEMENTS);
    text.extend(axis_enumeration("Element", " Element type, named by its dtype.", &elements));
    text.extend(formats());
    let mut first = 0;
    let (mut kernels, mut shared) = (Vec::new(), vec![Some("BlockFormat")]);
    for (number, family) in families.iter().enumerate() {
        let own = kernels_of(family);
        for axis in axes_of(family).iter().filter(|axis| !axis.is_dtype) {
            if axis.shared.is_none() || !shared.contains(&axis.shared) {
                let meaning = match axis.shared {
                    Some(_) => format!(" Values of the axis `{}` of several families.", axis.name),
                    None => format!(" Values of the axis `{}` of [`{}`].", axis.name, family.name),
                };
                text.extend(axis_enumeration(&axis_type(family, axis), &meaning, axis));
                shared.push(axis.shared);
            }
        }
        text.extend(arguments(family));
        text.extend(lookup(family, &own, first));
        first += own.len();
        kernels.extend(own.into_iter().map(|Kernel { name, .. }| quote!((#name, #number))));
    }
    let (count, family_count) = (kernels.len(), families.len());
    let families = families.iter().map(|family| {
        let (name, module) = (family.name, format_ident!("{}", camel_case(family.module)));
        quote!((#name, Module::#module))
    });
    text.extend(quote! {
        const COUNT: usize = #count;
        static KERNELS: [(&str, usize); COUNT] = [#(#kernels),*];
        static FAMILIES: [(&str, Module); #family_count] = [#(#families),*];
    });
    text
}

/// Generates the enumeration of an axis that is not a dtype.
fn axis_enumeration(name: &str, meaning: &str, axis: &Axis) -> TokenStream {
    let variants: Vec<_> =
        axis.values.iter().map(|value| (variant(axis, value), *value, format!(" `{value}`."))).collect();
    enumeration(name, meaning, &variants)
}

/// Generates an enumeration from the variants' identifiers, names and documentation.
fn enumeration(name: &str, meaning: &str, variants: &[(String, &str, String)]) -> TokenStream {
    let (name, count) = (format_ident!("{name}"), variants.len());
    let names: Vec<_> = variants.iter().map(|(variant, ..)| format_ident!("{variant}")).collect();
    let (values, meanings) = (variants.iter().map(|known| known.1), variants.iter().map(|known| &known.2));
    quote! {
        #[doc = #meaning]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum #name { #(#[doc = #meanings] #names),* }

        impl #name {
            /// All variants.
            pub const ALL: [Self; #count] = [#(Self::#names),*];

            /// Returns the name as used in kernel and file names.
            pub const fn name(self) -> &'static str {
                match self { #(Self::#names => #values),* }
            }

            /// Returns the variant with this name.
            pub const fn of(name: &str) -> Option<Self> {
                let mut at = 0;
                while at < Self::ALL.len() {
                    if same(name, Self::ALL[at].name()) {
                        return Some(Self::ALL[at]);
                    }
                    at += 1;
                }
                None
            }
        }
    }
}

/// Generates the enumeration of GGML's block formats, with a method for each column of their table.
fn formats() -> TokenStream {
    let axis = names("format", &FORMATS.iter().map(|format| format.name).collect::<Vec<_>>());
    let mut text = axis_enumeration("BlockFormat", " A block format of GGML.", &axis);
    type Column = fn(&BlockFormat) -> u32;
    let columns: [(&str, &str, Column); 4] = [
        ("ggml_type", " Returns GGML's type number, as in GGUF files.", |format| format.ggml_type),
        ("weights", " Returns the number of weights per block.", |format| format.weights),
        ("bytes", " Returns the number of bytes per block.", |format| format.bytes),
        ("quantizer_threads", " Returns the threads per block.", |format| format.quantizer_threads),
    ];
    for (name, meaning, column) in columns {
        let (name, values) = (format_ident!("{name}"), FORMATS.iter().map(column));
        text.extend(quote! {
            impl BlockFormat {
                #[doc = #meaning]
                pub const fn #name(self) -> usize {
                    [#(#values as usize),*][self as usize]
                }
            }
        });
    }
    text
}

/// Generates the struct of a family's arguments.
fn arguments(family: &Family) -> TokenStream {
    let Family { block, dynamic_lds, .. } = family;
    let (name, text, pack_bytes) =
        (format_ident!("{}", family.name), family.name, family.pack_bytes as usize);
    let (own, any, elided) =
        (lifetime(family, quote!('a)), lifetime(family, quote!('static)), lifetime(family, quote!('_)));
    let (meaning, kernels) = (format!(" {}", family.meaning), format!(" Kernels `{}`.", family.kernels));
    let count = family.arguments.len();
    let fields: Vec<_> = family.arguments.iter().map(|argument| format_ident!("{}", argument.name)).collect();
    let meanings = family.arguments.iter().map(|argument| format!(" {}.", capital(argument.meaning)));
    let types = family.arguments.iter().map(rust_type);
    let borrows = family.arguments.iter().map(|argument| match argument.pass {
        Pass::Layout => quote!(),
        _ => quote!(&),
    });
    quote! {
        #[doc = #meaning]
        ///
        #[doc = #kernels]
        #[derive(Clone, Copy, Debug)]
        pub struct #name #own { #(#[doc = #meanings] pub #fields: #types),* }

        impl KernelFamily for #name #elided {
            const NAME: &'static str = #text;
            const BLOCK: u32 = #block;
            const PACK_BYTES: usize = #pack_bytes;
            const DYNAMIC_LDS: bool = #dynamic_lds;
            type Any = #name #any;
            type Arguments = [*const c_void; #count];
            #[inline]
            fn arguments(&self) -> Self::Arguments {
                [#(std::ptr::from_ref(#borrows self.#fields).cast()),*]
            }
        }
    }
}

/// Returns the Rust values of an axis. A family may have kernels for only some values of a shared enumeration.
fn places(axis: &Axis) -> Vec<&'static str> {
    let first = || families().iter().flat_map(axes_of).find(|other| other.shared == axis.shared);
    match axis.shared {
        _ if axis.is_dtype => ELEMENTS.to_vec(),
        Some(_) => first().map_or_else(|| axis.values.clone(), |first| first.values),
        None => axis.values.clone(),
    }
}

/// Returns the ID of a family's kernel for each combination of axis values; IDs start at `first`.
fn table(family: &Family, kernels: &[Kernel], first: usize) -> Vec<Option<usize>> {
    let axes = axes_of(family);
    let mut table = vec![None; axes.iter().map(|axis| places(axis).len()).product()];
    for (number, kernel) in kernels.iter().enumerate() {
        let place = axes.iter().fold(0, |place, axis| {
            let value = kernel.values.iter().find(|(name, _)| *name == axis.name).map(|(_, value)| *value);
            let index = places(axis).iter().position(|known| Some(*known) == value);
            place * places(axis).len() + index.unwrap_or(0)
        });
        table[place] = Some(first + number);
    }
    table
}

/// Generates the function that looks up a kernel in the family's [`table`].
fn lookup(family: &Family, kernels: &[Kernel], first: usize) -> TokenStream {
    let axes = axes_of(family);
    let table = table(family, kernels, first);
    let size = table.len();
    let numbers =
        table.into_iter().map(|number| number.map_or(quote!(NONE), |number| quote!(#number as u16)));
    let names: Vec<_> = axes.iter().map(|axis| format_ident!("{}", axis.name)).collect();
    let types = axes.iter().map(|axis| format_ident!("{}", axis_type(family, axis)));
    let place = axes.iter().zip(&names).map(|(axis, name)| (places(axis).len(), quote!(#name as usize)));
    let place = place.reduce(|(_, place), (len, index)| (len, quote!((#place) * #len + #index)));
    let place = place.map_or_else(|| quote!(0), |(_, place)| place);
    let (name, any) = (format_ident!("{}", family.name), lifetime(family, quote!('static)));
    let elided = lifetime(family, quote!('_));
    quote! {
        impl #name #elided {
            /// Returns the kernel for these axis values, if it exists.
            #[inline]
            pub fn kernel(#(#names: #types),*) -> Option<KernelOf<#name #any>> {
                static TABLE: [u16; #size] = [#(#numbers),*];
                KernelOf::of(TABLE[#place])
            }
        }
    }
}

fn axis_type(family: &Family, axis: &Axis) -> String {
    match axis.shared {
        Some(name) => name.to_owned(),
        None if axis.is_dtype => "Element".to_owned(),
        None => format!("{}{}", family.name, camel_case(axis.name)),
    }
}

/// Returns the variant's identifier; a value that starts with a digit is prefixed with the axis' initial.
fn variant(axis: &Axis, value: &str) -> String {
    let initial = if value.starts_with(|c: char| c.is_ascii_digit()) { &axis.name[..1] } else { "" };
    camel_case(&format!("{initial}{value}"))
}

fn rust_type(argument: &Argument) -> TokenStream {
    match argument.pass {
        Pass::Usize => quote!(usize),
        Pass::U32 => quote!(u32),
        Pass::F32 => quote!(f32),
        Pass::F64 => quote!(f64),
        Pass::Bool => quote!(bool),
        Pass::Layout => quote!(&'a KernelLayout),
        Pass::Pointer => quote!(DevicePtr),
        Pass::Element(_) => quote!(Bits),
    }
}

/// Returns the lifetime in angle brackets for families that borrow a layout.
fn lifetime(family: &Family, name: TokenStream) -> Option<TokenStream> {
    let has_layout = family.arguments.iter().any(|argument| argument.pass == Pass::Layout);
    has_layout.then(|| quote!(<#name>))
}

/// Converts `gelu_erf` to `GeluErf`.
fn camel_case(name: &str) -> String {
    name.split('_').map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut rest = word.chars();
    rest.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn kernel_names_are_complete_and_unique() {
        let names: Vec<String> = families().iter().flat_map(kernels_of).map(|kernel| kernel.name).collect();
        assert!(names.iter().all(|name| !name.contains(['{', '}'])), "{names:?}");
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for name in ["uexp_f16", "cast_f8e4m3_b2", "attention_rows_128_bf16", "reduce_sum_f16", "usimple_u8"]
        {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert!(!names.iter().any(|name| name == "cast_u8_u8"));
    }

    #[test]
    fn every_variant_has_the_axes_of_its_pattern() {
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
    fn names_are_converted_to_rust() {
        assert_eq!(camel_case("gelu_erf"), "GeluErf");
        let axis = names("columns", &["64"]);
        assert_eq!(variant(&axis, "64"), "C64");
    }

    #[test]
    fn tables_cover_all_values_of_a_shared_enumeration() {
        let families = families();
        let some = families.iter().find(|family| family.name == "QuantizedRow").unwrap();
        let own = table(some, &kernels_of(some), 0);
        assert_eq!(own, [(0..19).map(Some).collect(), vec![None; 6], vec![Some(19)]].concat());
    }

    #[test]
    fn the_rust_source_has_every_constant_family_and_kernel() {
        let folder = tempfile::tempdir().unwrap();
        write_rust(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(RUST_FILE)).unwrap();
        for constant in constants() {
            assert!(text.contains(&format!("pub const {}: usize = {}", constant.name, constant.value)));
        }
        let mut count = 0;
        for family in families() {
            assert!(text.contains(&format!("pub struct {}", family.name)), "{}", family.name);
            for argument in &family.arguments {
                assert!(text.contains(&format!("pub {}: ", argument.name)), "{}", argument.name);
            }
            for kernel in kernels_of(&family) {
                assert!(text.contains(&format!("\"{}\"", kernel.name)), "{}", kernel.name);
                count += 1;
            }
        }
        assert!(text.contains(&format!("const COUNT: usize = {count}usize;")), "{count}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let error = write_rust(Path::new("/dev/null/none")).unwrap_err().to_string();
        assert!(error.contains("/dev/null/none"), "{error}");
    }

    #[test]
    fn the_header_has_every_constant() {
        let header = header();
        for constant in constants() {
            assert!(header.contains(&format!("#define CANDLE_{} {}\n", constant.name, constant.value)));
        }
    }
}
