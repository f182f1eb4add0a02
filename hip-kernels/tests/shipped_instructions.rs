//! Checks that the software GPU's list of shipped instructions matches the embedded code objects.
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use hip_kernels::{Module, archs, code_object};
use rocm_emulator::code_object::CodeObject;
use rocm_emulator::isa::{Family, decode, format};

/// Environment variable set by `cargo xtask isa-coverage --write` to update the lists.
const WRITE: &str = "CANDLE_SHIPPED_WRITE";

fn family(target: &str) -> Option<Family> {
    Some(match target {
        "gfx906" => Family::Gcn5,
        "gfx908" => Family::Cdna1,
        "gfx90a" => Family::Cdna2,
        "gfx942" => Family::Cdna3,
        "gfx950" => Family::Cdna4,
        "gfx1030" => Family::Rdna2,
        "gfx1100" => Family::Rdna3,
        "gfx1151" => Family::Rdna35,
        "gfx1201" => Family::Rdna4,
        _ => return None,
    })
}

fn list(target: &str) -> PathBuf {
    let folder =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../rocm-emulator/tests/fixtures/shipped"));
    folder.join(format!("{target}.txt"))
}

/// Returns the mnemonic of an instruction, or both mnemonics of a dual one.
fn mnemonics(text: &str) -> impl Iterator<Item = &str> {
    text.split(" :: ").filter_map(|half| half.split(' ').next())
}

/// Characters that end an operand or a part of one.
const ENDS: [char; 7] = [',', ' ', '[', ']', '|', '(', ')'];

/// Returns the form of an instruction, which does not contain register numbers and values.
fn form(text: &str) -> String {
    let name = text.split(' ').next().unwrap_or_default();
    let counts = ["s_wait", "s_delay_alu", "s_clause", "s_nop", "s_branch", "s_cbranch", "s_set_inst"];
    if counts.iter().any(|start| name.starts_with(start)) {
        return name.to_owned();
    }
    // The half and sign modifiers of a packed operation are part of its form.
    let choices = [" op_sel", " neg_"].iter().filter_map(|word| text.find(word)).min().unwrap_or(text.len());
    let operands = text[name.len()..choices].split_inclusive(ENDS).map(class).collect::<String>();
    name.to_owned() + &operands + &text[choices..]
}

/// Replaces registers and values in a word by their class.
fn class(word: &str) -> String {
    let (core, rest) = word.split_at(word.find(ENDS).unwrap_or(word.len()));
    let parts: Vec<String> = core.split(':').map(part_class).collect();
    parts.join(":") + rest
}

fn part_class(part: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = part.trim_start_matches('-');
    if unsigned.starts_with("0x") {
        return "literal".to_owned();
    }
    if digits(unsigned) {
        return "integer".to_owned();
    }
    if unsigned.split_once('.').is_some_and(|(whole, fraction)| digits(whole) && digits(fraction)) {
        return "float".to_owned();
    }
    // Keeps the register file, the half, and the sign.
    let (register, half) = match unsigned.split_once('.') {
        Some((register, half @ ("l" | "h"))) => (register, half),
        _ => (unsigned, ""),
    };
    let file = register.trim_end_matches(|c: char| c.is_ascii_digit());
    let sign = &part[..part.len() - unsigned.len()];
    if matches!(file, "v" | "s" | "a" | "ttmp") { format!("{sign}{file}{half}") } else { part.to_owned() }
}

/// Returns the code words and text of one instruction of each form, by form.
fn forms(target: &'static str, family: Family) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let mut found = BTreeMap::new();
    for module in Module::ALL {
        let object = CodeObject::parse(&code_object(module, target)?.bytes)?;
        let code = &object.text().ok_or("no text")?.data;
        let mut offset = 0;
        while offset < code.len() {
            // Padding between functions and after the last one.
            if code[offset..].starts_with(&[0; 4]) {
                offset += 4;
                continue;
            }
            let inst = decode(family, code, offset)
                .map_err(|error| format!("{} on {target}, {offset:#x}: {error}", module.name()))?;
            let end = offset + usize::from(inst.size);
            let text = format(family, &inst);
            if text != "s_code_end" {
                found.entry(form(&text)).or_insert_with(|| line(&code[offset..end], &text));
            }
            offset = end;
        }
    }
    Ok(found)
}

fn line(code: &[u8], text: &str) -> String {
    let mut line = String::new();
    for (at, word) in code.chunks_exact(4).enumerate() {
        let word = word.iter().rev().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        let _ = write!(line, "{}{word:08x}", if at == 0 { "" } else { " " });
    }
    line + "  " + text
}

#[test]
fn every_shipped_mnemonic_is_in_the_software_gpus_list() -> Result<(), Box<dyn Error>> {
    for (&target, family) in archs().iter().filter_map(|target| Some((target, family(target)?))) {
        let found = forms(target, family)?;
        if std::env::var_os(WRITE).is_some() {
            let lines: String = found.values().map(|line| format!("{line}\n")).collect();
            let title = format!(
                "# {target}: code words and text of an instruction of every form in the shipped code objects.\n\
                 # Written by cargo xtask isa-coverage --write.\n"
            );
            std::fs::write(list(target), title + &lines)?;
        }
        let listed = std::fs::read_to_string(list(target))?;
        let texts = |line: &'_ str| line.split_once("  ").map_or(String::new(), |(_, text)| text.to_owned());
        let listed: Vec<String> = listed.lines().filter(|line| !line.starts_with('#')).map(texts).collect();
        let listed: BTreeSet<&str> = listed.iter().flat_map(|text| mnemonics(text)).collect();
        let shipped: Vec<String> = found.values().map(|line| texts(line)).collect();
        let missing: BTreeSet<&str> =
            shipped.iter().flat_map(|text| mnemonics(text)).filter(|name| !listed.contains(name)).collect();
        assert!(shipped.len() > 300, "{target}: only {} forms", shipped.len());
        assert!(missing.is_empty(), "{target}: not listed (cargo xtask isa-coverage --write): {missing:?}");
    }
    Ok(())
}

#[test]
fn forms_leave_out_what_differs_between_instructions_of_a_form() {
    let same = |a: &str, b: &str| assert_eq!(form(a), form(b));
    same("v_add_f32_e32 v1, s2, v3", "v_add_f32_e32 v10, s20, v30");
    same("ds_load_b64 v[2:3], v2 offset:8", "ds_load_b64 v[12:13], v7 offset:27200");
    same("s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(3)");
    same("v_pk_add_f16 v1, v2, v3 op_sel_hi:[1,0]", "v_pk_add_f16 v4, v5, v6 op_sel_hi:[1,0]");
    same("v_fma_f32 v1, -v2, |s3|, 0x40490fdb", "v_fma_f32 v8, -v9, |s1|, 0x3f000001");
    for other in
        ["v_add_f32_e32 v1, v2, v3", "v_add_f32_e32 v1, vcc_lo, v3", "v_add_f32_e32 v1, 0x11223344, v3"]
    {
        assert_ne!(form("v_add_f32_e32 v1, s2, v3"), form(other));
    }
    for other in ["v_fma_f32 v1, v2, |s3|, 1.0", "v_fma_f32 v1, -v2, s3, 1.0", "v_fma_f32 v1, -v2, |s3|, 1"] {
        assert_ne!(form("v_fma_f32 v1, -v2, |s3|, 1.0"), form(other));
    }
}
