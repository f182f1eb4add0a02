//! Tests with a compiler's code objects, complete and damaged.
use super::*;

const RUNTIME: &[u8] = include_bytes!("../../tests/fixtures/runtime.hsaco");
const ARGUMENTS: &[u8] = include_bytes!("../../tests/fixtures/arguments.hsaco");

#[test]
fn a_compilers_code_object_is_parsed() {
    let object = CodeObject::parse(RUNTIME).unwrap();
    assert_eq!(object.target.to_string(), "gfx1100");
    let kernels: Vec<&str> = object.kernels.keys().map(String::as_str).collect();
    assert_eq!(kernels, ["append", "at_most_64", "globals", "reverse", "store_at", "trap", "wait_for_flag"]);
    let append = &object.kernels["append"];
    assert_eq!(append.metadata.kernarg_bytes, 12);
    assert_eq!(append.metadata.wave_size, 32);
    assert!(append.descriptor.wave32());
    assert_eq!(append.entry, object.symbols["append"].address);
    assert_eq!(object.kernels["at_most_64"].metadata.max_workgroup_size, 64);
    assert_eq!(object.symbols["table"].size, 12);
    assert!(object.symbols["table"].is_object && !object.symbols["append"].is_object);
    assert_eq!(object.relocations.len(), 1);
    assert_eq!(object.relocations[0].kind, RelocationKind::Relative64);
}

#[test]
fn arguments_have_the_compilers_offsets() {
    let object = CodeObject::parse(ARGUMENTS).unwrap();
    let explicit: Vec<(u32, u32)> = object.kernels["by_value"]
        .metadata
        .arguments
        .iter()
        .filter(|argument| !matches!(argument.kind, ValueKind::Hidden(_)))
        .map(|argument| (argument.offset, argument.size))
        .collect();
    // unsigned char, four 64-bit words, a pointer, unsigned short.
    assert_eq!(explicit, [(0, 1), (8, 32), (40, 8), (48, 2)]);
    let hidden = &object.kernels["hidden"].metadata.arguments;
    let group_size = hidden.iter().find(|a| a.kind == ValueKind::Hidden(HiddenArgument::GroupSize(1)));
    // The implicit arguments follow the pointer; the y size is at offset 14.
    assert_eq!(group_size.map(|argument| (argument.offset, argument.size)), Some((8 + 14, 2)));
}

#[test]
fn an_image_is_relocated_and_zeroed() {
    let object = CodeObject::parse(RUNTIME).unwrap();
    let image = Image::load(&object).unwrap();
    let address = |name: &str| image.address(object.symbols[name].address);
    let word = |address: usize| {
        // SAFETY: the symbols are inside the image's segments.
        unsafe { std::ptr::with_exposed_provenance::<u32>(address).read_unaligned() }
    };
    assert_eq!(word(address("counter")), 7);
    assert_eq!([0, 4, 8].map(|offset| word(address("table") + offset)), [10, 20, 30]);
    let middle = word(address("middle")) as usize | (word(address("middle") + 4) as usize) << 32;
    assert_eq!(middle, address("table") + 4);
    assert_eq!(word(address("zeroed") + 396), 0);
    let holds = |address: usize| {
        image.segments.iter().find(|s| address >= s.address && address < s.address + s.size).copied()
    };
    assert!(holds(address("counter")).unwrap().writable);
    assert!(!holds(address("append")).unwrap().writable);
}

#[test]
fn every_truncation_is_an_error() {
    for len in 0..RUNTIME.len() {
        assert!(CodeObject::parse(&RUNTIME[..len]).is_err(), "{len} of {} bytes", RUNTIME.len());
    }
}

/// A damaged code object may still be parsed, since its code is not checked, but must not panic or access other memory.
#[test]
fn flipped_bytes_never_panic() {
    for place in 0..RUNTIME.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut bytes = RUNTIME.to_vec();
            bytes[place] ^= mask;
            if let Ok(object) = CodeObject::parse(&bytes) {
                let _ = Image::load(&object).map(|image| image.segments.len());
            }
        }
    }
}

#[test]
fn errors_name_other_kinds_of_files() {
    let text = |bytes: &[u8]| CodeObject::parse(bytes).unwrap_err().to_string();
    assert!(text(b"").contains("not a code object"));
    assert!(text(b"#!/bin/sh").contains("not a code object"));
    let mut x86 = RUNTIME.to_vec();
    x86[18] = 62;
    assert!(text(&x86).contains("machine 62"), "{}", text(&x86));
    let mut nvidia = RUNTIME.to_vec();
    nvidia[18] = 190;
    assert!(text(&nvidia).contains("an object for an NVIDIA GPU (ELF machine 190)"), "{}", text(&nvidia));
    let mut version = RUNTIME.to_vec();
    version[8] = 9;
    assert!(text(&version).contains("ABI version 9"), "{}", text(&version));
    let mut chip = RUNTIME.to_vec();
    chip[48] = 0xfe;
    assert!(text(&chip).contains("0xfe"), "{}", text(&chip));
}
